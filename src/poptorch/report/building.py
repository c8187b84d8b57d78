"""From an estimate of the IPU Model to a profile."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from poptorch._version import __version__
from poptorch.ipu_model import Estimate
from poptorch.ipu_model.memory import IpuMemory
from poptorch.options.engine import is_true
from poptorch.report.categories import COMING, GAPS, TEMPORARY
from poptorch.report.files import FORMAT, VERSION, Profile, Rows, Table
from poptorch.report.jobs import jobs_of, round_length
from poptorch.report.tree import Tree

ALWAYS = -1
"""The first and the last step of what is always live."""


def build_profile(estimate: Estimate, name: str, settings: Mapping[str, str]) -> Profile:
    """The profile of a compiled model; ``settings`` are the engine options that say what goes in."""
    tables = Tree(estimate).tables()
    if not is_true(settings, "profiler.includeFlopEstimates", True):
        del tables["operations"]["flops"]
    if not is_true(settings, "profiler.includeCycleEstimates", True):
        for column in ("cycles", "compute", "exchange", "sync"):
            del tables["operations"][column]
        for column in ("cycles", "inside", "tile_cycles", "total_cycles"):
            tables["programs"][column][:] = 0.0
    else:
        tables["jobs"] = jobs_of(estimate)
    lines: frozenset[str] = frozenset()
    if not is_true(settings, "autoReport.outputDebugInfo", True):
        lines = frozenset(tables["operations"].pop("source").tolist()) - {""}
    tables["tiles"] = _tiles(estimate)
    tables["liveness"] = _liveness(estimate, tables["operations"])
    if is_true(settings, "autoReport.outputLoweredVars", True):
        tables["variables"] = _variables(estimate)
    return Profile(_without(lines, _document(estimate, name, settings, tables)), tables)


def _without(lines: frozenset[str], part: Any) -> Any:
    """The same without the user's lines, wherever a text names them."""
    if not lines:
        return part
    if isinstance(part, dict):
        return {key: _without(lines, value) for key, value in part.items()}
    if isinstance(part, list):
        return [_without(lines, value) for value in part]
    if isinstance(part, str):
        for line in sorted(lines, key=len, reverse=True):
            part = part.replace(line, "a line")
    return part


def _document(
    estimate: Estimate, name: str, settings: Mapping[str, str], tables: Mapping[str, Table]
) -> dict[str, Any]:
    loop = estimate.device.loop
    return {
        "format": FORMAT,
        "version": VERSION,
        "about": "Figures of the IPU Model and times measured on this host. Not in the format of Poplar's profiles.",
        "model": name,
        "training": estimate.device.settings.training,
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {"poptorch": __version__, "torch": str(torch.__version__)},
        "engineOptions": dict(settings),
        "target": _target(estimate),
        "graph": _graph(tables),
        "loop": {
            "deviceIterations": loop.device_iterations,
            "gradientAccumulation": loop.gradient_accumulation,
            "replicas": estimate.replicas,
            "microBatch": estimate.micro_batch,
        },
        "memory": {
            "vertexData": int((tables["vertices"]["total"] * tables["vertices"]["state_bytes"]).sum()),
            "ipus": [_memory(ipu) for ipu in estimate.ipus],
        },
        "estimate": _figures(estimate),
        "execution": {"programRunCount": 0, "runs": []},
    }


def _target(estimate: Estimate) -> dict[str, Any]:
    chip, per_replica = estimate.chip, len(estimate.ipus)
    return {
        "architecture": chip.name,
        "numIPUs": per_replica * estimate.replicas,
        "numReplicas": estimate.replicas,
        "ipusPerReplica": per_replica,
        "tilesPerIpu": chip.tiles,
        "ioTiles": estimate.device.settings.io_tiles,
        "numTiles": chip.tiles * per_replica,
        "bytesPerTile": chip.memory_per_tile,
        "totalMemory": chip.memory * per_replica,
        "clockFrequencyInHz": chip.clock,
        "syncCycles": chip.sync_cycles,
    }


def _graph(tables: Mapping[str, Table]) -> dict[str, int]:
    types = tables["programs"]["type"]
    return {
        "numVertices": int(tables["vertices"]["total"].sum()),
        "numVars": len(tables["variables"]["name"]) if "variables" in tables else 0,
        "numComputeSets": int((types == "OnTileExecute").sum()),
        "numExchanges": int((types == "DoExchange").sum()),
        "numOperations": len(tables["operations"]["name"]),
    }


