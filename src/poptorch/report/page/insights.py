"""What to do next, computed from a profile: problems first, then what is worth a change, then what to know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from poptorch.figures import byte_size
from poptorch.report.files import Profile, Table

PROBLEM, HINT, NOTE = "problem", "hint", "note"
_ORDER = (PROBLEM, HINT, NOTE)

_FULL, _ROOMY = 0.9, 0.5
"""Shares of a tile's memory: almost full, and half empty."""

_LONG = 0.2
"""The share of the cycles above which something other than computing is worth a change."""

_WAITING = 0.1
_UNEVEN = 0.85
_FEW_TILES = 0.25


@dataclass(frozen=True)
class Insight:
    """A finding: what it is, the figures it rests on, what can be done, and the tab that shows more."""

    level: str
    title: str
    text: str
    action: str = ""
    tab: str = ""


def insights_of(profile: Profile, operations: Table) -> list[Insight]:
    """All findings, the most urgent ones first; ``operations`` has the columns ``runs``, ``tiles`` and ``tile_use``."""
    document = profile.document
    found = [
        *_memory(document),
        *_suggestions(document),
        *_tile_balance(profile),
        *_pipeline(document),
        *_time(document),
        *_operations(document, operations),
        *_measured(document),
        *_guesses(document),
    ]
    return sorted(found, key=lambda insight: _ORDER.index(insight.level))


# -- memory --------------------------------------------------------------------------------------------------------


def _memory(document: dict[str, Any]) -> Iterator[Insight]:
    limit = document["target"]["bytesPerTile"]
    for ipu in document["memory"]["ipus"]:
        largest = ", ".join(f"{it['name']} ({byte_size(it['bytes'])})" for it in ipu["largest"][:3])
        share = ipu["maxTileBytes"] / limit
        if not ipu["fits"]:
            yield Insight(
                PROBLEM,
                f"IPU {ipu['ipu']} is out of memory",
                f"{ipu['tilesOverLimit']:,} tiles are over {byte_size(limit)}; the fullest, tile {ipu['maxTile']}, "
                f"needs {byte_size(ipu['maxTileBytes'])}. The largest tensors then: {largest}.",
                "Take one of the suggestions below, or look for large tensors at the peak of the liveness curve.",
                "memory",
            )
        elif share > _FULL:
            yield Insight(
                HINT,
                f"IPU {ipu['ipu']} is almost full",
                f"Tile {ipu['maxTile']} uses {share:.0%} of its memory. The largest tensors then: {largest}.",
                "A real compiler may need more than the model expects: leave some room.",
                "memory",
            )


def _suggestions(document: dict[str, Any]) -> Iterator[Insight]:
    for text in document["estimate"]["suggestions"]:
        where, _, change = text.partition(": ")
        change, _, effect = change.rpartition(": ")
        yield Insight(
            HINT, f"A way to make {where} fit", f"Effect on the memory of {where}: {effect}.", change, "memory"
        )


def _tile_balance(profile: Profile) -> Iterator[Insight]:
    target = profile.document["target"]
    tiles = target["tilesPerIpu"]
    used = np.sum(list(profile.tables["tiles"].values()), axis=0)
    for place, ipu in enumerate(profile.document["memory"]["ipus"]):
        on_tiles = used[place * tiles : (place + 1) * tiles]
        mean, most = float(on_tiles.mean()), float(on_tiles.max())
        if most > _ROOMY * target["bytesPerTile"] and mean < _ROOMY * most:
            yield Insight(
                HINT,
                f"Memory of IPU {ipu['ipu']} is uneven",
                f"The fullest tile has {byte_size(most)}, the mean is {byte_size(mean)}.",
                "See which tensors are on the fullest tile: choose it in the chart of tiles.",
                "memory",
            )


# -- time ----------------------------------------------------------------------------------------------------------


def _pipeline(document: dict[str, Any]) -> Iterator[Insight]:
    estimate = document["estimate"]
    busy: dict[int, float] = {}
    for stage in estimate["stages"]:
        busy[stage["ipu"]] = busy.get(stage["ipu"], 0.0) + stage["cycles"]
    if len(busy) < 2 or not max(busy.values()):
        return
    slowest, fastest = max(busy, key=busy.__getitem__), min(busy, key=busy.__getitem__)
    balance = sum(busy.values()) / len(busy) / busy[slowest]
    pipelined = estimate.get("round", {}).get("pipelined", False)
    if pipelined and balance < _UNEVEN:
        yield Insight(
            HINT,
            "The stages are uneven",
            f"IPU {slowest} works {busy[slowest]:,.0f} cycles on a micro-batch, IPU {fastest} only "
            f"{busy[fastest]:,.0f}. Even stages would be up to {1 / balance:.2f} times as fast.",
            f"Move layers from IPU {slowest} towards IPU {fastest} (poptorch.BeginBlock), or let "
            "poptorch.ipu_model.autoPipeline find the splits.",
            "pipeline",
        )
    if estimate["bubble"] > _WAITING:
        yield Insight(HINT, *_bubble(document, pipelined, balance), "pipeline")


