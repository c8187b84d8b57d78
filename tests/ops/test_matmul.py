"""``serializedMatMul``: the values, the split, the memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import poptorch
from closeness import assert_close_sums
from poptorch import MatMulSerializationMode as Mode
from poptorch.ops.matmul import SERIALIZED_MATMUL, split_matmul

SPLITS = [Mode.InputChannels, Mode.ReducingDim, Mode.OutputChannels]
SHAPES = [
    ((4, 6), (6, 8)),
    ((3, 4, 6), (6, 8)),
    ((3, 4, 6), (3, 6, 8)),
    ((4, 6), (3, 6, 8)),
    ((2, 1, 4, 6), (3, 6, 8)),
    ((1, 4, 6), (3, 6, 8)),
    ((3, 4, 6), (1, 6, 8)),
    ((0, 4, 6), (6, 8)),
]


@pytest.mark.parametrize("mode", SPLITS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_values_and_gradients_equal_matmul(capture, mode: Mode, shapes: tuple) -> None:
    def step(product: Any) -> Any:
        def run(lhs: torch.Tensor, rhs: torch.Tensor) -> Any:
            lhs, rhs = lhs.requires_grad_(), rhs.requires_grad_()
            result = product(lhs, rhs)
            return result, *torch.autograd.grad(result.sin().sum(), [lhs, rhs])

        return run

    lhs, rhs = (torch.randn(shape, generator=torch.Generator().manual_seed(3)) for shape in shapes)
    graph = capture(step(lambda a, b: poptorch.serializedMatMul(a, b, mode, 2)), lhs, rhs)
    # Forward and both gradients are split products.
    assert [node.target for node in graph.graph.nodes].count(SERIALIZED_MATMUL) == 3
    # Six terms in the product, at most 24 (rows of all batches) in a gradient, which comes second.
    assert_close_sums(tuple(graph(lhs, rhs)), tuple(step(torch.matmul)(lhs.clone(), rhs.clone())), terms=24, steps=2)


@pytest.mark.parametrize("mode", SPLITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_operands_with_any_strides(mode: Mode, dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    lhs = torch.randn(*batch, 6, 4).to(dtype).mT
    for rhs in (torch.randn(8, 6).to(dtype).mT, torch.randn(*batch, 6, 16).to(dtype)[..., ::2]):
        expected = lhs.double() @ rhs.double()
        found = split_matmul(lhs, rhs, mode.value, 2, False)
        assert_close_sums(found, expected.to(dtype), terms=6)
        if batch:
            summed = split_matmul(lhs, rhs, mode.value, 2, False, [])
            assert_close_sums(summed, expected.sum_to_size(4, 8).to(dtype), terms=6 * math.prod(batch))


def test_vectors_disabled_and_native_calls(capture) -> None:
    vector, matrix = torch.randn(6), torch.randn(6, 8)
    graph = capture(lambda a, b: poptorch.serializedMatMul(a, b, Mode.OutputChannels, 4), vector, matrix)
    assert_close_sums(graph(vector, matrix), vector @ matrix, terms=6)
    graph = capture(lambda a, b: poptorch.serializedMatMul(a, b, Mode.Disabled), matrix.T, matrix)
    assert SERIALIZED_MATMUL not in [node.target for node in graph.graph.nodes]
    found = poptorch.serializedMatMul(matrix.T, matrix, Mode.ReducingDim, 3)
    assert_close_sums(found, matrix.T @ matrix, terms=6)


@pytest.mark.parametrize("mode", SPLITS)
@pytest.mark.parametrize("factor", [0, -1, 5])
def test_the_factor_must_divide_the_dimension(mode: Mode, factor: int) -> None:
    with pytest.raises(poptorch.Error, match="Invalid serialisation factor"):
        poptorch.serializedMatMul(torch.ones(4, 6), torch.ones(6, 8), mode, factor)


@pytest.mark.parametrize(
    "arguments", [("input_channels", 2), (Mode.InputChannels, 2.0), (Mode.InputChannels, 2, 1)], ids=str
)
def test_types_are_asserted(arguments: tuple) -> None:
    with pytest.raises(AssertionError):
        poptorch.serializedMatMul(torch.ones(4, 6), torch.ones(6, 8), *arguments)


@pytest.mark.parametrize("keep_precision", [True, False])
def test_half_partial_sums(keep_precision: bool) -> None:
    # 4096 + 1 is not a half: added one by one in float16 the ones vanish, in float32 they survive.
    lhs = torch.ones(1, 4100, dtype=torch.float16)
    rhs = torch.ones(4100, 1, dtype=torch.float16)
    lhs[0, 0] = 4096
    result = split_matmul(lhs, rhs, "reducing_dim", 4100, keep_precision)
    assert result.dtype == torch.float16
    assert result.item() == (8192.0 if keep_precision else 4096.0)


# ---- memory ------------------------------------------------------------------------------------------------------


def _peak_of(function: Callable[[], Any]) -> int:
    """The most bytes that ``function`` had allocated at once, as torch's allocator reports them to the profiler."""
    function()  # what is made once, at the first call, does not count
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = function()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    assert peak >= sum(tensor.nbytes for tensor in kept)
    return peak


