"""How single operations compute several micro-batches at once: rows after rows, or sums over all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poptorch.ops.hints import HINTS, NOP

aten = torch.ops.aten


@dataclass(frozen=True)
class Operand:
    """An argument of a call."""

    value: Any
    stacked: bool
    """Whether its first dimension is the micro-batch."""

    transposed: torch.Tensor | None = None
    """What it is the transpose of, if it is one."""


@dataclass(frozen=True)
class StackedCall:
    """One operation with its operands."""

    target: Any
    operands: Sequence[Operand]
    keywords: Mapping[str, Operand]
    count: int
    """Of micro-batches."""

    def are_stacked(self, *wanted: int) -> bool:
        """Whether just the operands at these places are stacked."""
        found = {at for at, operand in enumerate(self.operands) if operand.stacked}
        return found == set(wanted) and not any(o.stacked for o in self.keywords.values())

    def on_rows(self) -> Any:
        """The operation on stacked operands laid end to end."""
        args = [_end_to_end(o.value) if o.stacked else o.value for o in self.operands]
        return self.target(*args, **{key: o.value for key, o in self.keywords.items()})

    def directly(self) -> Any:
        """The operation on stacked operands as they are."""
        return self.target(*(o.value for o in self.operands), **{key: o.value for key, o in self.keywords.items()})

    def apart(self, value: torch.Tensor) -> torch.Tensor:
        """Rows divided into micro-batches again."""
        return value.unflatten(0, (self.count, -1))


Rule = Callable[[StackedCall], Any]
"""The results, or ``None`` where the rule does not apply."""


def _end_to_end(value: torch.Tensor) -> torch.Tensor:
    return value.flatten(0, 1)


# -- stacked results -----------------------------------------------------------------------------------------------


def _element_wise(call: StackedCall) -> Any:
    """Broadcasting looks at the last dimensions, so one more in front changes nothing where all stacked values have it
    at the same place, and no other has as many. Single numbers are left to ``vmap``: without a dimension they count
    less in the choice of the result's type."""
    operands = [*call.operands, *call.keywords.values()]
    if not all(isinstance(o.value, (torch.Tensor, int, float, bool, str, type(None), torch.dtype)) for o in operands):
        return None
    sizes = {o.value.ndim for o in operands if o.stacked}
    most = max((o.value.ndim for o in operands if isinstance(o.value, torch.Tensor) and not o.stacked), default=0)
    return call.directly() if len(sizes) == 1 and most < max(sizes) > 1 else None


def _in_the_form_of_the_first(call: StackedCall) -> Any:
    return _element_wise(call) if call.operands[0].stacked else None


def _rows_by(*places: int) -> Rule:
    """For operations that treat each row of the operands at these places by itself; the others are equal for all."""

    def rule(call: StackedCall) -> Any:
        return call.apart(call.on_rows()) if call.are_stacked(*places) else None

    return rule


def _leading_dimensions(*places: int) -> Rule:
    """For operations that take any number of leading dimensions."""

    def rule(call: StackedCall) -> Any:
        return call.directly() if call.are_stacked(*places) else None

    return rule


def _batch_norm(call: StackedCall) -> Any:
    """With given statistics, each row by itself. The other results are empty."""
    if not call.are_stacked(0):
        return None
    result, *empty = call.on_rows()
    return call.apart(result), *(e.expand(call.count, *e.shape) for e in empty)


def _convolution_backward(call: StackedCall) -> Any:
    if not call.are_stacked(0, 1):
        return None
    inputs, weights, biases = call.on_rows()
    return None if inputs is None else call.apart(inputs), weights, biases


def _attention(call: StackedCall) -> Any:
    tensors = [o for o in call.operands if isinstance(o.value, torch.Tensor)]
    mask = call.keywords.get("attn_mask", Operand(None, False))
    if not all(o.stacked for o in tensors) or mask.stacked or (mask.value is not None and mask.value.shape[0] != 1):
        return None
    return tuple(map(call.apart, call.on_rows()))


RULES: dict[Any, Rule] = {
    **dict.fromkeys((NOP, *HINTS), _leading_dimensions(0)),
    aten.copy.default: _in_the_form_of_the_first,
    aten.fill.Scalar: _in_the_form_of_the_first,
    aten.fill.Tensor: _in_the_form_of_the_first,
    aten.zero.default: _in_the_form_of_the_first,
    aten.mm.default: _rows_by(0),
    aten.addmm.default: _rows_by(1),
    aten.convolution.default: _rows_by(0),
    aten.convolution_backward.default: _convolution_backward,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.embedding.default: _leading_dimensions(1),
    aten.native_layer_norm.default: _leading_dimensions(0),
    aten.native_layer_norm_backward.default: _leading_dimensions(0, 1, 3, 4),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention,
}


def rule_for(target: Any) -> Rule | None:
    """How to compute an operation; ``None`` leaves it to ``vmap``."""
    rule = RULES.get(target)
    if rule is None and torch.Tag.pointwise in getattr(target, "tags", ()):
        return _element_wise
    return rule


PARTIAL_SUMS: dict[Any, tuple[int, ...]] = {
    aten.convolution_backward.default: (1, 2),
    aten.native_layer_norm_backward.default: (1, 2),
}
"""Which results of a rule are summed over the micro-batches, where the others are stacked."""


# -- totals --------------------------------------------------------------------------------------------------------


def _product(call: StackedCall) -> Any:
    """Longer factors: the sum over rows that a product is goes over the rows of all micro-batches."""
    if not call.are_stacked(0, 1):
        return None
    left, right = call.operands
    if left.transposed is not None:
        first = _end_to_end(left.transposed).t()
    else:
        first = left.value.transpose(0, 1).flatten(1)
    return call.target(first, _end_to_end(right.value))


def _sum(call: StackedCall) -> Any:
    operand, dims = call.operands[0], call.operands[1].value
    if not call.are_stacked(0) or not dims or not any(d in (0, 1 - operand.value.ndim) for d in dims):
        return None
    return call.on_rows()


def _embedding_backward(call: StackedCall) -> Any:
    return call.on_rows() if call.are_stacked(0, 1) and not call.operands[4].value else None


TOTAL_RULES: dict[Any, Rule] = {
    **dict.fromkeys((NOP, *HINTS), _leading_dimensions(0)),
    aten.mm.default: _product,
    aten.sum.dim_IntList: _sum,
    aten.embedding_dense_backward.default: _embedding_backward,
}
