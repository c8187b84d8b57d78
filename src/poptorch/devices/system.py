"""The virtual IPU system of this machine: what it is made of, and the questions programs ask about it.

``POPTORCH_SYSTEM`` names it; without the variable it is a Pod64 of Mk2 IPUs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from poptorch import environment
from poptorch.devices.partition import visible
from poptorch.errors import createPoptorchError

DEFAULT_SYSTEM = "pod64"
NO_SYSTEM = "none"

_KIB = 1024


@dataclass(frozen=True)
class System:
    """A set of IPUs that programs can attach to."""

    name: str
    ipus: int
    architecture: str
    """``mk1``, ``mk2``, ``bow`` or ``c600``."""

    target: str
    """The architecture as the compiler calls it: ``ipu1``, ``ipu2`` or ``ipu21``."""

    version: int
    """The number in that name; Bow is Mk2 silicon with a faster clock, so both are 2."""

    tiles: int
    """Tiles of one IPU."""

    memory_per_tile: int
    """Bytes of one tile."""

    def offers(self, num_ipus: int) -> bool:
        """Whether there is a device of exactly that many IPUs: any power of two up to the whole system."""
        return 0 < num_ipus <= self.ipus and num_ipus & (num_ipus - 1) == 0


@dataclass(frozen=True)
class _Chip:
    target: str
    tiles: int
    memory_per_tile: int


_CHIPS: Mapping[str, _Chip] = MappingProxyType(
    {
        "mk1": _Chip("ipu1", 1216, 256 * _KIB),
        "mk2": _Chip("ipu2", 1472, 624 * _KIB),
        "bow": _Chip("ipu2", 1472, 624 * _KIB),
        "c600": _Chip("ipu21", 1472, 624 * _KIB),
    }
)


def _system(name: str, ipus: int, architecture: str) -> System:
    chip = _CHIPS[architecture]
    version = int(re.sub(r"\D", "", chip.target))
    return System(name, ipus, architecture, chip.target, version, chip.tiles, chip.memory_per_tile)


_POD_SIZES = (4, 16, 64, 128, 256)

SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        made.name: made
        for made in (
            *(_system(f"pod{size}", size, "mk2") for size in _POD_SIZES),
            *(_system(f"bow-pod{size}", size, "bow") for size in _POD_SIZES),
            _system("c2", 2, "mk1"),
            _system("dss8440", 16, "mk1"),
            _system("c600", 1, "c600"),
        )
    }
)
"""Every system that ``POPTORCH_SYSTEM`` can name, besides ``none``."""


def system() -> System | None:
    """The virtual system that this process may use, or ``None`` when ``POPTORCH_SYSTEM`` is ``none``.

    It is the whole machine, or a partition of it; see :mod:`poptorch.devices.partition`.

    >>> system().ipus
    64
    """
    machine, part = whole_system(), visible()
    if machine is None or part is None:
        return machine
    return replace(machine, name=f"{machine.name}-{part.name}", ipus=part.ipus)


def whole_system() -> System | None:
    """The virtual system of this machine, whatever partitions there are.

    >>> whole_system().name
    'pod64'
    """
    name = environment.SYSTEM.read() or DEFAULT_SYSTEM
    if name == NO_SYSTEM:
        return None
    if name not in SYSTEMS:
        raise createPoptorchError(_unknown_system(name))
    return SYSTEMS[name]


def _unknown_system(name: str) -> str:
    known = [*SYSTEMS, NO_SYSTEM]
    close = difflib.get_close_matches(name[:100].lower(), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return (
        f"The environment variable POPTORCH_SYSTEM is {environment.quoted(name)}, which is no known IPU system.{hint} "
        f"Set it to one of {', '.join(known)}, or unset it for {DEFAULT_SYSTEM}."
    )


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there is a device of ``num_ipus`` IPUs, free or not; false while an IPU Model is requested.

    >>> ipuHardwareIsAvailable(4)
    True
    >>> ipuHardwareIsAvailable(3)  # devices come in powers of two
    False
    """
    if environment.ipu_model_request().enabled:
        return False
    present = system()
    return present is not None and present.offers(num_ipus)


def ipuHardwareVersion() -> int:
    """The generation of the IPUs: 1 for Mk1, 2 for Mk2 and Bow, 21 for Mk2 with FP8.

    >>> ipuHardwareVersion()
    2
    """
    present = None if environment.ipu_model_request().enabled else system()
    if present is None:
        raise AssertionError(
            "No IPU hardware available on this system. The environment asks for an IPU Model "
            "(POPTORCH_IPU_MODEL, POPTORCH_SMALL_IPU_MODEL) or for no system (POPTORCH_SYSTEM=none); unset "
            "these to use virtual IPUs"
        )
    return present.version


def hasMLIRSupportOnPlatform() -> bool:
    """Whether models can be captured by dispatching their operations one by one: always, here.

    >>> hasMLIRSupportOnPlatform()
    True
    """
    return True
