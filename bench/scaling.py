"""What a training step costs as it grows: batch size, depth, micro-batches; and what starting a second time costs.

    python bench/scaling.py                      # all parts; writes bench/scaling.json, .md and scaling-*.svg
    python bench/scaling.py depth start          # some parts; the others stay as they were measured before
    python bench/scaling.py --plot               # tables and plots again, nothing measured

Parts:

- ``batch``: step time and peak memory against the batch size, for mlp-large and bert-small
- ``depth``: compile time (with empty caches, and once more in a new process) and step time of a BERT with 2, 4, 8 and
  16 layers
- ``accumulation``: time and peak memory against 1 to 16 micro-batches in a step (``gradientAccumulation``)
- ``start``: the first start of bert-small training with empty caches, and the second, in a new process

Plots need matplotlib: ``pip install -e '.[report]'``, or leave them out with ``--no-plots``. Times are taken with the
contenders in turn in one process, memory in a process for each (see memory.py), starts in a process for each.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scaling_report
from measuring import HERE, in_a_process, machine, take_turns, write_atomically

LIMIT = 1800.0
EVERYBODY = ("eager", "compile", "ours-interpret", "ours-native")
BATCHES = {"mlp-large": (16, 64, 256, 1024), "bert": (1, 2, 4, 8, 16)}
DEPTHS = (2, 4, 8, 16)
MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclasses.dataclass(frozen=True)
class Size:
    """A workload of the benchmark with its dimensions free."""

    family: str
    batch: int
    depth: int = 4
    accumulation: int = 1

    def workload(self) -> Any:
        import torch
        from workloads import Transformer, Workload, classify, mlp

        def target() -> torch.Tensor:
            return torch.randint(0, 10, (self.batch,))

        if self.family == "mlp-large":
            sizes = [784, 1024, 1024, 10]
            return Workload(self.family, lambda: classify(mlp(sizes)), lambda: (torch.randn(self.batch, 784),), target)
        return Workload(
            self.family,
            lambda: classify(Transformer(8000, 256, self.depth, 128, False, 10)),
            lambda: (torch.randint(0, 8000, (self.batch, 128)),),
            target,
        )

    def steps(self, name: str) -> Any:
        from contenders import contender

        return contender(name, self.workload(), "train-sgd", accumulation=self.accumulation)

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self))


# --- in processes of their own ---------------------------------------------------------------------------------------


def measure_times(size: Size, names: list[str], rounds: int, seconds: float) -> dict[str, float]:
    """Milliseconds a step, contenders in turn."""
    calls = {}
    for name in names:
        calls[name] = size.steps(name).call
        for _ in range(3):
            calls[name]()
    return take_turns(calls, rounds, seconds)


def measure_memory(size: Size, name: str) -> dict[str, float]:
    from memory import peak_memory

    return peak_memory(lambda: size.steps(name).call)


def measure_start(size: Size, name: str, rounds: int, seconds: float) -> dict[str, float]:
    """Seconds until the first step is done, imports and the model itself not counted, and milliseconds of later ones.

    A step of training compiles its last part when the first optimizer state exists: the second call belongs to the
    start as well.
    """
    steps = size.steps(name)
    start = time.perf_counter()
    steps.call()
    steps.call()
    first_two = time.perf_counter() - start
    steps.call()
    ms = take_turns({name: steps.call}, rounds, seconds)[name]
    return {"seconds": max(0.0, first_two - 2 * ms / 1e3), "ms": ms}


# --- the parts -------------------------------------------------------------------------------------------------------


def times_and_memory(size: Size, names: tuple[str, ...], cache: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    settings = ["--rounds", str(arguments.rounds), "--seconds", str(arguments.seconds)]
    memory = {n: in_a_process([__file__, "--memory-of", size.text(), n], LIMIT, cache) for n in names}
    failed = {n: each["error"] for n, each in memory.items() if "error" in each}
    going = [n for n in names if n not in failed]
    ms = in_a_process([__file__, "--times-of", size.text(), *going, *settings], LIMIT, cache)
    if "error" in ms:
        failed |= dict.fromkeys(going, ms["error"])
        ms = {}
    peaks = {n: memory[n]["peak"] for n in going}
    return {**dataclasses.asdict(size), "ms": ms, "mib": peaks, "failed": failed}


def batch_part(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as cache:
        for family, batches in BATCHES.items():
            for batch in arguments.sizes or batches:
                yield times_and_memory(Size(family, batch), EVERYBODY, Path(cache), arguments)


def accumulation_part(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    names = tuple(n for n in EVERYBODY if n != "compile")
    with tempfile.TemporaryDirectory() as cache:
        for family, batch in (("mlp-large", 64), ("bert", 2)):
            for count in arguments.sizes or MICRO_BATCHES:
                yield times_and_memory(Size(family, batch, accumulation=count), names, Path(cache), arguments)


def started(size: Size, name: str, cache: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    settings = ["--rounds", str(arguments.rounds), "--seconds", str(arguments.seconds)]
    start = time.perf_counter()
    got = in_a_process([__file__, "--start-of", size.text(), name, *settings], LIMIT, cache)
    return {**got, "process": time.perf_counter() - start}


def depth_part(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for depth in arguments.sizes or DEPTHS:
        row: dict[str, Any] = {"depth": depth, "seconds": {}, "again": {}, "ms": {}, "failed": {}}
        for name in EVERYBODY:
            with tempfile.TemporaryDirectory() as cache:  # every compilation starts from nothing
                first, second = (started(Size("bert", 4, depth), name, Path(cache), arguments) for _ in range(2))
            error = first.get("error") or second.get("error")
            if error:
                row["failed"][name] = error
            else:
                row["seconds"][name], row["again"][name] = first["seconds"], second["seconds"]
                row["ms"][name] = second["ms"]
        yield row


def start_part(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    size = Size("bert", 4, arguments.sizes[0] if arguments.sizes else 4)
    for name in EVERYBODY:
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (started(size, name, Path(cache), arguments) for _ in range(2))
        yield {"contender": name, "depth": size.depth, "cold": cold, "warm": warm}


PARTS = {"batch": batch_part, "depth": depth_part, "accumulation": accumulation_part, "start": start_part}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.15, help="time of one turn")
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of the usual batches, depths, micro-batches")
    parser.add_argument("--output", type=Path, default=HERE / "scaling", metavar="NAME")
    parser.add_argument("--no-plots", dest="plots", action="store_false")
    parser.add_argument("--plot", action="store_true", help="measure nothing")
    # What this script runs in processes of its own:
    for name in ("--times-of", "--memory-of", "--start-of"):
        parser.add_argument(name, nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if set(arguments.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    return arguments


def measured_here(arguments: argparse.Namespace) -> dict[str, float] | None:
    """The work of a process that another one of these started; ``None`` in the first."""
    text, *names = arguments.times_of or arguments.memory_of or arguments.start_of or [""]
    if not text:
        return None
    size = Size(**json.loads(text))
    if arguments.times_of:
        return measure_times(size, names, arguments.rounds, arguments.seconds)
    if arguments.memory_of:
        return measure_memory(size, names[0])
    return measure_start(size, names[0], arguments.rounds, arguments.seconds)


def main() -> None:
    arguments = parsed()
    figures = measured_here(arguments)
    if figures is not None:
        print(json.dumps(figures))
        return
    if arguments.plots and importlib.util.find_spec("matplotlib") is None:
        sys.exit("matplotlib, which draws the plots, is not installed: pip install -e '.[report]', or use --no-plots")
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        sys.exit("there is no C++ compiler: native code and torch.compile cannot be measured")

    path = arguments.output.with_suffix(".json")
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for part in [] if arguments.plot else arguments.parts or PARTS:
        command = shlex.join(["python", "bench/scaling.py", *sys.argv[1:]])
        data[part] = {"machine": {**machine(), "command": command}, "rows": []}
        for row in PARTS[part](arguments):
            data[part]["rows"].append(row)
            print(part, json.dumps(row), flush=True)
            write_atomically(path, json.dumps(data, indent=1) + "\n")
    if not data:
        sys.exit(f"{path} does not exist: nothing has been measured")
    if arguments.plots:
        scaling_report.plot(data, arguments.output)
    write_atomically(arguments.output.with_suffix(".md"), scaling_report.report(data, arguments.output))


if __name__ == "__main__":
    main()
