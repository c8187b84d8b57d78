"""Whether a new optimizer can take over a program that was compiled for another one."""

from __future__ import annotations

import math

import torch

from poptorch._logging import logger
from poptorch.enums import MeanReductionStrategy
from poptorch.errors import Error, OptimizerReplacementError, backend_error
from poptorch.optim.attributes import HyperValue
from poptorch.optim.ranges import check_ranges
from poptorch.optim.reading import OptimizerType
from poptorch.optim.rules import AdamRule, CombinedSGD, LambRule, RMSpropRule, Rule, SeparateSGD
from poptorch.optim.spec import GroupSpec, OptimizerSpec, with_variables

_LABELS = {
    "lr": "learning rates",
    "weight_decay": "weight decays",
    "momentum": "momentums",
    "dampening": "dampenings",
    "velocity_scaling": "velocity scalings",
    "beta1": "beta1s",
    "beta2": "beta2s",
    "eps": "eps",
    "max_weight_norm": "mwn",
    "alpha": "alphas",
}


def check_update(old: OptimizerSpec, new: OptimizerSpec) -> OptimizerSpec:
    """Refuse ``new`` if the program compiled for ``old`` cannot follow it; return what the program runs from
    now on.

    The result has the groups and rules of ``old`` and the variable values of ``new``: membership in groups
    is fixed by compilation, further groups of ``new`` are left out.

    >>> import poptorch
    >>> from poptorch.optim.spec import describe
    >>> optimizer = poptorch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> before = describe(optimizer, None)
    >>> optimizer.param_groups[0]["momentum"] = 0.9
    >>> check_update(before, describe(optimizer, None))
    Traceback (most recent call last):
    ...
    poptorch.errors.OptimizerReplacementError: ... New optimizer is not a valid replacement. Problem with momentums. ...
    """
    _check_accumulation(old, new)
    check_ranges(new)
    _check_family(old, new)
    _check_attribute("loss scaling", old.loss_scaling, new.loss_scaling)
    _check_clipping(old, new)
    if len(new.groups) < len(old.groups):
        raise _refused(
            f"different number of specific tensors: the program was compiled with {len(old.groups)} "
            f"parameter groups, the new optimizer has {len(new.groups)}"
        )
    for index, (before, after) in enumerate(zip(old.groups, new.groups, strict=False)):
        _check_group(index, before, after)
    return with_variables(old, new)


def check_members(old: OptimizerSpec, new: OptimizerSpec) -> None:
    """Refuse parameters that the compiled program does not update."""
    known = {id(parameter) for group in old.groups for parameter in group.parameters}
    for index, group in enumerate(new.groups):
        for position, parameter in enumerate(group.parameters):
            if id(parameter) not in known:
                raise _refused(
                    f"Parameter {position} of group {index}, of shape {list(parameter.shape)}, was not in the "
                    "optimizer that the model was compiled with. Call destroy() on the model, and wrap it again."
                )


def _check_accumulation(old: OptimizerSpec, new: OptimizerSpec) -> None:
    needs_running = new.accum_type == torch.float16 and new.type != OptimizerType.SGD1
    if needs_running and old.strategy != MeanReductionStrategy.Running:
        raise ValueError(
            "Gradients accumulated in torch.float16 need the mean reduction strategy Running, but the "
            f"executable is already compiled with {old.strategy.name}. Set accum_type before "
            "that."
        )


def _check_family(old: OptimizerSpec, new: OptimizerSpec) -> None:
    if _family(old.type) != _family(new.type):
        raise _refused(
            f"Can not replace optimizer of type {_family(old.type)} with new optimizer of type {_family(new.type)}"
        )
    if _adam_mode(old.type) != _adam_mode(new.type):
        raise _refused(f"Adam modes do not match: {old.kind} and {new.kind}")
    if (old.type == OptimizerType.ADAM) != (new.type == OptimizerType.ADAM):
        raise _refused(f"Weight decay modes do not match: {old.kind} and {new.kind}")
    if old.type.is_rmsprop and old.type != new.type:
        raise _refused(f"Adaptive modes do not match: {old.kind} and {new.kind}")


