"""Draw docs/images/batching.svg: which rows of one call go to which replica, and when."""

from __future__ import annotations

from pathlib import Path

ITERATIONS, ACCUMULATION, REPLICAS, BATCH = 2, 2, 2, 3
CELL, GAP, LEFT, TOP = 34, 14, 150, 46
COLOURS = ("#4c78a8", "#f58518")
"""One for each replica: readable on light and on dark pages."""


def text(x: float, y: float, words: str, *, anchor: str = "middle", size: int = 13, colour: str = "#888") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def cell(x: float, y: float, row: int, replica: int) -> list[str]:
    return [
        f'<rect x="{x:g}" y="{y:g}" width="{CELL - 3}" height="{CELL - 3}" rx="4" fill="{COLOURS[replica]}"/>',
        text(x + (CELL - 3) / 2, y + CELL / 2 + 3, str(row), colour="#fff"),
    ]


def draw() -> str:
    """One row of the picture for each replica, columns in the order of time; row numbers as the caller counts them."""
    parts: list[str] = []
    micro_batch_width = BATCH * CELL + GAP
    iteration_width = ACCUMULATION * micro_batch_width + 2 * GAP
    for replica in range(REPLICAS):
        y = TOP + replica * (CELL + GAP)
        parts.append(text(LEFT - 16, y + CELL / 2 + 3, f"replica {replica}", anchor="end", colour=COLOURS[replica]))
    for iteration in range(ITERATIONS):
        x_iteration = LEFT + iteration * (iteration_width + 52)
        middle = x_iteration + (ACCUMULATION * micro_batch_width - GAP) / 2
        parts.append(text(middle, TOP - 28, f"device iteration {iteration}", colour="#888"))
        for step in range(ACCUMULATION):
            x = x_iteration + step * micro_batch_width
            parts.append(text(x + BATCH * CELL / 2, TOP - 8, f"accumulation {step}", size=11))
            for replica in range(REPLICAS):
                first = ((iteration * ACCUMULATION + step) * REPLICAS + replica) * BATCH
                y = TOP + replica * (CELL + GAP)
                for column in range(BATCH):
                    parts += cell(x + column * CELL, y, first + column, replica)
        x_update = x_iteration + ACCUMULATION * micro_batch_width + 2
        height = REPLICAS * (CELL + GAP) - GAP
        parts.append(
            f'<rect x="{x_update}" y="{TOP}" width="24" height="{height}" rx="4" fill="none" stroke="#888"/>'
            f'<text transform="translate({x_update + 16} {TOP + height / 2:g}) rotate(-90)" font-size="12" '
            f'text-anchor="middle" fill="#888">update</text>'
        )
    width = LEFT + ITERATIONS * (iteration_width + 52) - 20
    height = TOP + REPLICAS * (CELL + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img" '
        f'aria-label="24 rows of a call over 2 device iterations, 2 accumulation steps and 2 replicas">'
        + "".join(parts)
        + "</svg>\n"
    )


if __name__ == "__main__":
    target = Path(__file__).resolve().parent.parent / "docs" / "images" / "batching.svg"
    target.write_text(draw())
    print(target)
