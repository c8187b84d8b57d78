"""IPUs as data: sizes, clocks and rates, with knobs for what is not publicly known."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from poptorch.devices.system import system
from poptorch.errors import createPoptorchError

_KIB = 1024
_GB = 1e9


@dataclass(frozen=True)
class Architecture:
    """One kind of IPU in its system.

    All rates inside a chip are per tile and cycle; links and host are in bytes per second, because they do not follow
    the clock.
    """

    name: str
    tiles: int
    memory_per_tile: int
    """Bytes."""

    clock: float
    """Hertz."""

    units_half: int
    """Matrix units in use with float16 operands and float16 partial sums."""

    units_half_float: int
    """The same with float32 partial sums."""

    units_float: int
    """The same with float32 operands and partial sums."""

    workers: int = 6
    exchange_bytes: int = 4
    """What a tile sends and what it receives per cycle."""

    copy_bytes: int = 8
    """What a tile copies inside its memory per cycle."""

    weight_load_bytes: int = 8
    """What the matrix unit loads of its weights per cycle."""

    code_memory: int = 208 * _KIB
    """Bytes of a tile from which instructions can be fetched."""

    sync_cycles: int = 100
    """Between two steps on one IPU, the launch of the next compute set included."""

    exchange_skew: int = 40
    """Fixed cycles of an exchange phase."""

    global_sync_cycles: int = 600
    """Between IPUs, or with the host."""

    link_bandwidth: float = 58.4 * _GB
    """Bytes per second and direction from one IPU to its neighbour in a pipeline."""

    ring_bandwidth: float = 29.2 * _GB
    """Bytes per second and direction of an IPU in a collective over replicas."""

    host_bandwidth: float = 8.0 * _GB
    """Bytes per second and direction of one IPU to its host, before it is shared."""

    hosted_ipus: int = 4
    """How many IPUs share a link to the host and a streaming memory."""

    shared_host_bandwidth: float = 12.5 * _GB
    """Of that link."""

    streaming_bandwidth: float = 20.0 * _GB
    """Bytes per second of the streaming memory that these IPUs share."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and not value > 0:
                raise createPoptorchError(
                    f"The IPU architecture {self.name!r} cannot have {field.name} = {value!r}: it must be positive."
                )

    @property
    def memory(self) -> int:
        """Bytes of all tiles."""
        return self.tiles * self.memory_per_tile

    @property
    def sharing_tiles(self) -> int:
        """Neighbouring tiles that can receive the same data at once."""
        return 2

    def units(self, dtype: torch.dtype, partials: torch.dtype) -> int:
        """Matrix units that work on operands of one type with partial sums of another."""
        if dtype.itemsize >= 4:
            return self.units_float
        return self.units_half if partials.itemsize < 4 else self.units_half_float

    def peak_flops(self, dtype: torch.dtype, partials: torch.dtype) -> float:
        """Floating-point operations per second of all matrix units, additions and multiplications counted.

        >>> round(architecture("bow").peak_flops(torch.float16, torch.float16) / 1e12, 1)
        348.6
        >>> round(architecture("mk1").peak_flops(torch.float32, torch.float32) / 1e12, 1)
        31.1
        """
        cycles = 8 if dtype.itemsize >= 4 else 4  # of a worker for one position of 8 or 16 inputs
        inputs = 8 if dtype.itemsize >= 4 else 16
        return 2.0 * self.units(dtype, partials) * inputs / cycles * self.tiles * self.clock

    def seconds(self, cycles: float) -> float:
        """The time of so many cycles."""
        return cycles / self.clock

    def cycles(self, seconds: float) -> float:
        """The cycles of a time."""
        return seconds * self.clock


def vector_width(dtype: torch.dtype) -> int:
    """Elements that a worker handles at once: 64 bits.

    >>> vector_width(torch.float16), vector_width(torch.float32)
    (4, 2)
    """
    return max(1, 8 // dtype.itemsize)


_MK2 = Architecture(
    "mk2", tiles=1472, memory_per_tile=624 * _KIB, clock=1.33e9, units_half=16, units_half_float=8, units_float=16
)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            Architecture(
                "mk1",
                tiles=1216,
                memory_per_tile=256 * _KIB,
                clock=1.6e9,
                units_half=8,
                units_half_float=8,
                units_float=8,
                code_memory=128 * _KIB,
                link_bandwidth=64.0 * _GB,
                ring_bandwidth=32.0 * _GB,
                host_bandwidth=16.0 * _GB,
                hosted_ipus=2,
                shared_host_bandwidth=16.0 * _GB,
            ),
            _MK2,
            dataclasses.replace(_MK2, name="bow", clock=1.85e9),
            dataclasses.replace(_MK2, name="c600", clock=1.5e9, hosted_ipus=1),
        )
    }
)
"""Every kind of IPU that is known, by name."""

_OTHER_NAMES = {"ipu1": "mk1", "ipu2": "mk2", "ipu21": "c600", "gc2": "mk1", "gc200": "mk2"}


DEFAULT = "mk2"
"""What a machine without a virtual system estimates for."""


def architecture(name: str | None = None, **knobs: float) -> Architecture:
    """The architecture with this name; keywords change what is said about it.

    Without a name it is that of this machine's virtual system: Mk2, unless ``POPTORCH_SYSTEM`` says otherwise.

    >>> architecture("mk2").memory // 1024**2
    897
    >>> architecture("bow", tiles=4).tiles
    4
    """
    if name is None:
        present = system()
        name = DEFAULT if present is None else present.architecture
    known = _OTHER_NAMES.get(name.lower(), name.lower())
    if known not in ARCHITECTURES:
        close = difflib.get_close_matches(known, ARCHITECTURES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise createPoptorchError(f"{name!r} is no known IPU.{hint} There are {', '.join(ARCHITECTURES)}.")
    chip = ARCHITECTURES[known]
    unknown = sorted(set(knobs) - {f.name for f in dataclasses.fields(chip)} | {"name"} & set(knobs))
    if unknown:
        names = ", ".join(f.name for f in dataclasses.fields(chip) if f.name != "name")
        raise createPoptorchError(f"An IPU has no {', '.join(unknown)} that could be set. There are: {names}.")
    return dataclasses.replace(chip, **knobs)  # type: ignore[arg-type]


__all__ = ["ARCHITECTURES", "DEFAULT", "Architecture", "architecture", "vector_width"]
