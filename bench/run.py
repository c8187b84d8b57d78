"""The benchmark: every workload as training step and as inference, ours beside its peers, ratios from one run.

    make bench                                       # everything; writes bench/results.json and bench/results.md
    make bench ARGS=--resume                         # goes on where an interrupted run stopped
    make bench ARGS=--prepare                        # the part that needs no quiet machine; then --resume
    python bench/run.py lstm --modes train-sgd       # single rows, printed only (--output NAME writes them)

A row is a workload in a mode. Each contender first runs in a process of its own, which measures its memory (see
memory.py), fills the compiler's cache and shows whether it works at all: one that fails, or a ``max-autotune`` that
does not finish compiling within the limit, is written as such in the table. Then all of them take turns in one
process, so that a noisy moment of the machine hits everybody, and medians are compared; warm-up is not timed.
``--prepare`` does the first part for all rows, ``--resume`` then finds the memory and the compiled code.

Rows are saved as they are done. A run starts with an empty compiler cache (build/bench-cache), unless it resumes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import results
from measuring import CACHE, HERE, commit, gemm_peak, in_a_process, machine, take_turns, write_atomically
from results import MODES, contenders_of

WARM_UP = 3
LIMIT = 900.0
"""Seconds for any measurement: nothing hangs."""

# Names that differ from the workload they run: a workload with another number of steps in a call of ours.
DEVICE_ITERATIONS = {"mlp-tiny-d100": ("mlp-tiny", 100)}


def rows_of(names: list[str], modes: list[str]) -> list[tuple[str, str]]:
    """All (workload, mode) that are asked for."""
    from workloads import WORKLOADS

    known = [*WORKLOADS, *DEVICE_ITERATIONS]
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"unknown workloads: {', '.join(sorted(unknown))}. There are: {', '.join(known)}")
    chosen = [name for name in known if not names or name in names]
    chosen.sort(key=lambda name: list(WORKLOADS).index(DEVICE_ITERATIONS.get(name, (name,))[0]))
    # Inference does not return to the host between iterations: many of them in a call are a training matter.
    return [(n, mode) for n in chosen for mode in modes if n not in DEVICE_ITERATIONS or mode != "inference"]


def make(workload: str, mode: str, name: str) -> Any:
    """One contender of a row."""
    from contenders import contender
    from workloads import WORKLOADS

    original, iterations = DEVICE_ITERATIONS.get(workload, (workload, 1))
    return contender(name, WORKLOADS[original], mode, iterations)


def measure_memory(workload: str, mode: str, name: str) -> dict[str, float]:
    """In a process of its own: MiB of one contender."""
    from memory import peak_memory

    return peak_memory(lambda: make(workload, mode, name).call)


def measure_times(workload: str, mode: str, names: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """In a process of its own: the contenders in turn."""
    import torch
    from contenders import counted_gflop, switch_of_auto
    from workloads import WORKLOADS

    original, iterations = DEVICE_ITERATIONS.get(workload, (workload, 1))
    steps, failed = {}, {}
    for name in names:
        try:
            steps[name] = make(workload, mode, name)
            for _ in range(WARM_UP):
                steps[name].call()
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs in the table
            steps.pop(name, None)
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    calls = take_turns({name: each.call for name, each in steps.items()}, rounds, seconds)
    gflop = counted_gflop(WORKLOADS[original], mode)
    return {
        "ms": {name: time / steps[name].count for name, time in calls.items()},
        "failed": failed,
        "gflop": gflop,
        "floor": gflop / gemm_peak(torch.get_num_threads()) * 1e3,
        "auto": {"native_after": switch_of_auto(WORKLOADS[original], mode, iterations)},
    }


def prepare_row(row: results.Row, arguments: argparse.Namespace) -> None:
    """Run each contender that the row does not know yet alone: its memory, or why it failed."""
    workload, mode = row["workload"], row["mode"]
    names = [n for n in contenders_of(mode) if n in arguments.contenders and n not in row["memory"]]
    if not arguments.memory:
        names = [n for n in names if n.startswith("compile")]

    def alone(name: str) -> None:
        limit = arguments.limit if name == "compile-max" else LIMIT
        got = in_a_process([__file__, "--memory-of", workload, mode, name], limit)
        row["failed" if "error" in got else "memory"][name] = got.get("error", got)

    names = [n for n in names if n not in row["failed"]]
    with ThreadPoolExecutor(2) as pool:  # memory does not depend on the time: two at once
        list(pool.map(alone, [n for n in names if n != "compile-max"]))
    if "compile-max" in names:  # measures kernels while it compiles: on a quiet machine, please
        alone("compile-max")


def time_row(row: results.Row, arguments: argparse.Namespace) -> None:
    """Let the contenders that work take turns."""
    going = [n for n in contenders_of(row["mode"]) if n in arguments.contenders and n not in row["failed"]]
    settings = ["--rounds", str(arguments.rounds), "--seconds", str(arguments.seconds)]
    got = in_a_process([__file__, "--times-of", row["workload"], row["mode"], *going, *settings], LIMIT)
    if "error" in got:
        got = {"ms": {}, "failed": dict.fromkeys(going, got["error"])}
    row.update({**got, "failed": {**row["failed"], **got["failed"]}, "commit": commit()})
    ordered = {n: row["memory"][n] for n in contenders_of(row["mode"]) if n in row["memory"]}
    row["memory"] = ordered if arguments.memory else {}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    everybody = [*results.PEERS, *results.OURS]
    parser.add_argument("--contenders", nargs="+", default=everybody, choices=everybody, help="default: all")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.12, help="time of one turn (default: 0.12)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for max-autotune to compile (default: 300)")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="measure times only")
    parser.add_argument("--prepare", action="store_true", help="memory and compiling only; add --resume to keep rows")
    parser.add_argument("--resume", action="store_true", help="keep the rows and the cache of an interrupted run")
    parser.add_argument("--output", type=Path, metavar="NAME", help="write NAME.json and NAME.md")
    # What this script runs in processes of its own:
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--times-of", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    if arguments.memory_of:
        print(json.dumps(measure_memory(*arguments.memory_of)))
        return
    if arguments.times_of:
        workload, mode, *names = arguments.times_of
        print(json.dumps(measure_times(workload, mode, names, arguments.rounds, arguments.seconds)))
        return

    output = arguments.output or (None if arguments.workloads else HERE / "results")
    data: dict[str, Any] = {"machine": machine(), "results": []}
    data["machine"]["command"] = shlex.join(["python", "bench/run.py", *sys.argv[1:]])
    if not arguments.resume:
        shutil.rmtree(CACHE, ignore_errors=True)
    elif output is not None and output.with_suffix(".json").exists():
        before = results.load(output.with_suffix(".json"))
        data["results"] = before["results"]

    rows = {(row["workload"], row["mode"]): row for row in data["results"]}
    for workload, mode in rows_of(arguments.workloads, arguments.modes):
        empty: results.Row = {"workload": workload, "mode": mode, "ms": {}, "failed": {}, "memory": {}}
        row = rows.setdefault((workload, mode), empty)
        if row["ms"]:
            continue
        if row.pop("commit", None):  # timed, with nothing to show: everybody gets another chance
            row["failed"] = {}
        prepare_row(row, arguments)
        if not arguments.prepare:
            time_row(row, arguments)
        data["results"] = list(rows.values())
        print(workload, mode, {k: round(v, 3) for k, v in row["ms"].items()}, row["failed"] or "", flush=True)
        if output is not None:
            _save(output, data)
    if output is not None:
        _save(output, data)  # also when there was nothing left to do
    print(results.report(data))


def _save(output: Path, data: dict[str, Any]) -> None:
    write_atomically(output.with_suffix(".json"), json.dumps(data, indent=1) + "\n")
    write_atomically(output.with_suffix(".md"), results.report(data))


if __name__ == "__main__":
    main()
