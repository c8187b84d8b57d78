"""Hooks of the user on the gradients of parameters: they become part of the program, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from poptorch.errors import Error, createPoptorchError

_HOW = "register_post_accumulate_grad_hook"


def copy_hooks(name: str, source: torch.Tensor, target: torch.Tensor) -> None:
    """What the user registered on the gradient of a parameter belongs to the model as much as its layers do."""
    for hook in (source._backward_hooks or {}).values():
        target.register_hook(hook)
    for hook in (source._post_accumulate_grad_hooks or {}).values():
        target.register_post_accumulate_grad_hook(_explained(name, hook))


def check_accumulated(model: nn.Module, micro_batches: int, *, scaled: bool) -> None:
    """Refuse hooks on the accumulated gradient, where they would see another one than in torch.

    ``micro_batches`` is how many of them one update of the weights takes, ``scaled`` says whether the loss is.
    """
    if micro_batches == 1 and not scaled:
        return
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter._post_accumulate_grad_hooks:
            why = (
                f"One update takes {micro_batches} micro-batches here, and it would see the gradient of each alone. "
                "Use one replica and no gradient accumulation"
                if micro_batches > 1
                else "Loss scaling multiplies all gradients, and it would see them so. Use an optimizer without it"
            )
            raise createPoptorchError(
                f"Parameter {name} has a hook on its accumulated gradient ({_HOW}). {why}, or register_hook() for what "
                "is done to the gradient of each micro-batch, or max_grad_norm of poptorch.optim to limit all of them."
            )


def _explained(name: str, hook: Callable[[Any], Any]) -> Callable[[Any], None]:
    """The hook; what goes wrong in it is said in terms of the model."""

    def run(parameter: Any) -> None:
        with _no_step(name):
            try:
                result = hook(parameter)
            except Error:
                raise
            except Exception as error:
                raise createPoptorchError(
                    f"The hook on the accumulated gradient of parameter {name} ({_HOW}) failed while the model was "
                    f"compiled: {type(error).__name__}: {error}. It gets a tensor that stands for the parameter, which "
                    "is not found by identity. If it steps an optimizer, pass that to poptorch.trainingModel instead. "
                    "If it changes the gradient, register_hook(lambda gradient: ...) does so."
                ) from error
        if result is not None:
            raise createPoptorchError(
                f"The hook on the accumulated gradient of parameter {name} ({_HOW}) returned a {type(result).__name__} "
                "but has to return None: let it change parameter.grad in place, in a function of its own."
            )

    return run


@contextmanager
def _no_step(name: str) -> Iterator[None]:
    """Refuse steps of optimizers: they would change the tensors of the host, which have no gradients."""

    def refuse(*_: Any) -> NoReturn:
        raise createPoptorchError(
            f"The hook on the accumulated gradient of parameter {name} ({_HOW}) calls the step of an optimizer. The "
            "update of the weights is part of the program: remove the hook, and pass the optimizer to "
            "poptorch.trainingModel(model, options, optimizer)."
        )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
