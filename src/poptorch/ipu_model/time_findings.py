"""What the time of a call is lost on: from the slowest stage to the user's line, and how far from the peak that is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from poptorch.ipu_model import changes
from poptorch.ipu_model.critical import CriticalPath, Line, critical_path
from poptorch.ipu_model.findings import HINT, NOTE, Finding, Trials, Tried
from poptorch.ipu_model.trials import Change

if TYPE_CHECKING:
    from poptorch.ipu_model.result import Estimate
    from poptorch.ipu_model.trials import Change

_HOT = 0.12
"""The share of the critical path from which on a line is named."""

_NEAR_PEAK = 0.45
"""Products that reach so much of their peak are as good as published ones."""

_LONG = 0.2
_WAITING = 0.1
_UNEVEN = 0.9
_LOW = 0.25
_FEW_TILES = 0.25


def time_findings(estimate: Estimate, trials: Trials) -> Iterator[Finding]:
    """All about time."""
    if not estimate.timeline.cycles:
        return
    path = critical_path(estimate)
    if path.cycles:
        yield from _lines(estimate, path)
        yield _roofline(estimate, path)
        yield from _precision(estimate, path, trials)
        yield from _few_tiles(estimate, path)
    yield from _uneven(estimate, path, trials)
    yield from _bubble(estimate, trials)
    yield from _resources(estimate, trials)


def _where(path: CriticalPath, estimate: Estimate) -> str:
    if estimate.flow.pipelined:
        return f"the slowest stage (IPU {path.ipus[0]})"
    return "a micro-batch"


def _lines(estimate: Estimate, path: CriticalPath, most: int = 3) -> Iterator[Finding]:
    """The lines that the critical path is longest in: stage, module, line, operation."""
    for line in path.lines()[:most]:
        share = line.cycles / path.cycles
        if share < _HOT:
            return
        name, cycles, count = line.operators[0]
        blocks = changes.listed(list(line.blocks)) if line.blocks else ""
        others = ", ".join(f"{other} {part / path.cycles:.0%}" for other, part, _ in line.operators[1:4])
        text = f"{line.source}" + (f" in {blocks}" if blocks else "") + f": {share:.0%}"
        text += f", of which {name} {cycles / path.cycles:.0%}" + (f" in {count} calls" if count > 1 else "")
        text += f"; {others}." if others else "."
        level, more = _judged(line)
        yield Finding(
            level, "hot line", f"{name} takes {cycles / path.cycles:.0%} of {_where(path, estimate)}",
            f"{text} {more}".strip(),
            tab="operations", ipu=path.ipus[0], source=line.source, layer=line.blocks[0] if line.blocks else "",
            operation=line.records[0].name, share=share * path.share,
        )  # fmt: skip


def _judged(line: Line) -> tuple[str, str]:
    """Whether a line could be faster, and what it waits for."""
    exchange = sum(r.cycles.exchange for r in line.records) / line.cycles
    sync = sum(r.cycles.sync for r in line.records) / line.cycles
    waits = [f"{what} {share:.0%}" for what, share in (("exchange", exchange), ("sync", sync)) if share > 0.15]
    waiting = f" Of its time: {', '.join(waits)}." if waits else ""
    if line.products > 0.5 * line.cycles:
        reached = line.ideal / line.products
        level = NOTE if reached >= _NEAR_PEAK else HINT
        return level, f"Its products reach {reached:.0%} of the peak of the matrix units for their types.{waiting}"
    return HINT, f"It multiplies no matrices: nothing of it runs in the matrix units.{waiting}"


def _roofline(estimate: Estimate, path: CriticalPath) -> Finding:
    """What the chip could do, what it does, and where the rest goes."""
    products = [(r, path.products[id(r)]) for r in path.records if id(r) in path.products]
    busy = sum(r.cycles.total for r, _ in products)
    ideal = sum(p.ideal for _, p in products)
    useful = sum(p.ideal for r, p in products if not r.info.recomputed)
    every = sum(
        path.products[id(r)].ideal
        for stage in estimate.stages for r in stage.operations
        if id(r) in path.products and not r.info.recomputed
    )  # fmt: skip
    loop = estimate.device.loop
    calls = loop.device_iterations * loop.gradient_accumulation
    reached = every * calls / (estimate.timeline.cycles * len(estimate.ipus))
    computing = sum(r.cycles.compute for r in path.records if id(r) not in path.products)
    spent = [
        ("products", busy),
        ("other computation", computing),
        ("exchange of it", sum(r.cycles.exchange for r in path.records if id(r) not in path.products)),
        ("sync of it", sum(r.cycles.sync for r in path.records if id(r) not in path.products)),
        ("host", sum(s.time.spent.on("host") for s in path.stages)),
        ("streaming memory", sum(s.time.spent.on("DDR") for s in path.stages)),
        ("links", sum(s.time.spent.on("link") for s in path.stages)),
    ]
    parts = ", ".join(f"{what} {cycles / path.cycles:.0%}" for what, cycles in spent if cycles > 0.01 * path.cycles)
    text = f"Of {_where(path, estimate)}: {parts}."
    if busy:
        types = {(p.dtype, p.partials) for _, p in products}
        names = ", ".join(sorted(f"{_name(a)} with partial sums in {_name(b)}" for a, b in types))
        text += f" The products ({names}) reach {ideal / busy:.0%} of the peak of the matrix units"
        text += f"; without recomputation, {useful / busy:.0%}." if useful < ideal else "."
        rest = 1 - (busy - ideal) / path.cycles
        text += f" At that peak, and with nothing else changed, the passes would take {rest:.0%} of the time."
    else:
        text += " Nothing runs in the matrix units."
    if estimate.bubble > 0.01:
        text += f" IPUs wait for each other {estimate.bubble:.0%} of the time."
    level = HINT if reached < _LOW else NOTE
    # What is lost is no gain that a single change could bring, so it comes after the findings that have a cause.
    return Finding(
        level, "roofline", f"The model reaches {reached:.1%} of the peak of the matrix units", text,
        tab="operations", ipu=path.ipus[0], share=1e-3,
    )  # fmt: skip


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _precision(estimate: Estimate, path: CriticalPath, trials: Trials) -> Iterator[Finding]:
    """Products in float32, or with partial sums in it, where half as many bits would do."""
    wide = sum(
        r.cycles.total for r in path.records if id(r) in path.products and path.products[id(r)].dtype is torch.float32
    )
    sums = sum(
        r.cycles.total
        for r in path.records
        if id(r) in path.products and path.products[id(r)].partials is torch.float32
    )
    if wide > _LONG * path.cycles:
        tried = trials.fastest(changes.half_model(estimate))
        if tried is not None:
            yield _tried(
                "precision", f"Products in float32 take {wide / path.cycles:.0%} of {_where(path, estimate)}",
                "In float16 the matrix units are two to four times as fast, and half as much moves between tiles.",
                tried, "operations", tried.speed,
            )  # fmt: skip
    elif sums > _LONG * path.cycles:
        tried = trials.fastest(changes.half_partials(estimate))
        if tried is not None:
            yield _tried(
                "partials", f"Partial sums in float32 slow {sums / path.cycles:.0%} of {_where(path, estimate)} down",
                "With partial sums in float16 the matrix units do twice as much. Look at the loss when you try it.",
                tried, "operations", tried.speed,
            )  # fmt: skip


def _tried(kind: str, title: str, text: str, tried: Tried, tab: str, speed: float) -> Finding:
    return Finding(HINT, kind, title, text, tried.text, tried.effect(), tab, share=1 - 1 / speed)


def _few_tiles(estimate: Estimate, path: CriticalPath) -> Iterator[Finding]:
    """Operations that leave most tiles idle."""
    few = [
        r for r in path.records
        if r.cycles.total and 0 < max((s.tiles for s in r.cost.steps), default=0) < _FEW_TILES * estimate.chip.tiles
    ]  # fmt: skip
    share = sum(r.cycles.total for r in few) / path.cycles
    named = {line.source for line in path.lines()[:3] if line.cycles > _HOT * path.cycles}
    if share > _LONG and sum(r.cycles.total for r in few if r.source not in named) > 0.5 * share * path.cycles:
        worst = sorted(few, key=lambda r: -r.cycles.total)[:3]
        names = ", ".join(f"{r.name} ({max(s.tiles for s in r.cost.steps)} tiles)" for r in worst)
        yield Finding(
            HINT, "few tiles", f"Small operations take {share:.0%} of {_where(path, estimate)}",
            f"They use less than {_FEW_TILES:.0%} of the tiles. The longest: {names}.",
            tab="operations", ipu=path.ipus[0], source=worst[0].source, operation=worst[0].name,
            share=0.5 * share * path.share,
        )  # fmt: skip


def _uneven(estimate: Estimate, path: CriticalPath, trials: Trials) -> Iterator[Finding]:
    """One stage takes longer than the others."""
    busy: dict[int, float] = {}
    for stage in estimate.stages:
        busy[stage.ipu] = busy.get(stage.ipu, 0.0) + stage.cycles
    if len(busy) < 2 or not estimate.flow.pipelined or not max(busy.values()):
        return
    slowest, fastest = max(busy, key=busy.__getitem__), min(busy, key=busy.__getitem__)
    balance = sum(busy.values()) / len(busy) / busy[slowest]
    if balance >= _UNEVEN:
        return
    tried = trials.fastest(changes.moved_blocks(estimate, slowest))
    yield Finding(
        HINT, "uneven stages", "The stages are uneven",
        f"IPU {slowest} works {busy[slowest]:,.0f} cycles on a micro-batch, IPU {fastest} only {busy[fastest]:,.0f}. "
        f"Even stages would be up to {1 / balance:.2f} times as fast."
        + ("" if tried is not None else " No move of a module to a neighbour makes it faster."),
        "" if tried is None else tried.text, "" if tried is None else tried.effect(), "pipeline", slowest,
        share=0.0 if tried is None else 1 - 1 / tried.speed,
    )  # fmt: skip


def _bubble(estimate: Estimate, trials: Trials) -> Iterator[Finding]:
    """A pipeline that is filled and drained too often, or no pipeline at all."""
    if estimate.bubble <= _WAITING or len(estimate.ipus) < 2:
        return
    title = f"IPUs wait for each other {estimate.bubble:.0%} of the time"
    if not estimate.flow.pipelined:
        yield Finding(
            HINT, "no pipeline", title,
            "The parts of the model run one after the other, and one IPU works at a time. With "
            "poptorch.PipelinedExecution, IPUs work on different micro-batches at the same time.",
            tab="pipeline", share=estimate.bubble,
        )  # fmt: skip
        return
    micro = changes.repeats_of(estimate)
    depth = max(estimate.flow.number(stage.time.slot) for stage in estimate.stages)
    tried = trials.fastest(changes.longer_rounds(estimate))
    yield Finding(
        HINT, "bubble", title,
        f"{depth} of the {micro + depth} pipeline cycles up to the next update fill or drain the pipeline.",
        "" if tried is None else tried.text, "" if tried is None else tried.effect(), "pipeline",
        share=0.0 if tried is None else 1 - 1 / tried.speed,
    )  # fmt: skip


_RESOURCES = {
    "sync": ("Tiles wait at sync points", "Each step ends with a sync, however little it does."),
    "exchange": ("Data moves between tiles", "Computation waits for exchanges."),
    "host": (
        "IPUs wait for the host",
        "Copies of inputs and outputs are limited by the link to the host. Types with fewer bits, such as bytes for "
        "images, and fewer outputs (outputMode) mean less to copy.",
    ),
    "link": ("IPUs wait for links", "Activations between IPUs, or gradients and weights of replicas, take long."),
    "DDR": ("IPUs wait for streaming memory", "Weights, optimizer state or stashes come from streaming memory."),
}


def _resources(estimate: Estimate, trials: Trials) -> Iterator[Finding]:
    """What is not computation, if it takes long."""
    spent = estimate.timeline.spent
    for key, (title, text) in _RESOURCES.items():
        share = spent.on(key) / spent.total
        if share <= _LONG:
            continue
        tried = trials.fastest(_against(estimate, key))
        yield Finding(
            HINT, key, f"{title}: {share:.0%} of the cycles", f"{text} {_limit(estimate, key)}".strip(),
            "" if tried is None else tried.text, "" if tried is None else tried.effect(), "trace", share=share,
        )  # fmt: skip


def _against(estimate: Estimate, key: str) -> Iterator[Change]:
    if key == "sync":
        yield from changes.larger_batches(estimate)
    elif key == "exchange":
        yield from changes.proportions(estimate, larger=True)
    elif key == "host":
        yield from changes.overlapped_copies(estimate)
        yield from changes.half_model(estimate)
    elif key == "link":
        yield from changes.longer_rounds(estimate)
    elif key == "DDR":
        yield from changes.state_on_chip(estimate)


def _limit(estimate: Estimate, key: str) -> str:
    chip = estimate.chip
    if key == "host":
        return f"The model assumes {chip.host_bandwidth / 1e9:g} GB/s for an IPU."
    if key == "link":
        return f"The model assumes {chip.link_bandwidth / 1e9:g} GB/s from IPU to IPU."
    return ""


__all__ = ["time_findings"]
