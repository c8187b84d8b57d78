"""How weights lie in memory while native code trains them.

oneDNN's convolutions want the channels of a pixel beside each other, in weights too. Weights that lie so from the start
need not be copied for every pass, and gradients arrive in the order in which weights and optimizer state are updated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from poptorch.ops.traits import OpKind, traits_of
from poptorch.program.program import Program, Role

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def weight_formats(program: Program) -> dict[str, torch.memory_format]:
    """The parameters that should not lie in rows, by name: those that convolutions use, and nothing else does."""
    return {
        port.name: _FORMATS[len(port.shape)]
        for node, port in program.placeholders()
        if port.role is Role.PARAMETER and _has_a_choice(port.shape) and node.users and all(_convolves(node))
    }


def with_format(tensor: torch.Tensor, formats: Mapping[str, torch.memory_format], name: str) -> torch.Tensor:
    """A tensor of a parameter's shape as that parameter lies in memory: itself, where it lies so already."""
    chosen = formats.get(name)
    if chosen is None or tensor.ndim not in _FORMATS:
        return tensor
    return tensor.contiguous(memory_format=chosen)


def _has_a_choice(shape: Sequence[int]) -> bool:
    """Whether the formats differ at all: with one channel, or one pixel, they do not."""
    return len(shape) in _FORMATS and shape[1] > 1 and math.prod(shape[2:]) > 1


def _convolves(weight: fx.Node) -> Iterator[bool]:
    for user in weight.users:
        traits = traits_of(user)
        position = traits.weight if traits.kind is OpKind.CONVOLUTION else None
        yield position is not None and user.args[position] is weight
