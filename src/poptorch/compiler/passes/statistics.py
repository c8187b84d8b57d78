"""Running statistics of batch normalisation, in models that do not train."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch.compiler.passes.summary import UNCHANGED, summary
from poptorch.program.program import Program, is_write

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_STATISTICS = (3, 4)
"""Positions of the running mean and variance, among the operands of the operation and among its results."""


def return_old_statistics(program: Program, context: Context) -> str:
    """A normalisation left in training mode writes its statistics last: what an inference model reads is older."""
    if not context.settings.returns_old_statistics:
        return UNCHANGED
    before: dict[object, fx.Node] = {}
    """The placeholder of each statistic, by the node of its new value."""

    changed = 0
    for norm in [n for n in program.operations() if n.target is _NORM]:
        for position in _STATISTICS:
            given = norm.args[position]
            old = before.get(given, given)
            if not isinstance(old, fx.Node) or old.op != "placeholder":
                continue
            for new in [u for u in norm.users if u.target is operator.getitem and u.args[1] == position]:
                before[new] = old
                readers = [u for u in new.users if not is_write(u) and u.target is not _NORM]
                for reader in readers:
                    reader.replace_input_with(new, old)
                changed += len(readers)
    return summary(changed, f"{changed} reads of statistics come before their update")
