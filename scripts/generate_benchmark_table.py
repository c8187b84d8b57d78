"""Writes the benchmark table of README.md from bench/results.json; ``make bench`` ends with it.

python scripts/generate_benchmark_table.py --check      # only say, with the exit code, whether it is up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import results  # noqa: E402  found through the line above

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    new = f"{head}{BEGIN}\n{results.short_table(results.load(ROOT / 'bench' / 'results.json'))}\n{END}{tail}"
    if "--check" in sys.argv:
        return int(new != text)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
