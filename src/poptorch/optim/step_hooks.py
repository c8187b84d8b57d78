"""Hooks on the step of an optimizer, which no program of an IPU can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from poptorch.frames import warn_user


class StepHooks:
    """Says of each hook, once, that it is never called.

    >>> import warnings
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> handle = optimizer.register_step_post_hook(print)
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     StepHooks().check(optimizer)
    >>> str(said[0].message)[:57]
    'The hook print, from register_step_post_hook of the optim'
    """

    def __init__(self) -> None:
        self._said: set[int] = set()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Warn of hooks that were registered since the last time. Every call of a training model asks."""
        if not (
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
        ):
            return
        of_this, of_all = "{} of the optimizer", "torch.optim.optimizer.{}"
        for hooks, how in (
            (optimizer._optimizer_step_pre_hooks, of_this.format("register_step_pre_hook")),
            (optimizer._optimizer_step_post_hooks, of_this.format("register_step_post_hook")),
            (torch_optimizer._global_optimizer_pre_hooks, of_all.format("register_optimizer_step_pre_hook")),
            (torch_optimizer._global_optimizer_post_hooks, of_all.format("register_optimizer_step_post_hook")),
        ):
            for key, hook in hooks.items():
                if key not in self._said and not str(getattr(hook, "__module__", "")).startswith("poptorch."):
                    self._said.add(key)
                    _warn(hook, how)


def _warn(hook: Callable[..., Any], how: str) -> None:
    code = getattr(hook, "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    warn_user(
        f"The hook {getattr(hook, '__name__', repr(hook))}{where}, from {how}, is never called: the step of the "
        "optimizer is part of the program on the IPU, which may take several in one call. Call the function before or "
        "after the calls of the training model: then setOptimizer() sends changed learning rates, and "
        "copyWeightsToDevice() sends weights that it wrote. What changes gradients can be a hook of a parameter, "
        "register_hook(), or max_grad_norm of poptorch.optim.",
    )
