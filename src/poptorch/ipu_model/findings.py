"""What stands out in an estimate, why, and what was found to help: one list, which texts, reports and pages show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from poptorch.figures import byte_size
from poptorch.ipu_model import changes
from poptorch.ipu_model.trials import Change

if TYPE_CHECKING:
    from poptorch.ipu_model.result import Estimate

PROBLEM, HINT, NOTE = "problem", "hint", "note"
LEVELS = (PROBLEM, HINT, NOTE)

_LEAST_GAIN = 0.01
"""Of the samples per second: less is not worth a change."""

_TOGETHER = 3
"""So many changes at most are combined to make a model fit."""


@dataclass(frozen=True)
class Finding:
    """One thing that stands out."""

    level: str
    kind: str
    """What it is about, for tools."""

    title: str
    text: str
    """The figures that it rests on."""

    action: str = ""
    """What to do."""

    effect: str = ""
    """What that brought when it was tried."""

    tab: str = ""
    """Of the page, that shows more."""

    ipu: int = -1
    source: str = ""
    """The user's line."""

    layer: str = ""
    operation: str = ""
    share: float = 0.0
    """Of the time of a call that is at stake."""

    def to_dict(self) -> dict[str, Any]:
        """For files."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.level}: {self.title}", f"  {self.text}"]
        if self.action:
            lines.append(f"  do: {self.action}" + (f" (tried: {self.effect})" if self.effect else ""))
        return "\n".join(lines)


@dataclass(frozen=True)
class Tried:
    """Changes with the estimate of the model that has them."""

    changes: tuple[Change, ...]
    before: Estimate
    after: Estimate

    @property
    def text(self) -> str:
        return "; ".join(change.text for change in self.changes)

    @property
    def speed(self) -> float:
        """Samples per second after, divided by those before."""
        return self.after.throughput / self.before.throughput if self.before.throughput else 1.0

    def freed(self, ipu: int) -> int:
        """Bytes on all tiles of an IPU."""
        return self.before.ipu(ipu).total - self.after.ipu(ipu).total

    def freed_on_tile(self, ipu: int) -> int:
        """Bytes on its fullest tile."""
        return self.before.ipu(ipu).peak_tile_bytes - self.after.ipu(ipu).peak_tile_bytes

    def effect(self, ipu: int | None = None) -> str:
        """What the changes bring, in figures."""
        speed = f"samples/s {self.speed - 1:+.1%}"
        if ipu is None:
            return speed if self.after.fits else f"{speed}, but it does not fit then"
        then, limit = self.after.ipu(ipu).peak_tile_bytes, self.after.ipu(ipu).limit
        freed, sign = self.freed(ipu), "−" if self.freed(ipu) >= 0 else "+"
        verdict = "it fits then" if self.after.fits else f"{byte_size(then)} of {byte_size(limit)} on the fullest tile"
        return f"{sign}{byte_size(abs(freed))}, {speed}, {verdict}"


class Trials:
    """Tries changes on an estimate, as many as the size of the model allows."""

    _WORK = 24_000
    """Operations, all trials together."""

    def __init__(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._left = max(4, min(40, self._WORK // max(1, estimate.operations)))

    def of(self, *together: Change) -> Tried | None:
        """What these changes bring; nothing if they cannot be made, or too much was tried already."""
        bench = self._estimate.bench
        if bench is None or not bench.is_open or self._left <= 0:
            return None
        self._left -= 1
        after = bench.attempt(*together)
        return None if after is None else Tried(together, self._estimate, after)

    def fastest(self, candidates: Iterable[Change]) -> Tried | None:
        """The change that brings most, if it brings anything and the model still fits."""
        found = [
            tried
            for change in candidates
            if (tried := self.of(change)) is not None
            and tried.speed > 1 + _LEAST_GAIN
            and (tried.after.fits or not self._estimate.fits)
        ]
        return max(found, key=lambda tried: tried.speed, default=None)


# -- memory ------------------------------------------------------------------------------------------------------------


def ways_to_fit(estimate: Estimate, trials: Trials) -> list[tuple[int, Tried]]:
    """What frees memory on an IPU that is too full, what frees most first; at last what it takes together."""
    found: list[tuple[int, Tried]] = []
    for ipu in estimate.ipus:
        if ipu.fits:
            continue
        tried = [it for change in changes.memory_changes(estimate, ipu.ipu) if (it := trials.of(change)) is not None]
        useful = sorted(
            (it for it in tried if it.freed_on_tile(ipu.ipu) > 0), key=lambda it: -it.freed_on_tile(ipu.ipu)
        )
        found += [(ipu.ipu, it) for it in useful]
        if useful and not any(it.after.fits for it in useful):
            together = _together(ipu.ipu, useful, trials)
            found += [] if together is None else [(ipu.ipu, together)]
    return found


def _together(ipu: int, useful: Sequence[Tried], trials: Trials) -> Tried | None:
    """The changes that free most, one after the other, as long as each of them helps."""
    best = useful[0]
    for other in useful[1:]:
        if best.after.fits or len(best.changes) == _TOGETHER:
            break
        tried = trials.of(*best.changes, *other.changes)
        if tried is not None and tried.freed_on_tile(ipu) > best.freed_on_tile(ipu):
            best = tried
    return best if len(best.changes) > 1 else None


def memory_findings(estimate: Estimate, trials: Trials) -> Iterator[Finding]:
    """What does not fit, or hardly; and what helps."""
    for ipu in estimate.ipus:
        share = ipu.peak_tile_bytes / ipu.limit
        largest = ", ".join(f"{name} ({what}, {byte_size(size)})" for name, what, size in ipu.blame(3))
        if not ipu.fits:
            over = f"{ipu.tiles_over:,} tiles are over {byte_size(ipu.limit)}" if ipu.tiles_over else (
                f"its code takes {byte_size(ipu.code_bytes)} of a tile, of {byte_size(ipu.code_limit)}"
            )  # fmt: skip
            yield Finding(
                PROBLEM, "out of memory", f"IPU {ipu.ipu} is out of memory",
                f"{over}; the fullest, tile {ipu.peak_tile}, needs {byte_size(ipu.peak_tile_bytes)}. "
                f"The largest then: {largest}.",
                tab="memory", ipu=ipu.ipu,
            )  # fmt: skip
        elif share > 0.9:
            yield Finding(
                HINT, "almost full", f"IPU {ipu.ipu} is almost full",
                f"Tile {ipu.peak_tile} uses {share:.0%} of its memory; a real compiler may need more than the model "
                f"expects. The largest then: {largest}.",
                tab="memory", ipu=ipu.ipu,
            )  # fmt: skip
        yield from _temporary(estimate, ipu.ipu, trials)
    for number, tried in estimate.ways_to_fit:
        yield Finding(
            HINT, "way to fit", f"A way to make IPU {number} fit" if tried.after.fits else f"Room on IPU {number}",
            f"{tried.text}.", tried.text, tried.effect(number), "memory", number,
        )  # fmt: skip


def _temporary(estimate: Estimate, number: int, trials: Trials) -> Iterator[Finding]:
    """One operation that needs much of a tile for itself."""
    ipu = estimate.ipu(number)
    life = ipu.liveness
    if not life.moments or life.temporary < 0.2 * ipu.peak_tile_bytes or ipu.peak_tile_bytes < 0.4 * ipu.limit:
        return
    moment = life.moments[life.peak]
    size = life.temporary * life.temporary_tiles
    tried = None
    if ipu.fits:
        for change in changes.proportions(estimate, larger=False):
            tried = trials.of(change)
            if tried is not None and tried.freed_on_tile(number) > 0:
                break
            tried = None
    layer = moment.scope.rpartition("/")[2]
    yield Finding(
        HINT, "temporary memory",
        f"{moment.name} needs {byte_size(size)} for itself",
        f"{moment.source or layer or 'The operation'}: {byte_size(life.temporary)} on each of {life.temporary_tiles:,} "
        f"tiles, beside its operands and results. That is {life.temporary / ipu.peak_tile_bytes:.0%} of the fullest "
        f"moment of IPU {number}.",
        "" if tried is None else tried.text, "" if tried is None else tried.effect(number),
        "liveness", number, moment.source, layer, moment.name,
    )  # fmt: skip


# -- all of them -------------------------------------------------------------------------------------------------------


def findings_of(estimate: Estimate) -> tuple[Finding, ...]:
    """Everything that stands out: problems first, then by the time that is at stake."""
    from poptorch.ipu_model.time_findings import time_findings

    trials = Trials(estimate)
    found = [
        *memory_findings(estimate, trials),
        *time_findings(estimate, trials),
        *_what_to_know(estimate),
    ]
    return tuple(
        sorted(
            found, key=lambda it: (LEVELS.index(it.level), it.kind != "temporary memory" or estimate.fits, -it.share)
        )
    )


def _what_to_know(estimate: Estimate) -> Iterator[Finding]:
    if estimate.uncovered_ops:
        names = ", ".join(f"{name} ({count})" for name, count in estimate.uncovered_ops.items())
        yield Finding(
            NOTE, "guess", "The cost of some operations is a guess", f"No rule covers {names}.", tab="operations"
        )
    for text in estimate.assumptions:
        yield Finding(NOTE, "assumption", "Assumed", f"{text[:1].upper()}{text[1:]}.")


__all__ = ["HINT", "LEVELS", "NOTE", "PROBLEM", "Finding", "Tried", "Trials", "findings_of", "ways_to_fit"]
