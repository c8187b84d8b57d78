"""Profiles of any size, made up: as large as those of models that nobody compiles in a test."""

from __future__ import annotations

from typing import Any

import numpy as np

from poptorch.report.files import FORMAT, VERSION, Profile, Rows, Table

CATEGORIES = (
    "weights", "accumulators", "optimizer state", "stashes", "stack", "control code", "host exchange code",
    "exchange code",
    "vertex state", "vertex code", "activations and temporaries", "gaps",
)  # fmt: skip
CLOCK = 1.33e9
MICRO_BATCHES = 32
STEPS = 3
"""Pairs of an exchange and a computation in an operation."""


def synthetic_profile(ipus: int = 16, tiles: int = 1472, operations: int = 5000, variables: int = 10_000) -> Profile:
    """A pipelined training model with one stage an IPU; half of the operations are those of backward passes."""
    random = np.random.default_rng(0)
    stages = [(f"forward of part {i}", i) for i in range(ipus)]
    stages += [(f"backward of part {i}", i) for i in reversed(range(ipus))]
    tables = _programs(random, stages, operations)
    # A staircase with some noise, as real ones: code is the same on many tiles.
    tables["tiles"] = {
        name: np.floor(random.random((ipus * tiles + 99) // 100).repeat(100)[: ipus * tiles] * 20_000)
        + random.integers(0, 64, ipus * tiles)
        for name in CATEGORIES
    }
    steps = _liveness(tables["operations"])
    tables["liveness"] = steps
    tables["variables"] = _variables(random, variables, ipus, tiles, steps)
    tables["jobs"] = _jobs(stages, ipus)
    tables["spans"] = _spans(stages)
    tables["vertices"] = {"program": np.zeros(1, int), "type": np.array(["matmul"]), "total": np.array([1]),
                          "state_bytes": np.array([16]), "per_tile": np.array([1]),
                          "code_bytes": np.array([100])}  # fmt: skip
    return Profile(_document(tables, stages, ipus, tiles), tables)


def _programs(random: np.random.Generator, stages: list[tuple[str, int]], operations: int) -> dict[str, Table]:
    programs = Rows(
        type=str, name=str, parent=int, ipu=int, operation=int, repeat=int, cycles=float, tile_cycles=float,
        total_cycles=float, tiles=int, exchange_bytes=float, code_bytes=float, control_bytes=float,
    )  # fmt: skip
    ops = Rows(
        name=str, operator=str, layer=str, source=str, sweep=str, stage=str, ipu=int, recomputed=bool, covered=bool,
        compute=float, exchange=float, sync=float, cycles=float, flops=float, bytes=float, first_program=int,
        last_program=int, liveness_step=int,
    )  # fmt: skip

    def node(kind: str, name: str, parent: int, **more: Any) -> int:
        empty = dict.fromkeys(("cycles", "tile_cycles", "total_cycles", "tiles", "exchange_bytes"), 0)
        chosen = {**empty, "ipu": -1, "operation": -1, "repeat": 1, "code_bytes": 0, "control_bytes": 0, **more}
        return programs.add(type=kind, name=name, parent=parent, **chosen)

    call = node("Sequence", "call", -1)
    iterations = node("Repeat", "device iterations", call)
    micro = node("Repeat", "micro-batches", iterations, repeat=MICRO_BATCHES)
    numbers = random.integers(200, 5000, (operations, STEPS, 2))
    for (stage, ipu), those in zip(stages, np.array_split(np.arange(operations), len(stages)), strict=True):
        top = node("Sequence", stage, micro, ipu=ipu)
        for number in those.tolist():
            layer = f"layers.{number // 40}/layers.{number // 40}.{('attention', 'norm', 'dense')[number % 3]}"
            first = node("Sequence", f"op_{number}", top, ipu=ipu, operation=number)
            for exchange, compute in numbers[number].tolist():
                share = {"ipu": ipu, "operation": number, "tiles": 1472}
                node("DoExchange", "rearrange", first, cycles=exchange, exchange_bytes=exchange * 64, **share)
                node("OnTileExecute", "multiply", first, cycles=compute + 100, tile_cycles=compute,
                     total_cycles=compute * 1000, code_bytes=372, **share)  # fmt: skip
            exchange, compute = numbers[number].sum(0).tolist()
            ops.add(
                name=f"op_{number}", operator=("aten.mm.default", "aten.add.Tensor", "aten.gelu.default")[number % 3],
                layer=layer, source=f"/home/user/model.py:{number % 300}",
                sweep="bwd" if "backward" in stage else "fwd",
                stage=stage, ipu=ipu, recomputed=False, covered=True, compute=compute, exchange=exchange, sync=300,
                cycles=exchange + compute + 300, flops=compute * 1e4, bytes=exchange * 1e3, first_program=first,
                last_program=first + 2 * STEPS, liveness_step=-1,
            )  # fmt: skip
    return {"programs": programs.table(), "operations": ops.table()}


def _liveness(operations: Table) -> Table:
    """Steps are those of the operations, IPU by IPU."""
    order = np.argsort(operations["ipu"], kind="stable")
    operations["liveness_step"][order] = np.arange(len(order))
    size = np.abs(np.sin(np.arange(len(order)) / 50)) * 2e8
    return {
        "ipu": operations["ipu"][order], "name": operations["name"][order], "layer": operations["layer"][order],
        "bytes": np.floor(size), "operation": order, "temporary": np.zeros(len(order)),
        "tiles": np.zeros(len(order), int),
    }  # fmt: skip


def _variables(random: np.random.Generator, count: int, ipus: int, tiles: int, steps: Table) -> Table:
    number = np.arange(count)
    ipu = number % ipus
    of_ipu = np.bincount(steps["ipu"], minlength=ipus)
    first = (np.cumsum(of_ipu) - of_ipu)[ipu] + random.integers(0, max(1, int(of_ipu.min()) - 20), count)
    always = (number // ipus) % 2 == 0
    return {
        "name": np.char.add("layers.tensor_", number.astype(str)),
        "category": np.where(always, "weights", "activations and temporaries"),
        "layer": np.char.add("layers.", (number // 40).astype(str)),
        "ipu": ipu, "bytes": random.integers(64, 5_000_000, count).astype(float),
        "first_tile": random.integers(0, tiles, count), "tiles": random.integers(1, tiles, count),
        "tile_bytes": random.integers(1, 4000, count).astype(float),
        "first_step": np.where(always, -1, first), "last_step": np.where(always, -1, first + 20),
    }  # fmt: skip


def _jobs(stages: list[tuple[str, int]], ipus: int) -> Table:
    jobs = Rows(stage=str, ipu=int, micro=int, tick=int, start=float, cycles=float)
    for number, (stage, ipu) in enumerate(stages):
        for micro in range(MICRO_BATCHES):
            backward = stage.startswith("backward")
            jobs.add(stage=stage, ipu=ipu, micro=micro, tick=micro + number,
                     start=(micro + number) * 1e6 + 4e5 * backward,
                     cycles=5e5 if backward else 4e5)  # fmt: skip
    for ipu in range(ipus):
        jobs.add(
            stage="weight update", ipu=ipu, micro=-1, tick=-1, start=(MICRO_BATCHES + len(stages)) * 1e6, cycles=2e5
        )
    return jobs.table()


def _spans(stages: list[tuple[str, int]]) -> Table:
    spans = Rows(run=int, kind=str, part=int, micro=int, replica=int, worker=int, start=float, end=float, label=str)
    for run in range(2):
        for number, (stage, ipu) in enumerate(stages):
            for micro in range(MICRO_BATCHES):
                start = (micro + number) * 1e-3
                spans.add(run=run, kind=stage.split()[0], part=ipu, micro=micro, replica=0, worker=ipu % 2, start=start,
                          end=start + 9e-4, label="")  # fmt: skip
    return spans.table()


def _document(tables: dict[str, Table], stages: list[tuple[str, int]], ipus: int, tiles: int) -> dict[str, Any]:
    memory = []
    for ipu in range(ipus):
        rows = slice(ipu * tiles, (ipu + 1) * tiles)
        by_category = {name: int(values[rows].sum()) for name, values in tables["tiles"].items()}
        on_tiles = sum(values[rows] for values in tables["tiles"].values())
        total, gaps, coming = sum(by_category.values()), by_category["gaps"], by_category["activations and temporaries"]
        memory.append({
            "ipu": ipu, "includingGaps": total, "excludingGaps": total - gaps, "alwaysLive": total - gaps - coming,
            "notAlwaysLive": coming, "maxTile": int(np.argmax(on_tiles)), "maxTileBytes": int(np.max(on_tiles)),
            "tilesOverLimit": 0, "maxTileCodeBytes": 40_000, "fits": True, "byCategory": by_category,
            "largest": [{"name": "layers.tensor_0", "what": "weights", "bytes": 1_000_000}],
        })  # fmt: skip
    cycles = (MICRO_BATCHES + len(stages)) * 1e6
    share = {"compute": 0.6, "exchange": 0.25, "sync": 0.1, "host": 0.03, "link": 0.02, "DDR": 0.0}
    spent = {key: part * cycles for key, part in share.items()}
    return {
        "format": FORMAT, "version": VERSION, "about": "made up", "model": "synthetic", "training": True,
        "created": "2026-01-01T12:00:00+00:00", "versions": {"poptorch": "0", "torch": "0"}, "engineOptions": {},
        "target": {
            "architecture": "mk2", "numIPUs": ipus, "numReplicas": 1, "ipusPerReplica": ipus, "tilesPerIpu": tiles,
            "ioTiles": 0, "numTiles": ipus * tiles, "bytesPerTile": 638_976, "totalMemory": 638_976 * tiles * ipus,
            "clockFrequencyInHz": CLOCK, "syncCycles": 100,
        },
        "graph": {"numVertices": 10, "numVars": len(tables["variables"]["name"]), "numComputeSets": 10,
                  "numExchanges": 10, "numOperations": len(tables["operations"]["name"])},
        "loop": {"deviceIterations": 1, "gradientAccumulation": MICRO_BATCHES, "replicas": 1, "microBatch": 4},
        "memory": {"vertexData": 0, "ipus": memory},
        "estimate": {
            "cycles": cycles, "seconds": cycles / CLOCK, "samples": 4 * MICRO_BATCHES, "latency": 0.1, "bubble": 0.3,
            "throughput": 4 * MICRO_BATCHES * CLOCK / cycles, "boundBy": "compute", "fits": True, "flops": 1e12,
            "cyclesByResource": spent, "updateCycles": 2e5, "updates": 1,
            "round": {"cycles": cycles, "microBatches": MICRO_BATCHES, "pipelined": True},
            "stages": [
                {"label": stage, "ipu": ipu, "cycles": 5e5 if "back" in stage else 4e5, "flops": 1e9,
                 "cyclesByResource": {}}
                for stage, ipu in stages
            ],
            "suggestions": [], "assumptions": ["it is made up"], "uncoveredOps": {},
        },
        "execution": {"programRunCount": 2, "calls": 2, "runs": [
            {"name": f"call {run}", "number": run, "start": run, "seconds": 0.5,
             "kinds": {"forward": {"count": 512, "seconds": 0.4}}}
            for run in range(2)
        ]},
    }  # fmt: skip


__all__ = ["synthetic_profile"]
