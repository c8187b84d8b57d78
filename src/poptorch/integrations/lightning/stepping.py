"""One step of a ``LightningModule`` as a module that can be compiled, and what it logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from poptorch.errors import createPoptorchError
from poptorch.ops import identity_loss


class Step(nn.Module):
    """Calls a step method, and returns with its result the values that it logs.

    A value that is logged inside of a program exists when the program has run: so ``log`` is replaced as long as the
    model is captured, and :meth:`log_values` calls the real one with what came out.
    """

    def __init__(self, module: Any, method: str, constants: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.module = module
        self._method = method
        self._constants = constants
        self._logged: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._scalar: list[bool] = []

    def forward(self, batch: Any, *batch_idx: torch.Tensor) -> dict[str, Any]:
        """Run the step on one micro-batch."""
        values: dict[str, torch.Tensor] = {}

        def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            values[name] = self._loggable(name, value)
            self._logged[name] = (args, kwargs)

        attributes = self.module.__dict__
        attributes["log"] = log
        try:
            result = getattr(self.module, self._method)(batch, *(i.squeeze() for i in batch_idx), *self._constants)
        finally:
            del attributes["log"]
        found: dict[str, Any] = {"logged": values, "done": torch.zeros(())}
        if self._method == "training_step":
            found["loss"] = identity_loss(self._loss_of(result), reduction="none")
            if isinstance(result, dict):
                result = {name: value.detach() for name, value in result.items() if _is_other_tensor(name, value)}
            else:
                result = None
        self._scalar.clear()  # the module that is captured is a copy of this one with the same list
        self._scalar += [leaf.ndim == 0 for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if result is not None:
            found["result"] = result
        return found

    def _loggable(self, name: str, value: Any) -> torch.Tensor:
        if not isinstance(value, (torch.Tensor, int, float)):
            raise createPoptorchError(
                f"self.log({name!r}, ...) in {self._method} was given a {type(value).__name__}, which keeps a state of "
                "its own. Return what it needs from the step, and update it in the hook that ends the batch."
            )
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        return tensor.detach().squeeze()

    def _loss_of(self, result: Any) -> torch.Tensor:
        loss = result.get("loss") if isinstance(result, dict) else result
        if not isinstance(loss, torch.Tensor):
            raise createPoptorchError(
                f"training_step of {type(self.module).__name__} must return the loss, or a dictionary with one, "
                f"and not {type(loss).__name__}: IPUs cannot skip a step."
            )
        return loss

    def log_values(self, values: dict[str, torch.Tensor]) -> None:
        """Log the means over the micro-batches of a call, as the step would have done."""
        for name, value in values.items():
            args, kwargs = self._logged[name]
            self.module.log(name, value.float().mean(), *args, **kwargs)

    def as_returned(self, result: Any) -> Any:
        """The result of the step for all rows of a call: numbers as their mean over the micro-batches."""
        scalars = iter(self._scalar)

        def of_all(value: Any) -> Any:
            return _mean(value) if isinstance(value, torch.Tensor) and next(scalars) else value

        return tree_map(of_all, result)


def _mean(value: torch.Tensor) -> torch.Tensor:
    return value.float().mean().to(value.dtype)


def _is_other_tensor(name: str, value: Any) -> bool:
    return name != "loss" and isinstance(value, torch.Tensor)


UNREACHABLE = (
    "backward", "on_before_backward", "on_after_backward", "optimizer_step", "optimizer_zero_grad",
    "on_before_optimizer_step", "on_before_zero_grad", "configure_gradient_clipping",
)  # fmt: skip
"""Hooks in the middle of a compiled training step: nobody could call them."""


def overridden(instance: Any, base: type, names: tuple[str, ...] = UNREACHABLE) -> list[str]:
    """Those methods of ``names`` that the class of an object defines anew."""
    method: Callable[[type, str], Any] = lambda kind, name: getattr(kind, name, None)  # noqa: E731
    return [name for name in names if method(type(instance), name) is not method(base, name)]
