"""Writes the benchmark table of README.md from bench/results.json. Run after ``make bench``."""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
PEERS = ("eager", "eager-fused", "compile")
OURS = ("ours-interpret", "ours-native")


def table() -> str:
    """One line a workload: our best level beside the best peer."""
    data = json.loads((ROOT / "bench" / "results.json").read_text())
    lines = ["| workload | mode | best peer | ours | ratio |", "|---|---|---|---|---|"]
    ratios: dict[str, list[float]] = {}
    for result in data["results"]:
        times = result["ms"]
        peer = min((n for n in PEERS if n in times), key=times.__getitem__)
        mine = min((n for n in OURS if n in times), key=times.__getitem__)
        ratio = times[peer] / times[mine]
        ratios.setdefault(result["mode"], []).append(ratio)
        lines.append(
            f"| {result['workload']} | {result['mode']} | {peer} {times[peer]:.2f} ms | "
            f"{mine.removeprefix('ours-')} {times[mine]:.2f} ms | {ratio:.2f} |"
        )
    means = ", ".join(
        f"{mode} {math.exp(statistics.fmean(map(math.log, values))):.2f}" for mode, values in ratios.items()
    )
    facts = ", ".join(f"{key} {value}" for key, value in data["machine"].items())
    return "\n".join([*lines, "", f"Geometric means: {means}. Machine: {facts}."])


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    new = f"{head}{BEGIN}\n{table()}\n{END}{tail}"
    if "--check" in sys.argv:
        return int(new != text)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
