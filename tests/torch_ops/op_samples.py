"""One row of a table: an operation, its inputs, and how closely the compiled model must follow eager PyTorch.

Adding an operation to the tests is adding one row. ``op`` describes a function of tensors, ``layer`` a module, and
``check_inference`` and ``check_training`` run a row both ways.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import poptorch
from closeness import assert_close_sums, largest_of

NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32, torch.bfloat16: torch.float16}
SHORT = (torch.float16, torch.bfloat16)
"""Types whose sums are made in float32: only the result is rounded to them."""

LEARNING_RATE = 0.5


@dataclass(frozen=True)
class Sample:
    """A row: ``make()`` gives the function or module, which is called with clones of ``inputs``."""

    name: str
    make: Callable[[], Callable[..., Any]]
    inputs: tuple[Tensor, ...]
    grad: bool
    """Whether the row is also trained: gradients of every floating-point input and every parameter are compared."""

    steps: int = 1
    """Sums that follow one another, or the condition number: by how much the function enlarges rounding errors."""

    dtype: torch.dtype | None = None
    """What inputs or results are rounded to on the way, if it is coarser than the type of the results."""

    def check(self, actual: Any, expected: Any, outputs: Any, *, steps: int = 1) -> None:
        """Floating-point values are equal but for the order of additions, everything else is equal.

        No sum is longer than the largest of all tensors. What cancels out was as large as the inputs and the outputs,
        or as the weights of the sum of outputs, which are at most 1.
        """
        tensors = [*self.inputs, *(t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor))]
        scale = max([1.0, *(largest_of(t) for t in tensors if t.is_floating_point())])
        terms = max([1, *(t.numel() for t in tensors)])
        leaves, _ = pytree.tree_flatten_with_path(actual)
        for (path, given), wanted in zip(leaves, pytree.tree_leaves(expected), strict=True):
            short = self.dtype or (wanted.dtype if isinstance(wanted, Tensor) and wanted.dtype in SHORT else None)
            name = f"{self.name}{pytree.keystr(path)}"
            assert_close_sums(
                {name: given},
                {name: wanted},
                terms=1 if short else terms,
                steps=steps * self.steps,
                scale=scale,
                dtype=short,
            )


def op(
    name: str,
    function: Callable[..., Any],
    *inputs: Tensor,
    grad: bool = True,
    steps: int = 1,
    dtype: torch.dtype | None = None,
) -> Sample:
    """A row for a function of tensors."""
    return Sample(name, lambda: function, inputs, grad, steps, dtype)


def const(name: str, function: Callable[..., Any], *inputs: Tensor, **settings: Any) -> Sample:
    """A row for a function without a gradient."""
    return op(name, function, *inputs, grad=False, **settings)


def layer(name: str, make: Callable[[], nn.Module], *inputs: Tensor, grad: bool = True, steps: int = 2) -> Sample:
    """A row for a module, made anew (with fixed initial weights) for each test."""

    def seeded() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return make()

    return Sample(name, seeded, inputs, grad, steps)


# -- inputs --------------------------------------------------------------------------------------------------------


def _generator(*key: object) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers; the same for the same shape and seed."""
    return torch.randn(shape, generator=_generator("normal", shape, seed)).to(dtype)


def between(low: float, high: float, *shape: int, seed: int = 0) -> Tensor:
    """Uniform numbers."""
    return torch.rand(shape, generator=_generator("between", shape, seed)) * (high - low) + low


