"""What the optimizer tests share: weights, gradients, and a program that does nothing but update."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import accumulating
import poptorch
from poptorch.compiler.request import update_settings
from poptorch.executable.groups import HostLoop
from poptorch.optim.spec import OptimizerSpec, describe
from poptorch.runtime.accumulate import GradientAccumulator

SHAPES = ((4, 3), (5,), (), (2, 3, 2))


class UpdateOnly:
    """The optimizer's part of a program: weights, state, accumulators and updates, driven by given gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: poptorch.Options | None = None) -> None:
        self.optimizer = optimizer
        self.options = options
        self.spec: OptimizerSpec = describe(optimizer, update_settings(options))
        self.params = [[p.detach() for p in group.parameters] for group in self.spec.groups]
        self.states = self.spec.init_state()
        self.factor: Tensor | None = None
        settings = update_settings(options)
        self.loop = HostLoop(gradient_accumulation=settings.micro_batches, replicas=settings.replicas)

    def step(self, gradient_of: Callable[[int, int], Sequence[Tensor]]) -> None:
        """One update; ``gradient_of(micro_batch, replica)`` lists the unscaled gradients of all weights."""
        scale = self.spec.loss_scaling.value * (1.0 if self.factor is None else float(self.factor))
        order = [(k, r) for k in range(self.loop.gradient_accumulation) for r in range(self.loop.replicas)]
        raw = [[scale * g for g in gradient_of(k, r)] for k, r in order]
        grads, position = [], 0
        for group in self.spec.groups:
            mine = slice(position, position + len(group.parameters))
            position = mine.stop
            grads.append(self._accumulated(group, [g[mine] for g in raw]))
        hyper = self.spec.hyper()
        if self.factor is not None:
            hyper = [{**inputs, "loss_scale_factor": self.factor} for inputs in hyper]
        with torch.no_grad():
            self.spec.update_(self.params, grads, self.states, hyper)

    def _accumulated(self, group: Any, raw: list[list[Tensor]]) -> list[Tensor]:
        names = [str(place) for place in range(len(group.parameters))]
        several = group.accum_type is not None and self.loop.gradient_accumulation > 1
        types = dict.fromkeys(names, group.accum_type) if several else {}
        made = accumulating.executable(names, self.loop, group.reduction.running, types)
        accumulator = GradientAccumulator(made)
        for grads in raw:
            accumulator.add(grads)
        return list(accumulator.take().values())

    @property
    def weights(self) -> list[Tensor]:
        """All weights, in the order of the optimizer."""
        return [param for group in self.params for param in group]


class Gradients:
    """A fixed sequence of gradients: exact float32 numbers, different for each step, micro-batch and replica."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> None:
        self.shapes, self.dtype = tuple(shapes), dtype

    def __call__(self, step: int, micro_batch: int, replica: int) -> list[Tensor]:
        return list(_gradients(self.shapes, self.dtype, step, micro_batch, replica))


@functools.lru_cache(maxsize=1000)
def _gradients(
    shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, step: int, micro_batch: int, replica: int
) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro_batch + replica)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def make_weights(shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(7)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


@pytest.fixture
def weights() -> list[torch.nn.Parameter]:
    """Four small weights, one of them without dimensions."""
    return make_weights()


@pytest.fixture
def gradients() -> Gradients:
    """Gradients for ``weights``."""
    return Gradients(SHAPES)


@pytest.fixture
def update_only() -> type[UpdateOnly]:
    """The class, for tests that make their own."""
    return UpdateOnly


@pytest.fixture
def clone() -> Callable[[Sequence[torch.nn.Parameter]], list[torch.nn.Parameter]]:
    """Independent copies of weights."""
    return copy.deepcopy
