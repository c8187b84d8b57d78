"""Tensors of a capture that user code keeps, such as hooks that collect outputs: they never get a value."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as global_hooks

from poptorch.frames import warn_user
from poptorch.program.opinfo import info_of


def has_hooks(model: nn.Module) -> bool:
    """Whether functions of the user see what the modules of a model compute."""
    everywhere = global_hooks._global_forward_hooks or global_hooks._global_forward_pre_hooks
    return bool(everywhere) or any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def warn_of_kept(tensors: Any, ours: Iterable[torch.Tensor]) -> None:
    """Tell which recorded values are still in use. ``tensors`` maps each weakly to its proxy; ``ours`` do not count.

    To be called after a capture, when nothing but user code can have them.
    """
    gc.collect()  # a graph of gradients that refers to itself also keeps values
    known = {id(tensor) for own in ours for tensor in (own, own.grad)}
    nodes = [slot.proxy.node for tensor, slot in list(tensors.items()) if id(tensor) not in known]
    lines = sorted({str(info_of(node).source) for node in nodes if node.op == "call_function"})
    if lines:
        warn_user(
            f"A hook or another function keeps tensors that forward() computes (at {', '.join(lines)}). forward() runs "
            "once, while the model is compiled, and these tensors never get a value. To see inner values, return them "
            "from forward(), or name them with Options.anchorTensor().",
        )
