"""What was measured on this machine, once: how much faster the other library multiplies, for a grid of products.

The measurement takes less than a second of one core. Its result is kept in a file of the user, for each kind of
processor and release of torch, and decides from then on: no product is timed while a program is compiled or run, so a
program gives the same bits every time. ``poptorch doctor`` shows it; without the file, it is measured anew.

The clock is the processor time of one thread, because nothing that runs beside it changes that. On a machine where
others compute, the wall clock of two threads was off by factors of a hundred: each waits for the other in every
product. So what is known is the speed of a core, and :meth:`Calibration.gain` says what that means for several.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from poptorch._logging import logger
from poptorch.errors import Error
from poptorch.libraries import onednn
from poptorch_files import create_complete, parse_json, replace, state_folder

FORMAT = 1
SIZES = (8, 64, 512)
"""Rows, columns and terms of the products that are timed, in all combinations."""

BATCHED_SIZES = (16, 64, 256)
BATCH = 16
ROUNDS = 4
"""The libraries take turns, and the shortest time of each counts: it is the one that nothing else disturbed."""


@dataclass(frozen=True)
class ProductKind:
    """Products whose operands lie in memory in the same way."""

    name: str
    transposed: tuple[bool, bool]
    batch: int = 0
    packed: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        return BATCHED_SIZES if self.batch else SIZES


KINDS = (
    ProductKind("plain", (False, False)),
    ProductKind("right transposed", (False, True)),
    ProductKind("left transposed", (True, False)),
    ProductKind("right packed", (False, True), packed=True),
    ProductKind("batch", (False, False), BATCH),
    ProductKind("batch, right transposed", (False, True), BATCH),
    ProductKind("batch, left transposed", (True, False), BATCH),
)

Gains = tuple[float, ...]
"""For each combination of sizes: the time of MKL by that of oneDNN, as a logarithm to base 2."""


@dataclass(frozen=True)
class Calibration:
    """The gains of one machine, by the name of the kind."""

    gains: tuple[tuple[str, Gains], ...]
    seconds: float = 0.0
    """How long it took to measure, of one core."""

    def gain(self, kind: ProductKind, sizes: tuple[float, float, float], threads: int = 1) -> float:
        """The gain for rows, terms and columns between those of the grid, linear in their logarithms.

        Several threads share a product: each has a part of its longer side, while one of them looks for the kernel.
        """
        rows, terms, columns = sizes
        sizes = (rows / threads, terms, columns) if rows >= columns else (rows, terms, columns / threads)
        grid = dict(self.gains)[kind.name]
        corners = [_between(size, kind.sizes) for size in sizes]
        count, total = len(kind.sizes), 0.0
        for chosen in itertools.product((0, 1), repeat=3):
            place, weight = 0, 1.0
            for (low, share), upper in zip(corners, chosen, strict=True):
                place = place * count + low + upper
                weight *= share if upper else 1.0 - share
            total += weight * grid[place] if weight else 0.0
        return total

    @property
    def identity(self) -> str:
        """What tells two calibrations apart."""
        return hashlib.sha256(json.dumps(self.gains).encode()).hexdigest()[:16]


def _between(size: float, sizes: Sequence[int]) -> tuple[int, float]:
    """The lower of two neighbours in the grid, and how far on the way to the upper one a size is."""
    position = math.log(max(size, 1))
    for low in range(len(sizes) - 1):
        below, above = math.log(sizes[low]), math.log(sizes[low + 1])
        if position <= above or low == len(sizes) - 2:
            return low, min(max((position - below) / (above - below), 0.0), 1.0)
    raise AssertionError("a grid has two sizes or more")


# -- where it is kept ------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What a calibration belongs to."""
    return {
        "format": FORMAT,
        "processor": _processor(),
        "torch": [torch.__version__, str(torch.version.git_version)],
        "vector code": torch.backends.cpu.get_cpu_capability(),
    }


@cache
def _processor() -> str:
    wanted = ("model name", "cpu family", "model", "flags", "Features", "CPU part")
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(f"{name}: {facts[name]}" for name in wanted if name in facts)


