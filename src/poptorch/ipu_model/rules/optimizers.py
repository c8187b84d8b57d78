"""Rules for operations on lists of tensors, and for fused optimizer steps: one tensor after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.cycles import elementwise
from poptorch.ipu_model.cycles.scaled_add import scaled_add
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.expressions import expression, sequence
from poptorch.ipu_model.rules.passes import each_element
from poptorch.ipu_model.steps import CostStep, OpCost

_FLOAT = torch.float32
PREFIX = "_foreach_"


def each_tensor(rule: Rule) -> Rule:
    """A rule for a list of tensors, from that for one: PopART updates every weight by operations of its own."""

    def of_all(call: CostedCall) -> OpCost:
        costs = [rule(one) for one in _calls(call)]
        return OpCost(
            tuple(step for cost in costs for step in cost.steps),
            sum(cost.flops for cost in costs),
            all(cost.covered for cost in costs),
        )

    return of_all


def _calls(call: CostedCall) -> Iterator[CostedCall]:
    """The same operation for each tensor."""
    count = max((len(v) for _, v in call.arguments if isinstance(v, tuple)), default=0)
    for index in range(count):
        arguments = tuple((name, _item(value, index)) for name, value in call.arguments)
        yield replace(call, arguments=arguments, results=call.results[index : index + 1])


def _item(value: Any, index: int) -> Any:
    return value[min(index, len(value) - 1)] if isinstance(value, tuple) and value else value


# -- fused steps -------------------------------------------------------------------------------------------------------


def scaled_add_step(
    chip: Architecture, name: str, target: CostedOperand, source: torch.dtype, both_scaled: bool = False
) -> CostStep:
    """``target += scale * source``, where it lies."""
    dtype = target.element_type
    return each_element(
        chip, name, target.elements, dtype, lambda n: scaled_add(n, dtype, source, both_scaled), "scaled_add"
    )


def _tensors(call: CostedCall, *names: str) -> Iterator[list[CostedOperand]]:
    """One tensor of each list at a time; lists that the optimizer does not use are taken as the weights."""
    lists = [call.get(name) or call["self"] for name in names]
    yield from (list(tensors) for tensors in zip(*lists, strict=True))


def _adam(call: CostedCall) -> OpCost:
    """Both moments, the direction as one expression, and the weight."""
    chip, steps = call.chip, []
    for weight, gradient, first, second, largest in _tensors(
        call, "self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"
    ):
        if call.get("weight_decay"):
            steps += sequence(chip, "weight decay", "multiply#", weight.elements, weight.element_type)
        steps.append(scaled_add_step(chip, "first moment", first, gradient.element_type, both_scaled=True))
        steps.append(_fused(chip, "second moment", second, 4))
        if call.get("amsgrad"):
            steps += sequence(chip, "largest moment", "maximum", largest.elements, largest.element_type)
        steps.append(expression(chip, "direction", "sqrt divide", weight.elements, _FLOAT))
        steps.append(scaled_add_step(chip, "weight", weight, _FLOAT))
    return OpCost(tuple(steps), 12.0 * sum(weight.elements for weight in call["self"]))


def _fused(chip: Architecture, name: str, tensor: CostedOperand, operations: int) -> CostStep:
    dtype = tensor.element_type
    return each_element(chip, name, tensor.elements, dtype, lambda n: elementwise.fused(n, operations, dtype), "fused")


def _descent(call: CostedCall) -> OpCost:
    """Weight decay, velocity, weight."""
    chip, steps = call.chip, []
    for weight, gradient, velocity in _tensors(call, "self", "grads", "momentum_buffer_list"):
        if call.get("weight_decay"):
            steps += sequence(chip, "weight decay", "multiply#", weight.elements, weight.element_type)
        if call.get("momentum"):
            steps.append(scaled_add_step(chip, "velocity", velocity, gradient.element_type, both_scaled=True))
            if call.get("nesterov"):
                steps.append(scaled_add_step(chip, "look ahead", weight, gradient.element_type))
        steps.append(scaled_add_step(chip, "weight", weight, gradient.element_type))
    return OpCost(tuple(steps), 4.0 * sum(weight.elements for weight in call["self"]))


def _adagrad(call: CostedCall) -> OpCost:
    chip, steps = call.chip, []
    for weight, total in _tensors(call, "self", "state_sums"):
        steps.append(_fused(chip, "sum of squares", total, 2))
        steps.append(expression(chip, "direction", "sqrt divide", weight.elements, _FLOAT))
        steps.append(scaled_add_step(chip, "weight", weight, _FLOAT))
    return OpCost(tuple(steps), 6.0 * sum(weight.elements for weight in call["self"]))


def _unscale(call: CostedCall) -> OpCost:
    """Check for numbers that are none, and divide by the loss scale."""
    chip, steps = call.chip, []
    for (tensor,) in _tensors(call, "self"):
        steps += sequence(chip, call.name, "isfinite multiply#", tensor.elements, tensor.element_type)
    return OpCost(tuple(steps))


_FUSED: dict[str, Callable[[CostedCall], OpCost]] = {
    "_fused_adam": _adam,
    "_fused_adamw": _adam,
    "_fused_sgd": _descent,
    "_fused_adagrad": _adagrad,
    "_amp_foreach_non_finite_check_and_unscale": _unscale,
}

RULES: Table = dict(_FUSED)

__all__ = ["PREFIX", "RULES", "each_tensor", "scaled_add_step"]
