"""Whole jobs in the default mode: import, wrap, first call and N steps, beside eager PyTorch and ``torch.compile``.

    python bench/time_to_result.py                          # everything, hours; goes on where it was interrupted
    python bench/time_to_result.py gpt-mini --lengths 30    # some rows
    python bench/time_to_result.py --quick                  # one short job of each contender: whether it works

A job is as many steps as eager PyTorch takes 5, 30 or 120 seconds for, in a process of its own, from the start of the
interpreter to its end. *Cold* jobs begin with empty caches of all compilers, *warm* ones with what the cold job of the
same length left. The ratio is the time of the faster peer, eager included, by ours: more than 1 is good.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import HERE, in_a_process, machine, write_atomically

CONTENDERS = ("eager", "compile", "ours-auto")
LENGTHS = (5, 30, 120)
MODES = ("train-sgd", "inference")
CALIBRATED_SECONDS = 2.0
WARM_UP = 5
SLOWEST = 6.0
"""A job that takes so many times as long as eager's, and a minute, is given up."""

Rows = dict[str, dict[str, float | str]]


def steps_per_second(workload: str, mode: str) -> float:
    """In a process of its own: how fast eager PyTorch is once it is warm, as the median of several spells."""
    from contenders import contender
    from workloads import WORKLOADS

    steps = contender("eager", WORKLOADS[workload], mode)
    for _ in range(WARM_UP):
        steps.call()
    speeds = []
    for _ in range(WARM_UP):
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < CALIBRATED_SECONDS / WARM_UP:
            steps.call()
            count += 1
        speeds.append(count / (time.perf_counter() - started))
    return statistics.median(speeds)


def job(workload: str, mode: str, name: str, count: int) -> dict[str, float]:
    """In a process of its own: all of it."""
    from contenders import contender
    from workloads import WORKLOADS

    started = time.perf_counter()
    steps = contender(name, WORKLOADS[workload], mode)
    steps.call()
    first = time.perf_counter() - started
    slowest = 0.0
    for _ in range(count - 1):
        before = time.perf_counter()
        steps.call()
        slowest = max(slowest, time.perf_counter() - before)
    return {"first call": round(first, 3), "longest call": round(slowest, 3)}


def timed_job(workload: str, mode: str, name: str, count: int, length: float, cache: Path) -> dict[str, Any]:
    """One job, its wall clock included."""
    started = time.perf_counter()
    state = {"XDG_STATE_HOME": str(cache / "state")}
    command = [__file__, "--job", workload, mode, name, str(count)]
    got = in_a_process(command, 60 + SLOWEST * length, cache, state)
    return {"seconds": round(time.perf_counter() - started, 2), **got}


def measure(workload: str, mode: str, length: float, results: Rows, save: Any) -> None:
    """All contenders of a row, cold and then warm."""
    row = results.setdefault(f"{workload} {mode} {length:g}", {})
    if "steps" not in row:
        speed = in_a_process([__file__, "--speed", workload, mode], 300)
        if "error" in speed:
            row["error"] = str(speed["error"])
            return
        row["steps"] = max(1, round(speed["per second"] * length))
    for name in CONTENDERS:
        states = ("cold",) if name == "eager" else ("cold", "warm")
        if all(f"{name} {state}" in row for state in states):
            continue
        cache = Path(tempfile.mkdtemp(prefix="poptorch-bench-"))
        try:
            for state in states:
                got = timed_job(workload, mode, name, int(row["steps"]), length, cache)
                row[f"{name} {state}"] = got.get("error", got["seconds"])
                row |= {f"{name} {state} {key}": value for key, value in got.items() if key.endswith("call")}
                save()
        finally:
            shutil.rmtree(cache, ignore_errors=True)


def ratio(row: dict[str, float | str], state: str) -> float | None:
    """The faster peer's time by ours."""
    peers = [row.get("eager cold"), row.get(f"compile {state}")]
    times = [peer for peer in peers if isinstance(peer, (int, float))]
    ours = row.get(f"ours-auto {state}")
    return min(times) / ours if times and isinstance(ours, (int, float)) else None


def page(results: Rows, facts: dict[str, object]) -> str:
    """The results as a table."""
    lines = [
        "# Time to result", "",
        "Written by `python bench/time_to_result.py`. Seconds of whole jobs, each in a process of its own: import, "
        "wrap, first call, and as many steps as eager PyTorch takes the given time for. The ratio is the time of the "
        "faster peer by ours.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()), "",
        "| workload | mode | eager seconds | steps | eager | compile cold | ours cold | ratio cold | compile warm "
        "| ours warm | ratio warm | longest call cold |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    columns = "eager cold", "compile cold", "ours-auto cold", "cold", "compile warm", "ours-auto warm", "warm"
    for name, row in results.items():
        cells = [*name.split(), row.get("steps", row.get("error", ""))]
        for column in columns:
            value: Any = ratio(row, column) if column in ("cold", "warm") else row.get(column, "")
            cells.append(f"{value:.2f}" if isinstance(value, float) else ("" if value is None else value))
        cells.append(row.get("ours-auto cold longest call", ""))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=("train-sgd", "train-adamw", "inference"))
    parser.add_argument("--lengths", nargs="+", type=float, default=LENGTHS)
    parser.add_argument("--quick", action="store_true", help="one job of a second; prints, and writes nothing")
    parser.add_argument("--output", default="time_to_result", help="name of the files beside this one")
    parser.add_argument("--speed", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.speed:
        print(json.dumps({"per second": steps_per_second(*chosen.speed)}))
        return
    if chosen.job:
        workload, mode, name, count = chosen.job
        print(json.dumps(job(workload, mode, name, int(count))))
        return
    from workloads import WORKLOADS

    unknown = set(chosen.workloads) - set(WORKLOADS)
    if unknown:
        sys.exit(f"unknown workloads: {', '.join(sorted(unknown))}. There are: {', '.join(WORKLOADS)}")
    if chosen.quick:
        results: Rows = {}
        measure((chosen.workloads or ["mlp-tiny"])[0], "train-sgd", 1.0, results, lambda: None)
        print(page(results, {"cores": os.cpu_count()}))
        return
    path = HERE / f"{chosen.output}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    facts = machine()

    def save() -> None:
        write_atomically(path, json.dumps(results, indent=1) + "\n")
        write_atomically(path.with_suffix(".md"), page(results, facts))

    for workload in chosen.workloads or WORKLOADS:
        for mode in chosen.modes:
            for length in chosen.lengths:
                measure(workload, mode, length, results, save)
                save()


if __name__ == "__main__":
    main()
