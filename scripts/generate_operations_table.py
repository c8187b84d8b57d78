"""Write docs/supported-operations.md: the operations of torch in the tables that the tests compare with eager PyTorch.

``--check`` fails if the page is not what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "torch_ops")]

import torch  # noqa: E402
from op_samples import Sample  # noqa: E402
from test_matches_eager import TABLES  # noqa: E402

PAGE = ROOT / "docs" / "supported-operations.md"

TITLES = {
    "creation": "Making tensors",
    "views": "Views and shapes",
    "indexing": "Indexing",
    "writing": "Writing in place",
    "pointwise": "Element by element",
    "reductions": "Reductions",
    "blas": "Products and linear algebra",
    "convolutions": "Convolutions",
    "pooling": "Pooling and resizing",
    "activations": "Activations",
    "layers": "Layers",
    "losses": "Losses",
    "types": "Types",
    "further": "Further operations",
}

HEAD = """\
# Supported operations of torch

An operation of PyTorch works in `forward` if torch can trace it and the shape of its result does not depend on
values. This page lists those that the tests compare with eager PyTorch: {count} cases, values and gradients.
Others may work as well. What cannot is an error that names your line.

| column | means |
|---|---|
| operation | the function, method or module of torch |
| cases | how it was called, beside the plain call; a number if there are many |
| types | types of the tensors that it was given |
| gradient | whether gradients are compared, too |

float16 is computed in float32 on the host and rounded, as on an IPU: [Half precision](precision.md). Where values leave
the model, int64 becomes int32, float64 becomes float32, and bfloat16 becomes float16: [Constraints](constraints.md).
Operators of the original's compiler are on [Operators by name](builtin-operators.md).

<!-- Made by scripts/generate_operations_table.py from tests/torch_ops/op_tables. -->
"""
MOST_CASES = 6


def operations(rows: Iterable[Sample]) -> Iterator[tuple[str, list[Sample]]]:
    """The rows of one operation: those whose names begin with the same word."""
    by_name: dict[str, list[Sample]] = {}
    for row in rows:
        by_name.setdefault(row.name.split(" ")[0], []).append(row)
    yield from sorted(by_name.items(), key=lambda item: item[0].lower())


def types(rows: Iterable[Sample]) -> str:
    """The types of all inputs, in short."""
    found = {str(tensor.dtype).removeprefix("torch.") for row in rows for tensor in row.inputs}
    found |= {str(row.dtype).removeprefix("torch.") for row in rows if row.dtype is torch.float16}
    return ", ".join(sorted(found)) or "–"


def cases(name: str, rows: list[Sample]) -> str:
    """What is varied."""
    more = [row.name.removeprefix(name).strip() for row in rows]
    more = [case.replace("|", "\\\\|") for case in more if case]
    return ", ".join(more) if len(more) <= MOST_CASES else str(len(rows))


def page() -> str:
    """The whole page."""
    parts = [HEAD.format(count=sum(map(len, TABLES.values())))]
    for table, rows in TABLES.items():
        lines = [f"## {TITLES[table]}", "", "| operation | cases | types | gradient |", "|---|---|---|---|"]
        for name, same in operations(rows):
            gradient = "yes" if any(row.grad for row in same) else "no"
            lines.append(f"| `{name}` | {cases(name, same)} | {types(same)} | {gradient} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != text:
            print(f"{PAGE.name} is not up to date: run scripts/generate_operations_table.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
