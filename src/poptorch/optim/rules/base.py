"""What an update rule is: the part of an optimizer that runs inside the compiled program.

A rule changes weights and state *in place*, with traceable torch calls only. Each update has two halves,
because gradient clipping needs one norm over all weights of all groups:

1. ``prepare_`` turns gradients into the quantity that clipping measures (and updates what comes before it);
2. ``apply_`` takes that quantity and one common clipping factor and updates the rest.

``update_`` does both for one group. A program with several groups (or one whose weights are spread over
stages) and ``max_grad_norm`` runs all first halves, then :func:`clipping_factor` over everything, then all
second halves: :meth:`poptorch.optim.spec.OptimizerSpec.update_`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from poptorch.optim.rules.vectors import Scalar, norms, scaled

State = dict[str, list[Tensor]]
"""Name of a piece of state → one tensor for each parameter of the group, in order."""

LOSS_SCALE_FACTOR = "loss_scale_factor"
"""Name of the extra input of rules under automatic loss scaling: the factor found by it (its ``f``)."""


@runtime_checkable
class UpdateRule(Protocol):
    """How the weights of one group and their optimizer state change in one step."""

    def init_state(self, params: Sequence[Tensor]) -> State:
        """State before the first step."""

    def update_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> None:
        """One step of this group alone; clipping sees only this group."""

    def prepare_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """First half of a step; returns what clipping measures."""

    def apply_(
        self,
        params: Sequence[Tensor],
        clipped: Sequence[Tensor],
        state: State,
        hyper: Mapping[str, Tensor],
        clip: Tensor | None,
    ) -> None:
        """Second half of a step: ``clipped`` comes from ``prepare_``, not yet multiplied by ``clip``."""

    def structure(self) -> Hashable:
        """Everything of the rule that is compiled in."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names that ``hyper`` must have."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """Common parts of the rules; the scalars are those of the state dictionary's ``ipu_param``."""

    constants: Mapping[str, float]
    variables: tuple[str, ...]
    max_grad_norm: float = math.inf
    automatic_loss_scaling: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names that ``hyper`` must have."""
        return (*self.variables, LOSS_SCALE_FACTOR) if self.automatic_loss_scaling else self.variables

    def scalar(self, name: str, hyper: Mapping[str, Tensor]) -> Scalar:
        """The number compiled in, or the input that may change."""
        constant = self.constants.get(name)
        return hyper[name] if constant is None else constant

    def unscaling(self, name: str, hyper: Mapping[str, Tensor]) -> Scalar:
        """A scalar that removes the loss scaling; automatic loss scaling put its own factor on top."""
        factor = self.scalar(name, hyper)
        return factor / hyper[LOSS_SCALE_FACTOR] if self.automatic_loss_scaling else factor

    def structure(self) -> Hashable:
        """Everything of the rule that is compiled in; initial values of state are data and not part of it."""
        fields = (
            (field.name, _hashable(getattr(self, field.name)))
            for field in dataclasses.fields(self)
            if not field.name.startswith("initial_")
        )
        return (type(self).__name__, *fields)

    def init_state(self, params: Sequence[Tensor]) -> State:
        """State before the first step."""
        raise NotImplementedError

    def prepare_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """First half of a step; returns what clipping measures."""
        raise NotImplementedError

    def apply_(
        self,
        params: Sequence[Tensor],
        clipped: Sequence[Tensor],
        state: State,
        hyper: Mapping[str, Tensor],
        clip: Tensor | None,
    ) -> None:
        """Second half of a step."""
        raise NotImplementedError

    def update_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> None:
        """One step of this group alone; clipping sees only this group."""
        if not params:
            return
        measured = self.prepare_(params, grads, state, hyper)
        self.apply_(params, measured, state, hyper, clipping_factor(measured, self.max_grad_norm))


def clipping_factor(measured: Iterable[Tensor], max_norm: float) -> Tensor | None:
    """``max_norm / max(N, max_norm)`` with N the norm over all tensors together; ``None`` if nothing is
    clipped.

    >>> clipping_factor([torch.tensor([3.0, 4.0])], 2.5)
    tensor(0.5000, dtype=torch.float64)
    """
    measured = list(measured)
    if math.isinf(max_norm) or not measured:
        return None
    return max_norm / torch.linalg.vector_norm(norms(measured)).clamp_min(max_norm)


def zeros_like(params: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """One tensor of zeros for each parameter, laid out like it."""
    return [torch.zeros_like(param, dtype=dtype, requires_grad=False) for param in params]


def unscaled(
    grads: Sequence[Tensor], factor: Scalar, accum_type: torch.dtype, *moment_types: torch.dtype
) -> list[Tensor]:
    """``factor * grad``; float16 accumulators are widened first when everything behind them is float32."""
    if accum_type == torch.float16 and all(dtype == torch.float32 for dtype in moment_types):
        grads = [grad.float() if grad.dtype == torch.float16 else grad for grad in grads]
    return scaled(grads, factor)


def _hashable(value: object) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    if isinstance(value, torch.dtype):
        return str(value)
    assert isinstance(value, Hashable)
    return value
