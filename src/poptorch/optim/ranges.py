"""Numbers that make no sense in an optimizer; looked at when a program is built or its optimizer replaced."""

from __future__ import annotations

import math
from collections import Counter

from poptorch.enums import MeanReductionStrategy
from poptorch.errors import backend_error
from poptorch.optim.attributes import HyperValue
from poptorch.optim.reading import OptimizerType
from poptorch.optim.spec import GroupSpec, OptimizerSpec

_NAMES = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "velocity_scaling": "velocity scaling",
    "max_weight_norm": "maximum weight norm",
}


def check_ranges(spec: OptimizerSpec) -> None:
    """Raise ``poptorch.Error`` for a number that no update can be computed with.

    >>> import poptorch, torch
    >>> from poptorch.optim.spec import describe
    >>> optimizer = poptorch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, loss_scaling=0.0)
    >>> check_ranges(describe(optimizer, None))
    Traceback (most recent call last):
    ...
    poptorch.errors.Error: ... Loss scaling cannot be 0 ...
    """
    scaling = spec.loss_scaling.value
    if scaling == 0 or not math.isfinite(scaling):
        raise backend_error(f"Loss scaling cannot be 0, NaN or infinite, but it is {scaling}. Set 1.0 for no scaling")
    if math.isnan(spec.max_grad_norm):
        raise backend_error("Maximum norm of gradients cannot be NaN; leave max_grad_norm out for no clipping")
    if spec.strategy == MeanReductionStrategy.PostAndLoss:
        raise backend_error(
            "Value for MeanReductionStrategy out of range: PostAndLoss is no longer supported, use Post or Running"
        )
    for index, group in enumerate(spec.groups):
        _check_group(spec.type, index, group)
    _check_duplicates(spec)


def _check_group(kind: OptimizerType, index: int, group: GroupSpec) -> None:
    numbers = group.values.numbers
    if numbers["lr"].is_always(0.0):
        raise backend_error(
            f"Constant, zero learning rate in group {index}: nothing would ever be learnt. Pass lr to the "
            'optimizer, or call variable_attrs.markAsVariable("lr"), if it is to change later.'
        )
    for name in ("lr", "weight_decay", "momentum", "dampening", "beta1", "beta2", "alpha"):
        if name in numbers and not numbers[name].value >= 0:
            raise backend_error(f"Negative {_NAMES.get(name, name)} in group {index}: {numbers[name].value}")
    for name in ("eps", "velocity_scaling"):
        if name in numbers and not numbers[name].value > 0:
            label = _NAMES.get(name, name)
            raise backend_error(f"Non-positive {label} in group {index}: {numbers[name].value}")
    dampening = numbers.get("dampening", HyperValue(0.0, True)).value
    if kind.is_sgd and group.values.nesterov and group.has_velocity and dampening > 0:
        raise backend_error(f"Nesterov momentum cannot be combined with dampening ({dampening}, group {index})")


def _check_duplicates(spec: OptimizerSpec) -> None:
    times = Counter(id(param) for group in spec.groups for param in group.parameters)
    for index, group in enumerate(spec.groups):
        for position, param in enumerate(group.parameters):
            if times[id(param)] > 1:
                raise backend_error(
                    f"Parameter {position} of group {index}, shape {tuple(param.shape)}: there is already a "
                    "specific value for it present. List each parameter once in the optimizer."
                )
