"""Estimates as text that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poptorch.figures import byte_size, columns, time_span
from poptorch.ipu_model.memory import IpuMemory

if TYPE_CHECKING:
    from poptorch.ipu_model.result import Estimate


def page(estimate: Estimate) -> str:
    """All figures of an estimate on a page."""
    blocks = [_headline(estimate), _time(estimate), _memory(estimate)]
    if not estimate.fits:
        blocks.append(_verdict(estimate))
    blocks.append(_findings(estimate))
    blocks.append(_assumptions(estimate))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _headline(estimate: Estimate) -> list[str]:
    device, loop = estimate.device, estimate.device.loop
    kind = "training" if device.settings.training else "inference"
    replicas = f"{estimate.replicas} × " if estimate.replicas > 1 else ""
    ipus = len(estimate.ipus)
    return [
        f"{kind} on {replicas}{ipus} {estimate.chip.name} IPU{'s' if ipus * estimate.replicas > 1 else ''} "
        f"({device.plan.ordering.value if ipus > 1 else 'one part'})",
        f"micro-batch {estimate.micro_batch}, accumulation {loop.gradient_accumulation}, "
        f"device iterations {loop.device_iterations}: {estimate.samples:,} samples a call",
    ]


def _time(estimate: Estimate) -> list[str]:
    timeline = estimate.timeline
    ipu_seconds = estimate.seconds * len(estimate.ipus) * estimate.replicas
    useful = estimate.flops / ipu_seconds / 1e12 if ipu_seconds else 0.0
    lines = [
        f"throughput   {estimate.throughput:,.1f} samples/s",
        f"latency      {time_span(estimate.latency)} for a micro-batch",
        f"one call     {time_span(estimate.seconds)}, {estimate.cycles:,} cycles",
        f"bound by     {estimate.bound_by}: " + ", ".join(_shares(estimate)),
        f"useful work  {useful:.1f} TFLOPS an IPU",
    ]
    if len(estimate.ipus) > 1:
        lines.append(f"bubbles      {estimate.bubble:.1%} of the time, IPUs wait for each other")
    if timeline.updates:
        lines.append(f"update       {time_span(estimate.chip.seconds(timeline.update))}, {timeline.updates} a call")
    if len(estimate.stages) > 1:
        lines.append("")
        passes = [(stage.label, str(stage.ipu), f"{stage.cycles:,.0f}") for stage in estimate.stages]
        lines += columns([("pass", "IPU", "cycles"), *passes], "<>>", (24, 3, 14), gap=1)
    return lines


def _shares(estimate: Estimate) -> list[str]:
    spent = estimate.timeline.spent
    ranked = sorted(spent.by.items(), key=lambda item: -item[1])
    return [f"{key} {cycles / spent.total:.0%}" for key, cycles in ranked if cycles > 0.005 * spent.total]


def _memory(estimate: Estimate) -> list[str]:
    rows = [["memory", *(f"IPU {ipu.ipu}" for ipu in estimate.ipus)]]
    for name in dict.fromkeys(name for ipu in estimate.ipus for name in ipu.by_category):
        rows.append([name, *(byte_size(ipu.memory.get(name, 0)) for ipu in estimate.ipus)])
    rows.append(["all tiles", *(byte_size(ipu.total) for ipu in estimate.ipus)])
    rows.append(["fullest tile", *(byte_size(ipu.peak_tile_bytes) for ipu in estimate.ipus)])
    limit = f"of {byte_size(estimate.chip.memory_per_tile)}"
    rows.append([limit, *(f"{ipu.peak_tile_bytes / ipu.limit:.0%}" for ipu in estimate.ipus)])
    return columns(rows, "<" + ">" * len(estimate.ipus), (28, *(10 for _ in estimate.ipus)))


def _verdict(estimate: Estimate) -> list[str]:
    return [line for ipu in estimate.ipus if not ipu.fits for line in verdict(ipu)]


def _findings(estimate: Estimate) -> list[str]:
    """What stands out beside what the other blocks say already."""
    return [
        str(finding) for finding in estimate.findings if finding.kind not in ("out of memory", "guess", "assumption")
    ]


def verdict(ipu: IpuMemory) -> list[str]:
    """What does not fit on an IPU, and which tensors are to blame."""
    if ipu.peak_tile_bytes <= ipu.limit:
        return [f"IPU {ipu.ipu} is out of memory for code: {ipu.code_bytes:,} bytes, of {ipu.code_limit:,} on a tile"]
    lines = [
        f"IPU {ipu.ipu} is out of memory: tile {ipu.peak_tile} needs {ipu.peak_tile_bytes:,} bytes of {ipu.limit:,}; "
        f"{ipu.tiles_over} tiles are over the limit. The largest tensors then:"
    ]
    lines += [f"  {byte_size(size):>10}  {name} ({what})" for name, what, size in ipu.blame(5)]
    return lines


def _assumptions(estimate: Estimate) -> list[str]:
    lines = [f"assumed: {text}" for text in estimate.assumptions]
    if estimate.uncovered_ops:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(estimate.uncovered_ops.items()))
        lines.append(f"guessed, for want of a rule: {names}")
    return lines


def comparison_text(one: Estimate, other: Estimate) -> str:
    """Two estimates side by side, with the change from the first to the second."""
    rows = [
        ("throughput (samples/s)", one.throughput, other.throughput),
        ("latency (ms)", one.latency * 1e3, other.latency * 1e3),
        ("cycles of a call", float(one.cycles), float(other.cycles)),
        ("samples of a call", float(one.samples), float(other.samples)),
        ("fullest tile (KiB)", _fullest(one), _fullest(other)),
        ("bubbles (%)", 100 * one.bubble, 100 * other.bubble),
    ]
    lines = [["", "this", "other", "change"]]
    for name, first, second in rows:
        change = f"{second / first - 1:+.1%}" if first else ""
        lines.append([name, f"{first:,.2f}", f"{second:,.2f}", change])
    lines.append(["fits", "yes" if one.fits else "no", "yes" if other.fits else "no", ""])
    lines.append(["bound by", one.bound_by, other.bound_by, ""])
    return "\n".join(columns(lines, "<>>>", (24, 16, 16, 8), gap=1))


def _fullest(estimate: Estimate) -> float:
    return max(ipu.peak_tile_bytes for ipu in estimate.ipus) / 1024


__all__ = ["comparison_text", "page", "verdict"]
