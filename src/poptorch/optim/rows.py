"""Updates that measure norms, for weights that differ between groups of replicas.

Such a weight is one tensor with a row for each group. To its optimizer every row is a weight by itself: LAMB's norms
are those of the row. Clipping measures what one replica holds, the rows of its groups and the weights that all share;
where the replicas that hold a weight disagree, the largest of their norms counts, so that the weight stays equal on all
of them and no replica takes a longer step than allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from poptorch.optim.rules import State
from poptorch.optim.rules.vectors import norms
from poptorch.optim.spec import GroupSpec, OptimizerSpec

Holders: TypeAlias = tuple[int, ...]
"""The replicas that hold a weight, or a row of one."""


@dataclass(frozen=True)
class RowwiseOptimizer:
    """An optimizer whose update takes the rows of some weights one by one.

    >>> import poptorch
    >>> from poptorch.optim.spec import describe
    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> spec = describe(poptorch.optim.SGD([weight], lr=1.0, max_grad_norm=1.0), None)
    >>> rowwise = RowwiseOptimizer(spec, [[((0,), (1,))]], replicas=2)
    >>> new, gradient = torch.zeros(2, 2), torch.tensor([[3.0, 4.0], [0.0, 0.5]])
    >>> rowwise.update_([[new]], [[gradient]], [{}], spec.hyper())
    >>> new
    tensor([[-0.6000, -0.8000],
            [ 0.0000, -0.5000]])
    """

    spec: OptimizerSpec
    holders: Sequence[Sequence[tuple[Holders, ...] | None]]
    """For each weight of each parameter group, the replicas that hold each of its rows; ``None``: it has no rows."""

    replicas: int

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The parameter groups."""
        return self.spec.groups

    def hyper(self) -> list[dict[str, Tensor]]:
        """The inputs of each group's rule."""
        return self.spec.hyper()

    def update_(
        self,
        params: Sequence[Sequence[Tensor]],
        grads: Sequence[Sequence[Tensor]],
        states: Sequence[State],
        hyper: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """One step of all groups, in place. Traceable."""
        active = [index for index in range(len(self.groups)) if params[index]]
        cut = {i: _Rows.of(params[i], grads[i], states[i], self.holders[i], self.replicas) for i in active}
        measured = {
            i: self.groups[i].rule.prepare_(rows.params, rows.grads, rows.state, hyper[i]) for i, rows in cut.items()
        }
        clips = self._clipping_factors(
            [held for rows in cut.values() for held in rows.holders],
            [tensor for tensors in measured.values() for tensor in tensors],
        )
        for i, rows in cut.items():
            for held in dict.fromkeys(rows.holders):
                chosen = [k for k, other in enumerate(rows.holders) if other == held]
                own = {key: [tensors[k] for k in chosen] for key, tensors in rows.state.items()}
                quantity = [measured[i][k] for k in chosen]
                self.groups[i].rule.apply_([rows.params[k] for k in chosen], quantity, own, hyper[i], clips[held])

    def _clipping_factors(self, holders: Sequence[Holders], measured: Sequence[Tensor]) -> dict[Holders, Tensor | None]:
        """For each set of replicas that hold something together, the factor for it."""
        limit = self.spec.max_grad_norm
        if math.isinf(limit):
            return dict.fromkeys(holders)
        lengths = norms(measured).unbind()
        known: dict[tuple[int, ...], Tensor] = {}  # replicas of the same groups measure the same
        of_replica = []
        for replica in range(self.replicas):
            seen = tuple(k for k, held in enumerate(holders) if replica in held)
            if seen not in known:
                known[seen] = torch.linalg.vector_norm(torch.stack([lengths[k] for k in seen]))
            of_replica.append(known[seen])
        largest = {held: torch.stack([of_replica[r] for r in held]).amax() for held in dict.fromkeys(holders)}
        return {held: limit / length.clamp_min(limit) for held, length in largest.items()}


@dataclass(frozen=True)
class _Rows:
    """The weights of one parameter group, those with rows as one tensor for each row."""

    params: list[Tensor]
    grads: list[Tensor]
    state: State
    holders: list[Holders]

    @staticmethod
    def of(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        state: State,
        holders: Sequence[tuple[Holders, ...] | None],
        replicas: int,
    ) -> _Rows:
        everybody = tuple(range(replicas))
        counts = [None if held is None else len(held) for held in holders]
        return _Rows(
            _cut(params, params, counts),
            _cut(grads, params, counts),
            {key: _cut(tensors, params, counts) for key, tensors in state.items()},
            [row for held in holders for row in ((everybody,) if held is None else held)],
        )


def _cut(tensors: Sequence[Tensor], params: Sequence[Tensor], counts: Sequence[int | None]) -> list[Tensor]:
    result: list[Tensor] = []
    for tensor, param, count in zip(tensors, params, counts, strict=True):
        if count is None:
            result.append(tensor)
        elif tensor.shape == param.shape:
            result += [tensor.select(0, row) for row in range(count)]
        else:
            # A number for the whole weight, such as a step count: every row advances one, and the first is kept.
            result += [tensor, *(tensor.clone() for _ in range(count - 1))]
    return result
