"""Reading an optimizer object: its type, its numbers, and which of them are constant.

Nothing here knows about programs; wrong attributes are refused with the exceptions of the original.
"""

from __future__ import annotations

import enum
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from poptorch._logging import logger
from poptorch.optim.adam import Adam, AdamW
from poptorch.optim.attributes import ACCUMULATION_TYPES, HyperValue
from poptorch.optim.base import Optimizer
from poptorch.optim.lamb import LAMB, UNLIMITED_WEIGHT_NORM
from poptorch.optim.rmsprop import RMSprop
from poptorch.optim.sgd import SGD


class OptimizerType(enum.IntEnum):
    """The update algorithms, by the names that logs and warnings use."""

    SGD1 = 0
    SGD2 = 1
    ADAM = 2
    ADAMW = 3
    ADAMW_NO_BIAS = 4
    RMSPROP = 5
    RMSPROP_CENTERED = 6
    LAMB = 7
    LAMB_NO_BIAS = 8

    @property
    def is_sgd(self) -> bool:
        """Either variant of SGD."""
        return self in (OptimizerType.SGD1, OptimizerType.SGD2)

    @property
    def is_rmsprop(self) -> bool:
        """Plain or centred."""
        return self in (OptimizerType.RMSPROP, OptimizerType.RMSPROP_CENTERED)

    @property
    def is_lamb(self) -> bool:
        """With or without bias correction."""
        return self in (OptimizerType.LAMB, OptimizerType.LAMB_NO_BIAS)

    @property
    def clips(self) -> bool:
        """Whether ``max_grad_norm`` has a meaning."""
        return not (self.is_rmsprop or self.is_lamb)

    @property
    def kind(self) -> str:
        """A name for people."""
        return _KINDS[self]


_KINDS = {
    OptimizerType.SGD1: "SGD-combined",
    OptimizerType.SGD2: "SGD",
    OptimizerType.ADAM: "Adam",
    OptimizerType.ADAMW: "AdamW",
    OptimizerType.ADAMW_NO_BIAS: "AdamW-no-bias",
    OptimizerType.RMSPROP: "RMSprop",
    OptimizerType.RMSPROP_CENTERED: "RMSprop-centered",
    OptimizerType.LAMB: "LAMB",
    OptimizerType.LAMB_NO_BIAS: "LAMB-no-bias",
}

_SUPPORTED = (
    SGD,
    Adam,
    AdamW,
    RMSprop,
    LAMB,
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
)

NEVER, ALWAYS = "never", "always"
"""When an attribute of a native optimizer is constant; otherwise: when it has the value given."""

_NATIVE_CONSTANT: Mapping[str, str | float] = {
    "lr": NEVER,
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "eps": 1e-8,
    "betas": ALWAYS,
    "alpha": ALWAYS,
    "velocity_scaling": 1.0,
    "max_weight_norm": UNLIMITED_WEIGHT_NORM,
}

TYPE_ATTRIBUTES = (
    "accum_type",
    "velocity_accum_type",
    "first_order_momentum_accum_type",
    "second_order_momentum_accum_type",
)


def optimizer_type(optimizer: object) -> OptimizerType:
    """Which algorithm ``optimizer`` selects; subclasses count as what they derive from.

    >>> optimizer_type(torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])).name
    'ADAMW'
    """
    if isinstance(optimizer, torch.optim.SGD):
        combined = getattr(optimizer, "use_combined_accum", False)
        return OptimizerType.SGD1 if combined else OptimizerType.SGD2
    # AdamW first: torch derives it from Adam
    if isinstance(optimizer, torch.optim.AdamW) or (
        isinstance(optimizer, torch.optim.Adam) and _common(optimizer, "decoupled_weight_decay", False)
    ):
        return OptimizerType.ADAMW if getattr(optimizer, "bias_correction", True) else OptimizerType.ADAMW_NO_BIAS
    if isinstance(optimizer, torch.optim.Adam):
        return OptimizerType.ADAM
    if isinstance(optimizer, torch.optim.RMSprop):
        centered = _common(optimizer, "centered", False)
        return OptimizerType.RMSPROP_CENTERED if centered else OptimizerType.RMSPROP
    if isinstance(optimizer, LAMB):
        return OptimizerType.LAMB if optimizer.bias_correction else OptimizerType.LAMB_NO_BIAS
    raise AssertionError(
        f"Unsupported optimizer type. Types supported {[member.name for member in OptimizerType]}; "
        f"got an object of {type(optimizer).__module__}.{type(optimizer).__qualname__}. "
        "Use poptorch.optim.SGD, Adam, AdamW, RMSprop or LAMB, or torch's optimizers of these names."
    )


def _common(optimizer: torch.optim.Optimizer, name: str, default: bool) -> bool:
    values = {bool(group.get(name, default)) for group in optimizer.param_groups}
    assert len(values) <= 1, f"All parameter groups must have the same value for the '{name}' attribute"
    return values.pop() if values else default


def warn_about_subclass(optimizer: torch.optim.Optimizer) -> None:
    """Say that Python code of a derived class does not run on the device."""
    kind = type(optimizer)
    if kind in _SUPPORTED or {torch.optim.Optimizer, Optimizer} & set(kind.__bases__):
        return
    parent = next(base for base in kind.__mro__ if base in _SUPPORTED)
    logger.warning(
        "Poptorch does not run Python optimizer code directly: %s will be treated as its base %s.%s, "
        "without any method that it overrides.",
        kind.__qualname__,
        parent.__module__,
        parent.__qualname__,
    )