def ints(low: int, high: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    """Integers from ``low`` to ``high - 1``."""
    return torch.randint(low, high, shape, generator=_generator("ints", shape, seed)).to(dtype)


def distinct(*shape: int, seed: int = 0) -> Tensor:
    """Numbers far enough from each other that ties and rounding cannot change their order."""
    count = math.prod(shape)
    return (torch.randperm(count, generator=_generator("distinct", shape, seed)).float() * 0.25 - count / 8).view(shape)


def bools(*shape: int, seed: int = 0) -> Tensor:
    """Random truth values."""
    return normal(*shape, seed=seed) > 0


# -- checks --------------------------------------------------------------------------------------------------------


class Alone(nn.Module):
    """The operation and nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class Trained(nn.Module):
    """A parameter added to every floating-point input, the operation, and a sum that weighs every output element."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.function = sample.make()
        self.weights: dict[int, Tensor] = {}
        self.offsets = nn.ParameterList([torch.zeros_like(t) for t in sample.inputs if t.is_floating_point()])

    def forward(self, *inputs: Tensor) -> Any:
        offsets = iter(self.offsets)
        outputs = self.function(*(t + next(offsets) if t.is_floating_point() else t for t in inputs))
        tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
        terms = [(t * self.weights_for(i, t)).sum() for i, t in enumerate(tensors)]
        return outputs, functools.reduce(torch.add, terms)

    def weights_for(self, index: int, output: Tensor) -> Tensor:
        """Fixed unequal weights, so that errors in single elements do not cancel; made when the model runs eagerly."""
        if not poptorch.isRunningOnIpu():
            waves = torch.arange(1, output.numel() + 1, dtype=output.dtype).mul(0.7).cos()
            self.weights[index] = waves.view(output.shape)
        return self.weights[index]


def check_inference(sample: Sample) -> None:
    """Results, and what became of the inputs, equal eager's; twice, to see that a call leaves nothing behind."""
    function = sample.make()
    expected_inputs = _clones(sample.inputs)
    with torch.no_grad():
        expected = sample.make()(*expected_inputs)
    model = poptorch.inferenceModel(Alone(function), _promoting())
    for _ in range(1 if _has_state(function) else 2):
        inputs = _clones(sample.inputs)
        sample.check(_plain(model(*inputs)), _narrowed(expected), expected)
        sample.check(inputs, expected_inputs, expected)
    model.destroy()


class Together(nn.Module):
    """Several samples in one training model, because most of the time of a small one is spent around the operation."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Trained(sample) for sample in samples)

    def forward(self, *groups: tuple[Tensor, ...]) -> Any:
        results = [part(*inputs) for part, inputs in zip(self.parts, groups, strict=True)]
        loss = functools.reduce(torch.add, [loss.float() for _, loss in results])
        return [outputs for outputs, _ in results], poptorch.identity_loss(loss, reduction="none")


def check_training(samples: Sequence[Sample]) -> None:
    """Results and all weights after one step of SGD equal eager's. A failure is reported for one sample alone."""
    try:
        _check_training(samples)
    except Exception:
        if len(samples) > 1:
            for sample in samples:
                check_training([sample])
        raise


def _check_training(samples: Sequence[Sample]) -> None:
    ours, reference = Together(samples), Together(samples)
    optimizer = torch.optim.SGD(reference.parameters(), lr=LEARNING_RATE)
    expected, loss = reference(*(_clones(sample.inputs) for sample in samples))
    loss.backward()
    for sample, part in zip(samples, reference.parts, strict=True):
        assert any(p.grad is not None for p in part.parameters()), f"{sample.name} is not differentiable"
    optimizer.step()
    for part, other in zip(ours.parts, reference.parts, strict=True):
        part.weights = other.weights

    optimizer = torch.optim.SGD(ours.parameters(), lr=LEARNING_RATE)
    model = poptorch.trainingModel(ours, _promoting(), optimizer)
    results, _ = model(*(_clones(sample.inputs) for sample in samples))
    model.destroy()
    for sample, result, wanted in zip(samples, results, expected, strict=True):
        sample.check(_plain(result), _narrowed(wanted), wanted)
    for sample, part, other, wanted in zip(samples, ours.parts, reference.parts, expected, strict=True):
        # The backward pass follows the forward pass: twice as many sums.
        sample.check(part.state_dict(), other.state_dict(), wanted, steps=2)


def _promoting() -> poptorch.Options:
    """Operands of mixed types are promoted as in eager PyTorch."""
    options = poptorch.Options()
    options.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    return options


def _has_state(function: Any) -> bool:
    return isinstance(function, nn.Module) and any(True for _ in function.buffers())


def _clones(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t.clone() for t in tensors)


def _narrowed(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.detach().to(NARROWED.get(t.dtype, t.dtype)), value)


def _plain(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.as_subclass(Tensor), value)
