"""Print how many lines of source each room has, so that growth is seen. Generated modules count for nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"


def room(path: Path) -> str:
    """The room of a file: a package beside ``poptorch``, or a part of ``poptorch``."""
    package, *inner = path.relative_to(SRC).parts
    if package != "poptorch":
        return package
    return inner[0] if len(inner) > 1 else "(modules)"


def sizes() -> Counter[str]:
    """Lines of source by room."""
    found: Counter[str] = Counter()
    for path in SRC.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "Made by ``scripts/" not in text[:200]:
            found[room(path)] += text.count("\n")
    return found


def main() -> None:
    """Four columns of rooms, the largest first, and the sum."""
    found = sizes()
    cells = [f"{name:>20} {count:6}" for name, count in found.most_common()]
    for first in range(0, len(cells), 4):
        print("".join(cells[first : first + 4]))
    print(f"{'all':>20} {found.total():6}")


if __name__ == "__main__":
    main()