@dataclass(frozen=True)
class GroupValues:
    """The attributes of one parameter group."""

    numbers: Mapping[str, HyperValue]
    nesterov: bool = False
    maximize: bool = False


def group_attribute_names(kind: OptimizerType) -> tuple[str, ...]:
    """The group attributes that this type reads."""
    if kind.is_sgd:
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        return (*names, "velocity_scaling") if kind == OptimizerType.SGD1 else names
    if kind.is_rmsprop:
        return ("lr", "momentum", "weight_decay", "alpha", "eps", "centered", "maximize")
    if kind.is_lamb:
        return ("lr", "weight_decay", "betas", "eps", "max_weight_norm")
    return ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")


def optimizer_attribute_names(kind: OptimizerType) -> tuple[str, ...]:
    """The attributes of the optimizer object itself that this type reads."""
    names: tuple[str, ...] = ("loss_scaling", "accum_type")
    if kind.is_sgd:
        return (*names, "velocity_accum_type", "use_combined_accum", "max_grad_norm")
    names = (*names, "first_order_momentum_accum_type", "second_order_momentum_accum_type")
    if kind.is_rmsprop:
        return (*names, "use_tf_variant")
    if kind.is_lamb:
        return (*names, "bias_correction", "max_weight_norm")
    return (*names, "bias_correction", "max_grad_norm")


def own_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the user set on the object itself, beside its groups: torch does not pickle it.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> optimizer.loss_scaling = 2.0
    >>> own_attributes(optimizer)
    {'loss_scaling': 2.0}
    """
    names = optimizer_attribute_names(optimizer_type(optimizer))
    return {name: value for name, value in vars(optimizer).items() if name in names}


def read_group(
    optimizer: torch.optim.Optimizer, kind: OptimizerType, group: Mapping[str, Any], *, strict: bool
) -> GroupValues:
    """The attributes of one group (or of ``defaults``), checked, with their constness."""
    _refuse_unsupported_flags(kind, group, strict=strict)
    found: dict[str, HyperValue] = {}
    for name in group_attribute_names(kind):
        if name in ("nesterov", "maximize", "centered", "amsgrad"):
            continue
        if name == "velocity_scaling" and name not in group:
            found[name] = HyperValue(1.0, True)  # a native optimizer that was made combined by an attribute
            continue
        assert name in group, f"Mandatory attribute {name} not found in optimizer group"
        value = group[name]
        constant = _is_constant(optimizer, kind, name, value)
        if name == "betas":
            is_pair = isinstance(value, tuple) and len(value) == 2
            assert is_pair, f"Expected a pair for betas but got {value!r}: pass a tuple of two numbers"
            found["beta1"], found["beta2"] = (HyperValue(_number("betas", beta), constant) for beta in value)
        else:
            found[name] = HyperValue(_number(name, value), constant)
    return GroupValues(found, bool(group.get("nesterov", False)), bool(group.get("maximize", False)))


def _refuse_unsupported_flags(kind: OptimizerType, group: Mapping[str, Any], *, strict: bool) -> None:
    if group.get("amsgrad", False):
        raise ValueError("Only non-amsgrad Adam/AdamW optimizers are supported: leave out amsgrad=True. [PT6004]")
    if kind.is_sgd and strict and group.get("nesterov", False):
        raise ValueError(
            "Nesterov momentum is currently not supported (with strictCompatibility: the original at release "
            "2.6 refuses it, from 3.0 on it does not)."
        )


def _is_constant(optimizer: torch.optim.Optimizer, kind: OptimizerType, name: str, value: Any) -> bool:
    if isinstance(optimizer, Optimizer):
        return optimizer.variable_attrs.isConstant(name)
    rule = _NATIVE_CONSTANT[name]
    if name == "weight_decay" and kind in (OptimizerType.ADAMW, OptimizerType.ADAMW_NO_BIAS):
        rule = 0.01
    return value == rule if isinstance(rule, float) else rule == ALWAYS


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)  # torch allows a tensor as learning rate
    assert isinstance(value, numbers.Real), f"Expected a number for {name} but got {value!r}"
    return float(value)


def read_loss_scaling(optimizer: torch.optim.Optimizer, *, automatic: bool) -> HyperValue:
    """``loss_scaling`` of the optimizer object. Automatic loss scaling makes it variable."""
    value = _number("loss_scaling", getattr(optimizer, "loss_scaling", 1.0))
    if isinstance(optimizer, Optimizer):
        if automatic:
            optimizer.variable_attrs.markAsVariable("loss_scaling")
        return HyperValue(value, optimizer.variable_attrs.isConstant("loss_scaling"))
    return HyperValue(value, value == 1.0 and not automatic)


def read_types(optimizer: torch.optim.Optimizer) -> dict[str, torch.dtype]:
    """The types of accumulators and momenta; float32 where the optimizer does not say."""
    types = {name: getattr(optimizer, name, None) or torch.float32 for name in TYPE_ATTRIBUTES}
    for name, dtype in types.items():
        if dtype not in ACCUMULATION_TYPES:
            raise ValueError(f"{name} must be set to either torch.float16 or torch.float32, not {dtype}")
    return types


def read_max_grad_norm(optimizer: torch.optim.Optimizer, kind: OptimizerType) -> float:
    """The norm that gradients are clipped to; infinite where there is no clipping."""
    value = getattr(optimizer, "max_grad_norm", None)
    limit = math.inf if value is None else _number("max_grad_norm", value)
    if not kind.clips and not math.isinf(limit):
        logger.warning("max_grad_norm=%s is ignored: %s has no gradient clipping.", limit, kind.kind)
        return math.inf
    return limit