def _family(kind: OptimizerType) -> str:
    return "SGD" if kind.is_sgd else "Adaptive" if kind.is_rmsprop else "Adam"


def _adam_mode(kind: OptimizerType) -> str | None:
    if _family(kind) != "Adam":
        return None
    return kind.name if kind.is_lamb else "ADAM"


def _check_clipping(old: OptimizerSpec, new: OptimizerSpec) -> None:
    if math.isinf(old.max_grad_norm) != math.isinf(new.max_grad_norm):
        raise _refused("Clip norm settings do not match.")
    if old.max_grad_norm != new.max_grad_norm:
        raise _refused(
            f"Clip norm settings at index 0 do not match. max_grad_norm was compiled as {old.max_grad_norm}, "
            f"now it is {new.max_grad_norm}"
        )


def _check_group(index: int, old: GroupSpec, new: GroupSpec) -> None:
    where = f" (group {index})"
    if old.has_velocity != new.has_velocity:
        phrases = "this does not require", "other does"
        if old.has_velocity:
            phrases = "this requires", "other does not"
        before, after = old.values.numbers["momentum"], new.values.numbers["momentum"]
        cause = _difference(_LABELS["momentum"], before, after, where)
        raise _refused(f"{phrases[0]} a velocity tensor, but {phrases[1]}. {cause}")
    if old.has_velocity and _velocity_form(old.rule) != _velocity_form(new.rule):
        raise _refused(
            f"this has SGDAccumulatorAndMomentum {_velocity_form(old.rule)}, other has "
            f"{_velocity_form(new.rule)}{where}"
        )
    for name, attribute in old.values.numbers.items():
        _check_attribute(_LABELS[name], attribute, new.values.numbers.get(name, attribute), where)
    for name in ("nesterov", "maximize"):
        before, after = getattr(old.values, name), getattr(new.values, name)
        _check_attribute(name, HyperValue(before, True), HyperValue(after, True), where)
    _mention_ignored(index, old, new)


def _velocity_form(rule: Rule) -> str:
    if isinstance(rule, CombinedSGD):
        return "Combined"
    assert isinstance(rule, SeparateSGD)
    return f"Separate with {rule.velocity_type}"


def _check_attribute(label: str, old: HyperValue, new: HyperValue, where: str = "") -> None:
    problem = _difference(label, old, new, where)
    if problem:
        raise _refused(problem)


def _difference(label: str, old: HyperValue, new: HyperValue, where: str) -> str:
    """Why the program cannot use ``new`` instead of ``old``; empty if it can."""
    if old.is_constant != new.is_constant:
        compiled_as = "constant" if old.is_constant else "variable"
        return (
            f"Problem with {label}. Can not replace a constant value with a non constant value. It was "
            f"compiled as {compiled_as}{where}; with an optimizer of poptorch.optim, variable_attrs.markAsVariable and "
            "markAsConstant before compiling decide."
        )
    if old.is_constant and old.value != new.value:
        return (
            f"Problem with {label}. Values are constant but do not match. Compiled with {old.value}, now "
            f"{new.value}{where}. To change it, call destroy() on the model and wrap it again; with an optimizer of "
            "poptorch.optim, attributes that are marked as variable before compiling can change at any time."
        )
    return ""


def _mention_ignored(index: int, old: GroupSpec, new: GroupSpec) -> None:
    """Types and flags that are compiled in and, like in the original, do not stop the replacement."""
    if old.accum_type != new.accum_type:
        logger.warning("accum_type=%s is ignored: group %d was compiled with %s", new.accum_type, index, old.accum_type)
    if not isinstance(old.rule, AdamRule | LambRule | RMSpropRule) or type(old.rule) is not type(new.rule):
        return
    for name in ("first_type", "second_type", "tf_variant"):
        before, after = getattr(old.rule, name, None), getattr(new.rule, name, None)
        if before != after:
            logger.warning("%s=%s is ignored: group %d was compiled with %s", name, after, index, before)


def _refused(reason: str) -> Error:
    advice = "" if "destroy()" in reason else " To use it, call destroy() on the model and wrap it again."
    return backend_error(
        f"New optimizer is not a valid replacement. {_sentence(reason)}{advice}", kind=OptimizerReplacementError
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
