"""How much work an operation is."""

from __future__ import annotations

import pytest
import torch

from poptorch import work

aten = torch.ops.aten


def test_arithmetic_of_products_and_convolutions():
    a = torch.ones(4, 5)
    assert work.flops(aten.mm.default, (a, a.t()), {}, a @ a.t()) == 2 * 4 * 5 * 4
    image, kernel = torch.ones(1, 2, 6, 6), torch.ones(3, 2, 3, 3)
    args = (image, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert work.flops(aten.convolution.default, args, {}, aten.convolution(*args)) == 2 * 3 * 4 * 4 * 2 * 9


def test_what_has_no_formula_has_no_arithmetic():
    assert not work.has_formula(aten.relu.default)
    assert work.flops(aten.relu.default, (torch.ones(2),), {}, torch.ones(2)) == 0
    assert not work.has_formula(len)


def test_bytes_and_seconds_add_up():
    assert work.num_bytes([torch.ones(2, 2), None, "x", torch.ones(3, dtype=torch.float16)]) == 22
    assert work.host_seconds(1e9, 1000) == pytest.approx(work.host_seconds(1e9, 0) + work.host_seconds(0, 1000))
