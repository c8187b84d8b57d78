"""``serializedMatMul``: the values, the split, the memory."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import poptorch
from poptorch import MatMulSerializationMode as Mode
from poptorch.ops.matmul import SERIALIZED_MATMUL, split_matmul

SPLITS = [Mode.InputChannels, Mode.ReducingDim, Mode.OutputChannels]
SHAPES = [((4, 6), (6, 8)), ((3, 4, 6), (6, 8)), ((3, 4, 6), (3, 6, 8)), ((4, 6), (3, 6, 8)), ((2, 1, 4, 6), (3, 6, 8))]


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
    for found, expected in zip(graph(lhs, rhs), step(torch.matmul)(lhs.clone(), rhs.clone()), strict=True):
        torch.testing.assert_close(found, expected)


def test_vectors_disabled_and_native_calls(capture) -> None:
    vector, matrix = torch.randn(6), torch.randn(6, 8)
    graph = capture(lambda a, b: poptorch.serializedMatMul(a, b, Mode.OutputChannels, 4), vector, matrix)
    torch.testing.assert_close(graph(vector, matrix), vector @ matrix)
    graph = capture(lambda a, b: poptorch.serializedMatMul(a, b, Mode.Disabled), matrix.T, matrix)
    assert SERIALIZED_MATMUL not in [node.target for node in graph.graph.nodes]
    torch.testing.assert_close(poptorch.serializedMatMul(matrix.T, matrix, Mode.ReducingDim, 3), matrix.T @ matrix)


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


class _Peak(TorchDispatchMode):
    """Counts the bytes of live tensors that operations made."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {t.untyped_storage()._cdata for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in known:
                size = tensor.untyped_storage().nbytes()
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(tensor, self._free, size)
        return result

    def _free(self, size: int) -> None:
        self.live -= size


def _peak_of(function: Any) -> int:
    with _Peak() as mode:
        function()
    return mode.peak


@pytest.mark.parametrize("mode", SPLITS)
def test_temporaries_shrink_with_the_factor(mode: Mode) -> None:
    lhs, rhs = torch.ones(64, 128), torch.ones(128, 64)
    result_bytes = 64 * 64 * 4
    temporaries = {
        factor: _peak_of(lambda factor=factor: split_matmul(lhs, rhs, mode.value, factor, False)) - result_bytes
        for factor in (1, 16)
    }
    if mode == Mode.ReducingDim:  # a partial sum has the size of the result, however many there are
        assert temporaries[16] == temporaries[1] == result_bytes
    else:
        assert temporaries[16] * 16 == temporaries[1] == result_bytes


def test_precise_half_products_need_less_memory_than_the_float32_product() -> None:
    lhs, rhs = torch.ones(32, 4096, dtype=torch.float16), torch.ones(4096, 32, dtype=torch.float16)
    whole = _peak_of(lambda: (lhs.float() @ rhs.float()).half())
    pieces = _peak_of(lambda: split_matmul(lhs, rhs, "reducing_dim", 16, True))
    assert pieces * 8 < whole
