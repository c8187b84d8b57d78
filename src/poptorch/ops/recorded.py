"""Tensors under capture: which of them the tracer knows, and which operation of the graph computes each."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot


def tracer() -> Any:
    """The tracer that records operations now, or ``None``."""
    mode = get_proxy_mode()
    return None if mode is None else mode.tracer


def node_of(value: Any, recording: Any = None) -> fx.Node | None:
    """The operation that computes a tensor, as ``recording`` (without one: the present tracer) knows it.

    >>> node_of(torch.ones(1)) is None
    True
    """
    recording = tracer() if recording is None else recording
    if recording is None or not isinstance(value, torch.Tensor):
        return None
    slot = get_proxy_slot(value, recording, None)
    return None if slot is None else slot.proxy.node


def is_recorded(value: Any) -> bool:
    """Whether the tracer knows where a value comes from: whether it is a tensor on the device."""
    return node_of(value) is not None


def is_foreign(value: Any) -> bool:
    """Whether a tracer is at work that did not see the value being made."""
    return tracer() is not None and not is_recorded(value)