def _memory(ipu: IpuMemory) -> dict[str, Any]:
    by_category = ipu.memory
    gaps, coming = by_category.get(GAPS, 0), by_category.get(COMING, 0)
    return {
        "ipu": ipu.ipu,
        "includingGaps": ipu.total,
        "excludingGaps": ipu.total - gaps,
        "alwaysLive": ipu.total - gaps - coming,
        "notAlwaysLive": coming,
        "maxTile": ipu.peak_tile,
        "maxTileBytes": ipu.peak_tile_bytes,
        "tilesOverLimit": ipu.tiles_over,
        "maxTileCodeBytes": ipu.code_bytes,
        "fits": ipu.fits,
        "byCategory": by_category,
        "largest": [{"name": name, "what": what, "bytes": size} for name, what, size in ipu.blame()],
    }


def _figures(estimate: Estimate) -> dict[str, Any]:
    timeline = estimate.timeline
    return {
        "cycles": estimate.cycles,
        "seconds": estimate.seconds,
        "samples": estimate.samples,
        "throughput": estimate.throughput,
        "latency": estimate.latency,
        "bubble": estimate.bubble,
        "boundBy": estimate.bound_by,
        "fits": estimate.fits,
        "flops": estimate.flops,
        "cyclesByResource": {key: float(cycles) for key, cycles in timeline.spent.by.items()},
        "updateCycles": timeline.update,
        "updates": timeline.updates,
        "round": {
            "cycles": sum(count * cycles for count, cycles in timeline.ticks),
            "microBatches": round_length(estimate),
            "pipelined": estimate.flow.pipelined,
        },
        "stages": [
            {
                "label": stage.label,
                "ipu": stage.ipu,
                "cycles": stage.cycles,
                "flops": stage.time.flops,
                "cyclesByResource": {key: float(cycles) for key, cycles in stage.time.spent.by.items()},
            }
            for stage in estimate.stages
        ],
        "suggestions": estimate.suggestions(),
        "findings": [finding.to_dict() for finding in estimate.findings],
        "assumptions": list(estimate.assumptions),
        "uncoveredOps": dict(estimate.uncovered_ops),
    }


def _tiles(estimate: Estimate) -> Table:
    """Bytes by category (columns) of every tile (rows) of every IPU; tiles for input and output come last on an IPU."""
    tiles = estimate.chip.tiles
    names = list(dict.fromkeys(name for ipu in estimate.ipus for name in ipu.by_category))
    table: Table = {name: np.zeros(tiles * len(estimate.ipus)) for name in names}
    for place, ipu in enumerate(estimate.ipus):
        for name, on_tiles in ipu.by_category.items():
            table[name][place * tiles : place * tiles + len(on_tiles)] = on_tiles
    return table


def _liveness(estimate: Estimate, operations: Table) -> Table:
    steps = Rows(ipu=int, name=str, layer=str, bytes=float, operation=int, temporary=float, tiles=int)
    records = {int(step): row for row, step in enumerate(operations["liveness_step"]) if step >= 0}
    for place, ipu in enumerate(estimate.ipus):
        for moment in ipu.liveness.moments:
            steps.add(
                ipu=place, name=moment.name, layer=moment.scope, bytes=moment.bytes,
                operation=records.get(len(steps), -1), temporary=moment.temporary, tiles=moment.tiles,
            )  # fmt: skip
    return steps.table()


def _variables(estimate: Estimate) -> Table:
    """Tensors on tiles, and what operations need for themselves.

    Steps count the liveness steps of all IPUs; ``ALWAYS`` stands for all of them.
    """
    found = Rows(
        name=str, category=str, layer=str, ipu=int, bytes=float, first_tile=int, tiles=int, tile_bytes=float,
        first_step=int, last_step=int,
    )  # fmt: skip
    offset = 0
    for place, ipu in enumerate(estimate.ipus):
        for tensor in ipu.tensors:
            found.add(
                name=tensor.name, category=tensor.category, layer="", ipu=place, bytes=tensor.bytes,
                first_tile=tensor.span.first, tiles=tensor.span.tiles, tile_bytes=tensor.span.share,
                first_step=ALWAYS, last_step=ALWAYS,
            )  # fmt: skip
        for value in ipu.liveness.values:
            found.add(
                name=value.name, category=COMING, layer=value.scope, ipu=place, bytes=value.bytes,
                first_tile=value.span.first, tiles=value.span.tiles, tile_bytes=value.span.share,
                first_step=offset + max(0, value.first),
                last_step=offset + min(value.last, len(ipu.liveness.moments) - 1),
            )  # fmt: skip
        for step, moment in enumerate(ipu.liveness.moments, offset):
            if moment.temporary:
                found.add(
                    name=moment.name, category=TEMPORARY, layer=moment.scope, ipu=place,
                    bytes=moment.temporary * moment.tiles, first_tile=0, tiles=moment.tiles,
                    tile_bytes=moment.temporary, first_step=step, last_step=step,
                )  # fmt: skip
        offset += len(ipu.liveness.moments)
    return found.table()


__all__ = ["ALWAYS", "build_profile"]