def _bubble(document: dict[str, Any], pipelined: bool, balance: float) -> tuple[str, str, str]:
    title = f"IPUs wait for each other {document['estimate']['bubble']:.0%} of the time"
    if not pipelined:
        return (
            title,
            "The parts of the model run one after the other, and one IPU works at a time.",
            "Use poptorch.PipelinedExecution, so that IPUs work on different micro-batches at the same time.",
        )
    micro = document["estimate"]["round"]["microBatches"]
    stages = len(document["estimate"]["stages"])
    depth = max(1, stages - 2) if document["training"] else stages - 1
    more = "gradientAccumulation" if document["training"] else "deviceIterations"
    return (
        title,
        f"{depth} of the {micro + depth} pipeline cycles up to the next update fill or drain the pipeline. In the "
        f"others, uneven stages wait {1 - balance:.0%} of the time.",
        f"With {more}({micro * 4}) it would be {depth} of {micro * 4 + depth}.",
    )


def _time(document: dict[str, Any]) -> Iterator[Insight]:
    spent = document["estimate"]["cyclesByResource"]
    total = sum(spent.values())
    if not total:
        return
    fullest = max(ipu["maxTileBytes"] for ipu in document["memory"]["ipus"]) / document["target"]["bytesPerTile"]
    roomy = f" The fullest tile uses {fullest:.0%} of its memory: there is room." if fullest < _ROOMY else ""
    advice = {
        "sync": (
            "Tiles wait at sync points",
            f"Each program ends with a sync, however little it does.{roomy}",
            f"Use larger micro-batches than {document['loop']['microBatch']}: more work between two syncs.",
        ),
        "exchange": (
            "Data moves between tiles",
            "Computation waits for exchanges.",
            "More memory for matrix multiplications and convolutions makes better plans: see "
            "options.setAvailableMemoryProportion.",
        ),
        "host": (
            "IPUs wait for the host",
            "Inputs and outputs of a call take long, compared with the computation.",
            "Use more deviceIterations, fewer outputs (outputMode), smaller types of inputs, or overlap with "
            "options.TensorLocations.numIOTiles and poptorch.set_overlap_for_input.",
        ),
        "link": (
            "IPUs wait for links",
            "Activations between IPUs, or gradients of replicas, take long.",
            "Cut the model where activations are small; more gradientAccumulation means fewer collectives.",
        ),
        "DDR": (
            "IPUs wait for streaming memory",
            "Weights, optimizer state or stashes come from streaming memory.",
            "Keep on the chip what fits (options.TensorLocations), or do more micro-batches for each transfer.",
        ),
    }
    for key, (title, text, action) in advice.items():
        share = spent.get(key, 0.0) / total
        if share > _LONG:
            yield Insight(HINT, f"{title}: {share:.0%} of the cycles", text, action, "trace")


def _operations(document: dict[str, Any], operations: Table) -> Iterator[Insight]:
    if "cycles" not in operations or not len(operations["cycles"]):
        return
    weight = operations["cycles"] * operations["runs"]
    total = float(weight.sum())
    if not total:
        return
    layers, index = np.unique(operations["layer"], return_inverse=True)
    by_layer = np.bincount(index, weight, len(layers))
    top = int(by_layer.argmax())
    name = str(layers[top]).rpartition("/")[2]
    if len(layers) > 2 and name and by_layer[top] > _LONG * total:
        yield Insight(
            NOTE, f"{name} takes {by_layer[top] / total:.0%} of the operations' cycles",
            "No other module takes as long.", "Begin there.", "operations",
        )  # fmt: skip
    tiles = document["target"]["tilesPerIpu"]
    few = (operations["tiles"] > 0) & (operations["tiles"] < _FEW_TILES * tiles)
    share = float(weight[few].sum()) / total
    if share > _LONG:
        worst = np.argsort(-np.where(few, weight, 0), kind="stable")[:3]
        names = ", ".join(f"{operations['name'][row]} ({operations['tiles'][row]} tiles)" for row in worst)
        yield Insight(
            HINT, f"Small operations take {share:.0%} of the operations' cycles",
            f"They use less than {_FEW_TILES:.0%} of the tiles. The longest: {names}.",
            "Larger micro-batches, or one larger operation instead of many small ones, keep more tiles busy.",
            "operations",
        )  # fmt: skip


# -- what to know --------------------------------------------------------------------------------------------------


def _measured(document: dict[str, Any]) -> Iterator[Insight]:
    runs = document["execution"]["runs"]
    if runs:
        mean = sum(run["seconds"] for run in runs) / len(runs)
        yield Insight(
            NOTE, f"A call took {mean * 1e3:,.1f} ms on this host",
            f"The IPU Model expects {document['estimate']['seconds'] * 1e3:,.3f} ms on IPUs. Times of this host say "
            "nothing about IPUs.", tab="host",
        )  # fmt: skip


def _guesses(document: dict[str, Any]) -> Iterator[Insight]:
    guessed = document["estimate"]["uncoveredOps"]
    if guessed:
        names = ", ".join(f"{name} ({count})" for name, count in guessed.items())
        yield Insight(NOTE, "The cost of some operations is a guess", f"No rule covers {names}.", tab="operations")
    for text in document["estimate"]["assumptions"]:
        yield Insight(NOTE, "Assumed", f"{text[:1].upper()}{text[1:]}.")


__all__ = ["HINT", "NOTE", "PROBLEM", "Insight", "insights_of"]