def _glued(lhs: torch.Tensor, rhs: torch.Tensor, mode: Mode, factor: int) -> torch.Tensor:
    """The obvious way to split a product."""
    if mode == Mode.InputChannels:
        return torch.cat([part @ rhs for part in lhs.chunk(factor, -2)], -2)
    if mode == Mode.OutputChannels:
        return torch.cat([lhs @ part for part in rhs.chunk(factor, -1)], -1)
    total = torch.zeros(())
    for left, right in zip(lhs.chunk(factor, -1), rhs.chunk(factor, -2), strict=True):
        total = total + left @ right
    return total


def _step(capture: Any, product: Callable[..., torch.Tensor], lhs: torch.Tensor, rhs: torch.Tensor) -> Any:
    """Forward and both gradients as a captured program, ready to run."""

    def run(lhs: torch.Tensor, rhs: torch.Tensor, gradient: torch.Tensor) -> Any:
        lhs, rhs = lhs.requires_grad_(), rhs.requires_grad_()
        result = product(lhs, rhs)
        return result.detach(), *torch.autograd.grad(result, [lhs, rhs], gradient)

    gradient = torch.ones(torch.matmul(lhs, rhs).shape, dtype=lhs.dtype)
    graph = capture(run, lhs, rhs, gradient)
    return lambda: graph(lhs, rhs, gradient)


OPERANDS = {
    "matrices": ((64, 64), (64, 64)),
    "batch and weight": ((4, 16, 64), (64, 64)),
    "batch and batch": ((4, 16, 64), (4, 64, 16)),
    "matrix and batch": ((16, 64), (4, 64, 16)),
    "crossed batches": ((4, 1, 16, 16), (4, 16, 16)),
}
HAS_TEMPORARIES = {"matrix and batch", "crossed batches"}
"""Where ``torch.matmul`` itself needs more than its results: copies that BLAS can read, unsummed gradients."""


@pytest.mark.parametrize("mode", SPLITS)
@pytest.mark.parametrize("name", OPERANDS)
def test_a_step_never_needs_more_memory_than_the_whole_product(capture, name: str, mode: Mode) -> None:
    lhs, rhs = (torch.ones(shape) for shape in OPERANDS[name])
    whole = _peak_of(_step(capture, torch.matmul, lhs, rhs))
    glued = _peak_of(_step(capture, lambda a, b: _glued(a, b, mode, 4), lhs, rhs))
    pieces = _peak_of(_step(capture, lambda a, b: poptorch.serializedMatMul(a, b, mode, 4), lhs, rhs))
    assert pieces < glued
    if name in HAS_TEMPORARIES:
        assert pieces < whole
    else:  # neither has temporaries: the result and two gradients are all there is
        results = torch.matmul(lhs, rhs).nbytes + lhs.nbytes + rhs.nbytes
        assert pieces == whole == results


@pytest.mark.parametrize("keep_precision", [False, True])
@pytest.mark.parametrize("mode", SPLITS)
def test_float16_temporaries_shrink_with_the_factor(mode: Mode, keep_precision: bool) -> None:
    # float16 is multiplied in float32 on the host: copies of both operands, and a float32 result.
    lhs, rhs = torch.ones(64, 2048, dtype=torch.float16), torch.ones(2048, 64, dtype=torch.float16)
    peaks = {}
    for factor in (1, 4, 16):
        peaks[factor] = _peak_of(lambda factor=factor: [split_matmul(lhs, rhs, mode.value, factor, keep_precision)])
    whole = _peak_of(lambda: [(lhs.float() @ rhs.float()).half()])
    assert peaks[1] >= whole  # one piece is no saving
    assert peaks[4] * 3 < whole
    assert peaks[16] * 8 < whole
