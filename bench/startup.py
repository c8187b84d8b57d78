"""How long a program takes to its first training steps: without a cache, at the first start with one, at the second.

    python bench/startup.py                              # bert-small and mlp-large, all contenders, 3 rounds
    python bench/startup.py mlp-tiny --rounds 1          # a short one

Every start is a process of its own, timed from its creation to the end of the second training step, imports included.
(A training step of ``torch.compile`` compiles its last part when there is optimizer state: in the second step.)
``torch.compile`` has caches too: without, they are off; at the first start they are empty; the second start is warm.
In each round every contender makes its three starts, with new directories, and the contenders take turns. Medians are
compared. A ratio above 1 means that ours starts sooner.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import commit, in_a_process

LIMIT = 900.0
WORKLOADS = ("mlp-large", "bert-small")
CONTENDERS = ("eager", "compile", "ours-interpret", "ours-native")
WITHOUT = {"POPTORCH_CACHE_DIR": "", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
KINDS = ("without cache", "first start", "second start")


def measure_start(workload: str, name: str, begun: float) -> dict[str, float]:
    """In a process of its own: seconds since it was created, after the imports and after the second step."""
    from contenders import contender
    from workloads import WORKLOADS as known

    imported = time.time() - begun
    steps = contender(name, known[workload], "train-sgd")
    steps.call()
    steps.call()
    return {"imports": imported, "all": time.time() - begun}


def start(workload: str, name: str, cache: Path, settings: dict[str, str]) -> dict[str, float]:
    """One start; ends the program when it fails, because there is nothing to compare then."""
    found = in_a_process([__file__, "--start-of", workload, name, repr(time.time())], LIMIT, cache, settings)
    if "error" in found:
        sys.exit(f"{name} does not start: {found['error']}")
    return found


def starts(workload: str, name: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The three starts of a contender."""
    with tempfile.TemporaryDirectory() as unused, tempfile.TemporaryDirectory() as cache:
        yield KINDS[0], start(workload, name, Path(unused), WITHOUT)
        yield KINDS[1], start(workload, name, Path(cache), {})
        yield KINDS[2], start(workload, name, Path(cache), {})


def measure(workload: str, names: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of each kind of start of each contender, and of its imports."""
    times: dict[str, dict[str, list[float]]] = {n: {kind: [] for kind in (*KINDS, "imports")} for n in names}
    for _ in range(rounds):
        for name in names:
            for kind, found in starts(workload, name):
                times[name][kind].append(found["all"])
                times[name]["imports"].append(found["imports"])
    return {n: {kind: statistics.median(values) for kind, values in each.items()} for n, each in times.items()}


def table(medians: dict[str, dict[str, float]]) -> Iterator[str]:
    """Seconds, and the ratio of each of ours to ``torch.compile``."""
    yield "| contender | imports, s | " + " | ".join(f"{kind}, s" for kind in KINDS) + " | second / first |"
    yield "|---" * (len(KINDS) + 3) + "|"
    peer = medians.get("compile")
    for name, found in medians.items():
        cells = [f"{found['imports']:.1f}"]
        for kind in KINDS:
            ratio = f" ({peer[kind] / found[kind]:.2f})" if peer is not None and name.startswith("ours-") else ""
            cells.append(f"{found[kind]:.1f}{ratio}")
        yield f"| {name} | " + " | ".join(cells) + f" | {found['second start'] / found['first start']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start-of", nargs=3, help=argparse.SUPPRESS)  # what this script runs in other processes
    arguments = parser.parse_args()
    if arguments.start_of:
        workload, name, begun = arguments.start_of
        print(json.dumps(measure_start(workload, name, float(begun))))
        return
    for workload in arguments.workloads:
        print(f"{workload}, train-sgd, commit {commit()}; in brackets: torch.compile's time divided by ours")
        print("\n".join(table(measure(workload, list(arguments.contenders), arguments.rounds))), flush=True)


if __name__ == "__main__":
    main()
