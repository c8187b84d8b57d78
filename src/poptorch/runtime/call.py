"""One call of a program: what it brings along, and what it takes away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from poptorch.executable.groups import HostLoop
from poptorch.profiling.trace import Trace
from poptorch.program.loop import MicroBatch
from poptorch.runtime.loss_scale import Tally
from poptorch.runtime.rounds import RoundExchange
from poptorch.runtime.streams import OutputStream
from poptorch.runtime.values.random_source import RandomSource, mix

Gradients = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Call:
    """Inputs and outputs of one call, as the runners see them."""

    inputs: Callable[[MicroBatch], Sequence[torch.Tensor]]
    """The inputs of the group that begins with a micro-batch."""

    random: Callable[[MicroBatch], RandomSource]
    loss_scale: Sequence[torch.Tensor]
    results: Sequence[OutputStream]
    anchors: Sequence[OutputStream]
    """For the anchored values that the program computes, in its order."""

    counts: Tally
    """For the counts of large gradients."""

    update: Callable[[Gradients], None] | None
    """To be called with the gradients of each round of accumulation."""

    updated: Callable[[], None]
    """To be called after each step that has updated the weights itself."""

    trace: Trace
    exchange: RoundExchange | None = None
    """Takes gradients as soon as they are final, where there are other processes."""


def input_blocks(loop: HostLoop, inputs: Sequence[torch.Tensor]) -> Sequence[Sequence[torch.Tensor]]:
    """The inputs of every group of micro-batches, in the order of :meth:`HostLoop.input_block`."""
    factor, size = loop.input_factor, loop.group_size
    if factor == 1 or not inputs:
        return [inputs] * factor
    if size == 1:
        return list(zip(*(tensor.chunk(factor) for tensor in inputs), strict=True))
    groups = loop.input_groups
    rounds = (t.unflatten(0, (-1, size, groups, t.shape[0] // factor)).transpose(1, 2) for t in inputs)
    return list(zip(*([b.contiguous() for b in t.flatten(0, 1).unbind()] for t in rounds), strict=True))


def synthetic_inputs(inputs: Sequence[torch.Tensor], mode: int, seed: int) -> Sequence[torch.Tensor]:
    """With synthetic data the host's inputs are not read: the device makes up its own."""
    if not mode:
        return inputs
    generator = torch.Generator().manual_seed(mix(seed, mode))
    fill = {1: _zeros, 2: _normal, 3: _uniform}[mode]
    return [fill(t, generator) if t.is_floating_point() else torch.zeros_like(t) for t in inputs]


def _zeros(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros_like(tensor)


def _normal(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.empty_like(tensor).normal_(generator=generator)


def _uniform(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.empty_like(tensor).uniform_(generator=generator)
