"""How functions are taken apart before Inductor sees them."""

from __future__ import annotations

import pytest
import torch

from closeness import assert_close_sums
from poptorch.host.native.inductor import decompose, fake_mode

aten = torch.ops.aten


def backward(stride, mask):
    def function(gradient, x, weight):
        steps = [stride, stride]
        results = aten.convolution_backward.default(
            gradient, x, weight, [8], steps, [0, 0], [1, 1], False, [0, 0], 1, mask
        )
        return tuple(r for r, wanted in zip(results, mask, strict=True) if wanted)

    return function


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False]])
def test_weights_of_one_pixel_never_see_the_pixels_that_are_skipped(mask):
    """oneDNN would write past the end of their gradient, on some processors."""
    operands = torch.randn(2, 8, 4, 4), torch.randn(2, 6, 7, 8), torch.randn(8, 6, 1, 1)
    with fake_mode() as mode:
        graph_module = decompose(backward(2, mask), [mode.from_tensor(t) for t in operands])
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        makes_weights = node.args[10][1] or node.args[10][2]
        assert not makes_weights or list(node.args[4]) == [1, 1]
    got, expected = graph_module(*operands), backward(2, mask)(*operands)
    assert_close_sums(tuple(got), tuple(expected), terms=2 * 4 * 4)  # places of the gradient


@pytest.mark.parametrize(("stride", "channels"), [(1, 6), (2, 8)])
def test_other_convolutions_stay_whole(stride, channels):
    side = 8 // stride
    operands = torch.randn(2, 8, side, side), torch.randn(2, channels, 8, 8), torch.randn(8, channels, 1, 1)
    with fake_mode() as mode:
        graph_module = decompose(backward(stride, [True] * 3), [mode.from_tensor(t) for t in operands])
    found = graph_module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert [list(n.args[10]) for n in found] == [[True] * 3]
