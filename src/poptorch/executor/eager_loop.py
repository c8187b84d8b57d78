"""What is left of an eager training loop around a training model, and does nothing there: said once."""

from __future__ import annotations

import functools
import sys
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from poptorch.errors import BackwardCallError, misuse
from poptorch.executor.outputs import refuse_backward
from poptorch.frames import warn_user

TYPE_CHANGES = frozenset({"half", "float", "double", "bfloat16"})
"""Methods of modules that change the types of their weights."""

_SCALING = torch.amp.grad_scaler.__file__
_CLIPPING = torch.nn.utils.clip_grad_norm_.__code__.co_filename
_said: set[str] = set()


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient that the host has of a parameter of a training model: usually none, which clipping should hear."""
    with torch._C.DisableTorchFunctionSubclass():
        gradient = parameter.grad
    if gradient is None and "scaling" not in _said and _is_called_from(_SCALING):
        _said.add("scaling")
        warn_user(
            "GradScaler has no effect: gradients are computed and used in the call, on the IPU. Leave it out, and give "
            "the optimizer a scale instead, for instance poptorch.optim.AdamW(..., loss_scaling=1024.0)."
        )
    if gradient is None and "clipping" not in _said and _is_called_from(_CLIPPING):
        _said.add("clipping")
        warn_user(
            "Clipping gradients after a call has no effect: the weights are updated in the call, on the IPU. Give the "
            "optimizer a limit instead, for instance poptorch.optim.AdamW(..., max_grad_norm=1.0)."
        )
    return gradient


def _is_called_from(file: str) -> bool:
    frame = sys._getframe(3)  # of what looked at ``grad``
    return frame.f_code.co_filename == file


def _refuse_scaled_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise misuse(
        BackwardCallError,
        "backward() cannot be called on the scaled output of a PopTorch model: a training model runs the backward pass "
        "in each call, and GradScaler has no effect on it. Leave out scale(), backward(), step() and update(), and "
        "give the optimizer a scale instead, for instance poptorch.optim.AdamW(..., loss_scaling=1024.0).",
    )


def explain_scaling() -> None:
    """Let what a ``GradScaler`` makes of a result refuse ``backward()``, as the result itself does.

    torch's own error speaks of a missing ``grad_fn``. Results are plain tensors, which carry nothing into products, so
    the scaler is where the two can be told apart.
    """
    scale = torch.amp.GradScaler.scale
    if hasattr(scale, "__wrapped__"):
        return

    @functools.wraps(scale)
    def scale_and_tell(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        several = isinstance(outputs, (list, tuple))
        for given, made in zip(outputs, scaled, strict=True) if several else [(outputs, scaled)]:
            if getattr(given, "backward", None) is refuse_backward:
                made.backward = _refuse_scaled_backward
        return scaled

    torch.amp.GradScaler.scale = scale_and_tell  # type: ignore[method-assign, assignment]


def told_of_type_change(name: str) -> None:
    """The weights of a compiled model are about to get another type, which its program does not."""
    warn_user(
        f"{name}() changes the weights on the host. The program is compiled, and goes on with the types that it was "
        f"compiled for. Call {name}() on the model before it is compiled, or destroy() and wrap it again."
    )


class StepNotice:
    """Says that ``optimizer.step()`` of the host updates nothing."""

    def __init__(self) -> None:
        self._handle: RemovableHandle | None = None

    def put_on(self, optimizer: torch.optim.Optimizer) -> None:
        """Speak when this optimizer steps, and when a scaler of gradients is kept in the loop beside it."""
        self.take_off()
        explain_scaling()
        self._handle = optimizer.register_step_pre_hook(_told_of_step)

    def take_off(self) -> None:
        """Speak no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _told_of_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if "step" not in _said:
        _said.add("step")
        warn_user(
            "optimizer.step() has no effect: a training model updates its weights in each call. Leave out step(), "
            "zero_grad() and backward(); pass changed learning rates on with setOptimizer(optimizer)."
        )


def forget_said() -> None:
    """Speak again; for tests."""
    _said.clear()
