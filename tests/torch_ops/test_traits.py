"""Every operation that the tables and the zoo use is of a known kind."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from op_samples import Trained
from test_matches_eager import TABLES
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch.ops.traits import OpKind, traits_of

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))


class Watched(TorchDispatchMode):
    """Counts the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


def unknown(calls: Counter[Any]) -> set[str]:
    return {str(func) for func in calls if traits_of(func).kind is OpKind.OTHER}


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_the_tables(table: str) -> None:
    with Watched() as watched:
        for row in TABLES[table]:
            inputs = [t.clone() for t in row.inputs]
            if row.grad:
                _, loss = Trained(row)(*inputs)
                loss.backward()
            else:
                row.make()(*inputs)
    assert len(watched.calls) > 10
    assert not unknown(watched.calls)


def test_the_zoo() -> None:
    from zoo_all import ARCHITECTURES

    with Watched() as watched:
        for architecture in ARCHITECTURES.values():
            inputs, targets = architecture.batch()
            _, loss = architecture.trainable()(*inputs, *targets)
            loss.backward()
    assert watched.calls.total() > 1000
    assert not unknown(watched.calls)
