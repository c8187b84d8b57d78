"""The optimizer that a trainer asks for, as one that runs on IPUs."""

from __future__ import annotations

import types
from typing import Any

import torch

from poptorch import optim
from poptorch._logging import logger
from poptorch.errors import createPoptorchError

_SHARED = ("lr", "weight_decay")


def on_device(optimizer: torch.optim.Optimizer, max_grad_norm: float, loss_scaling: float) -> torch.optim.Optimizer:
    """The same optimizer from ``poptorch.optim``, with the trainer's limit of the gradients' norm.

    Its ``step`` and ``zero_grad`` do nothing: the compiled program has done that already.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> on_device(torch.optim.AdamW([weight], lr=0.1), max_grad_norm=1.0, loss_scaling=1.0).max_grad_norm
    1.0
    """
    made = optimizer if isinstance(optimizer, optim.Optimizer) else _translated(optimizer, loss_scaling)
    if hasattr(made, "max_grad_norm"):
        if made is not optimizer and max_grad_norm:
            made.max_grad_norm = max_grad_norm
    elif max_grad_norm:
        logger.warning(
            "%s does not limit the norm of gradients: max_grad_norm=%g has no effect.",
            type(made).__name__,
            max_grad_norm,
        )
    made.step = types.MethodType(_nothing, made)  # type: ignore[method-assign]
    made.zero_grad = types.MethodType(_nothing, made)  # type: ignore[method-assign]
    made._opt_called = True  # type: ignore[attr-defined]
    return made


def _nothing(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    """Done on the device."""


_nothing._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
# With this mark and `_opt_called`, torch's schedulers do not warn that they were not told of steps.


def _translated(optimizer: torch.optim.Optimizer, loss_scaling: float) -> torch.optim.Optimizer:
    groups = [dict(group) for group in optimizer.param_groups if group["params"]]
    kind = type(optimizer)
    table: dict[type, tuple[Any, tuple[str, ...]]] = {
        torch.optim.AdamW: (optim.AdamW, ("betas", "eps")),
        torch.optim.Adam: (optim.Adam, ("betas", "eps")),
        torch.optim.SGD: (optim.SGD, ("momentum", "dampening", "nesterov")),
        torch.optim.RMSprop: (optim.RMSprop, ("alpha", "eps", "momentum", "centered")),
    }
    if kind not in table or any(group.get("amsgrad") for group in groups):
        raise createPoptorchError(
            f"The optimizer {kind.__name__} does not run on IPUs. Choose optim='adamw_torch', 'sgd' or 'rmsprop' in "
            "the training arguments, set lamb=True, or pass an optimizer of poptorch.optim to the trainer."
        )
    made, names = table[kind]
    wanted = [{name: group[name] for name in ("params", *_SHARED, *names)} for group in groups]
    first = {name: groups[0][name] for name in (*_SHARED, *names)}
    return made(wanted, loss_scaling=loss_scaling, **first)


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """All that a schedule may have changed: rates, momenta, decay, of each group.

    >>> settings_of(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))[0]["lr"]
    0.1
    """
    return [
        {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in group.items()}
        for group in ({**group, "params": len(group["params"])} for group in optimizer.param_groups)
    ]


def lamb(optimizer: torch.optim.Optimizer, loss_scaling: float, bias_correction: bool) -> torch.optim.Optimizer:
    """LAMB with the groups and the rates of an Adam."""
    groups = [dict(group) for group in optimizer.param_groups if group["params"]]
    names = (*_SHARED, "betas", "eps")
    wanted = [{name: group[name] for name in ("params", *names)} for group in groups]
    first = {name: groups[0][name] for name in names}
    return optim.LAMB(wanted, loss_scaling=loss_scaling, bias_correction=bias_correction, **first)


def rebind(scheduler: Any, old: torch.optim.Optimizer, new: torch.optim.Optimizer) -> None:
    """Let a scheduler of learning rates change another optimizer, which has the same groups."""
    for given, made in zip((group for group in old.param_groups if group["params"]), new.param_groups, strict=True):
        for name, value in given.items():
            made.setdefault(name, value)  # what schedulers note down, such as initial_lr
    for each in [scheduler, *getattr(scheduler, "_schedulers", ())]:
        if getattr(each, "optimizer", None) is old:
            each.optimizer = new
        if each is not scheduler:
            rebind(each, old, new)