def file_of_machine() -> Path:
    """Where the calibration is kept."""
    digest = hashlib.sha256(json.dumps(machine(), sort_keys=True).encode()).hexdigest()[:16]
    return state_folder() / "products" / f"{digest}.json"


@cache
def calibration() -> Calibration | None:
    """What is known of this machine, measured now if it never was; ``None`` where nothing can be kept.

    What nobody keeps would be measured anew by every process, and one program would give other bits in each.
    """
    if not onednn.is_there():
        return None
    try:
        path = file_of_machine()
        found = _read(path)
        if found is None:
            made = measure()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_first(path, made)
            found = _read(path)  # of several processes at once, all take what the first one wrote
    except (OSError, RuntimeError, Error) as problem:
        logger.info("Matrix products stay with MKL, because the calibration cannot be kept: %s", problem)
        return None
    return found


def _write_first(path: Path, made: Calibration) -> None:
    """Keep what was measured, unless another process was faster."""
    content = {"machine": machine(), "seconds": round(made.seconds, 3), "gains": dict(made.gains)}
    data = json.dumps(content, indent=1).encode()
    if not create_complete(path, data) and _read(path) is None:  # what is there is damaged
        replace(path, data, 0o600)


def _read(path: Path) -> Calibration | None:
    """The calibration in a file; ``None`` if there is none, or none that can be used."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        gains = _checked(content["gains"]) if content["machine"] == machine() else None
        return None if gains is None else Calibration(gains, float(content["seconds"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _checked(gains: Mapping[str, Any]) -> tuple[tuple[str, Gains], ...]:
    found = []
    for kind in KINDS:
        values = tuple(float(value) for value in gains[kind.name])
        if len(values) != len(kind.sizes) ** 3 or not all(map(math.isfinite, values)):
            raise ValueError(kind.name)
        found.append((kind.name, values))
    return tuple(found)


# -- measuring -------------------------------------------------------------------------------------------------------


def measure() -> Calibration:
    """Time all products with both libraries."""
    started = time.thread_time()
    with torch.no_grad(), _one_thread():
        gains = tuple((kind.name, tuple(_gain(kind, sizes) for sizes in _grid(kind))) for kind in KINDS)
    seconds = time.thread_time() - started
    logger.info("Matrix products were calibrated in %.2f s", seconds)
    return Calibration(gains, seconds)


def _grid(kind: ProductKind) -> Iterator[tuple[int, int, int]]:
    yield from itertools.product(kind.sizes, repeat=3)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _gain(kind: ProductKind, sizes: tuple[int, int, int]) -> float:
    candidates = _candidates(kind, sizes)
    for run in candidates:
        run()  # the first call looks for a kernel
    times = [math.inf, math.inf]
    for _ in range(ROUNDS):
        for place, run in enumerate(candidates):
            started = time.thread_time()
            run()
            times[place] = min(times[place], time.thread_time() - started)
    return round(math.log2(times[0] / times[1]), 2)


def _candidates(kind: ProductKind, sizes: tuple[int, int, int]) -> list[Callable[[], Any]]:
    """The product by MKL and by oneDNN."""
    rows, terms, columns = sizes
    batch = (kind.batch,) if kind.batch else ()
    left = torch.ones(*batch, terms, rows).mT if kind.transposed[0] else torch.ones(*batch, rows, terms)
    right = torch.ones(*batch, columns, terms).mT if kind.transposed[1] else torch.ones(*batch, terms, columns)
    if kind.packed:
        return _packed_candidates(left, right.mT)
    theirs = torch.bmm if batch else torch.mm
    return [lambda: theirs(left, right), lambda: onednn.matmul(left, right)]


def _packed_candidates(x: torch.Tensor, weight: torch.Tensor) -> list[Callable[[], Any]]:
    rows = x.shape[0]
    pointwise = torch.ops.mkldnn._linear_pointwise
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    if not torch._C.has_mkl:
        return [lambda: torch.mm(x, weight.t()), lambda: pointwise(x, packed, None, "none", [], "")]
    by_mkl = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    return [
        lambda: torch.ops.mkl._mkl_linear(x, by_mkl, weight, None, rows),
        lambda: pointwise(x, packed, None, "none", [], ""),
    ]
