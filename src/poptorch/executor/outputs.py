"""The tensors that a wrapped model returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn

from poptorch.enums import CommGroupType, VariableRetrievalMode
from poptorch.errors import BackwardCallError, misuse


class ParameterView(nn.Parameter):
    """A parameter as an inference executor shows it: the model's own memory, and the call that groups replicas."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    group: Callable[..., None]

    @staticmethod
    def of(parameter: nn.Parameter, group: Callable[..., None]) -> ParameterView:
        """Show ``parameter``; ``group`` is called with the arguments of :meth:`replicaGrouping`."""
        view: ParameterView = torch.Tensor._make_subclass(ParameterView, parameter.detach(), parameter.requires_grad)
        view.group = group
        return view

    def replicaGrouping(
        self, comm_group_type: CommGroupType, shards: int, variable_retrieval_mode: VariableRetrievalMode
    ) -> None:
        """Let groups of ``shards`` replicas have values of their own: the rows of the first dimension."""
        self.group(comm_group_type, shards, variable_retrieval_mode)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.detach().as_subclass(torch.Tensor), self.requires_grad).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        return nn.Parameter(self.detach().as_subclass(torch.Tensor).clone(), self.requires_grad)


def refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    """What ``backward()`` of a result does: a training model's own program contains the backward pass."""
    raise misuse(
        BackwardCallError,
        "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, "
        "the backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, "
        "you should use a trainingModel instead.",
    )


def _item_of_many(shape: torch.Size) -> NoReturn:
    """What ``item()`` of a result with several values does: eager code has one loss where a call has several."""
    raise RuntimeError(
        f"a Tensor with {shape.numel()} elements cannot be converted to Scalar. A call returns a value for each "
        "replica, and with some output modes for each micro-batch and device iteration: use loss.mean().item(). See "
        "docs/batching.md. [PT1014]"
    )


def _nothing() -> None:
    """The attributes of a result that belong in a pickle: none, for it must load where this package is missing."""


def as_result(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor whose ``backward()`` explains where the backward pass already happened.

    >>> result = as_result(torch.ones(1))
    >>> type(result), result.backward is refuse_backward
    (<class 'torch.Tensor'>, True)
    """
    tensor.backward = refuse_backward  # type: ignore[method-assign]
    if tensor.numel() > 1:
        tensor.item = functools.partial(_item_of_many, tensor.shape)  # type: ignore[method-assign]
    tensor.__getstate__ = _nothing  # type: ignore[method-assign]
    return tensor
