"""Normalisations with running statistics, and what torch's layers do that a program cannot.

With ``momentum=None`` they are a cumulative mean, whose factor changes with every micro-batch. torch reads the counter
of batches as a Python number, which capture would freeze. The forward below computes the same with tensors, so that
the factor stays a value of the program.

Each replica has running statistics of its own. Any other buffer that ``forward`` writes is the user's concern, so
capture notes which is which.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from poptorch import ambient
from poptorch._logging import warn_once
from poptorch.capture.state import StateEntry, StateKind
from poptorch.ops.traits import traits_of
from poptorch.program.opinfo import SourceLocation

_COUNTER = "num_batches_tracked"
_STATISTICS = ("running_mean", "running_var", _COUNTER)


@contextmanager
def capturable_norms(model: nn.Module, replicas: int) -> Iterator[None]:
    """Give layers of ``model`` whose own forward cannot be captured another one; the job has so many ``replicas``."""
    layers = [(m, forward) for m in model.modules() if (forward := _forward_of(m, replicas)) is not None]
    for layer, forward in layers:
        layer.__dict__["forward"] = functools.partial(forward, layer)
    try:
        yield
    finally:
        for layer, _ in layers:
            layer.__dict__.pop("forward", None)


def _forward_of(layer: nn.Module, replicas: int) -> Callable[..., torch.Tensor] | None:
    """The forward to use instead of a layer's own; ``None`` if that is fine, or is the user's."""
    kind = type(layer).forward
    if "forward" in layer.__dict__ or kind not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
        return None
    assert isinstance(layer, _BatchNorm)
    if layer.momentum is None and layer.training and layer.track_running_stats:
        return _cumulative_forward
    if kind is _BatchNorm.forward:
        return None
    if replicas > 1 and layer.training:
        warn_once(
            "SyncBatchNorm",
            f"SyncBatchNorm takes its statistics from the micro-batch of one replica, like BatchNorm: {replicas} "
            "replicas train, and they do not communicate within forward(). Use larger micro-batches, or GroupNorm.",
        )
    return _BatchNorm.forward  # its own one communicates through torch.distributed


def _cumulative_forward(layer: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
    layer._check_input_dim(x)
    mean, variance, count = layer.running_mean, layer.running_var, layer.num_batches_tracked
    assert mean is not None
    assert variance is not None
    assert count is not None
    with torch.no_grad(), ambient.normalising():
        count.add_(1)
        factor = 1.0 / count.to(mean.dtype)
        others = [d for d in range(x.dim()) if d != 1]
        mean.add_((x.mean(others) - mean) * factor)
        variance.add_((x.var(others) - variance) * factor)
    return F.batch_norm(x, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)


# -- who writes what ---------------------------------------------------------------------------------------------------


class Writes:
    """The operations of ``forward`` that write in place, but for normalisations: by memory, the user's line."""

    def __init__(self) -> None:
        self._lines: dict[int, SourceLocation | None] = {}

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], line: SourceLocation | None) -> None:
        """An operation was recorded."""
        context = ambient.current()
        if not func._schema.is_mutable or (context is not None and context.in_norm):
            return
        traits = traits_of(func)
        if traits.is_norm or "moving_avg_obs" in traits.name:
            return
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            target = kwargs.get(argument.name) if position >= len(args) else args[position]
            for tensor in target if isinstance(target, (list, tuple)) else (target,):
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                    self._lines.setdefault(tensor.untyped_storage()._cdata, line)

    def by_user(
        self, entries: Sequence[StateEntry], tensors: Sequence[torch.Tensor]
    ) -> dict[str, SourceLocation | None]:
        """The state that is written as the user's own, with the line; ``tensors`` are those of the entries."""
        pairs = zip(entries, tensors, strict=True)
        found = [(entry, tensor.untyped_storage()._cdata) for entry, tensor in pairs if not _is_statistic(entry)]
        return {entry.name: self._lines[memory] for entry, memory in found if memory in self._lines}


def _is_statistic(entry: StateEntry) -> bool:
    """Whether a tensor belongs to a layer with running statistics, as one of them or as their counter."""
    return entry.kind is StateKind.BUFFER and all(
        attribute in _STATISTICS if isinstance(module, _NormBase) else _counts(module, attribute)
        for module, attribute, _ in entry.slots
    )


def _counts(module: nn.Module, attribute: str) -> bool:
    """Whether an attribute is the counter of a layer that somebody wrote from scratch."""
    return attribute == _COUNTER and all(name in module._buffers for name in _STATISTICS)


def adopt_statistics(entries: Sequence[StateEntry], tensors: Sequence[torch.Tensor]) -> None:
    """A layer may put new statistics in the place of the old: on the device, they are written into them."""
    for entry, tensor in zip(entries, tensors, strict=True):
        if not _is_statistic(entry):
            continue
        for module, attribute, _ in entry.slots:
            new = module._buffers.get(attribute)
            if isinstance(new, torch.Tensor) and new is not tensor:
                with torch.no_grad():
                    tensor.copy_(new)
