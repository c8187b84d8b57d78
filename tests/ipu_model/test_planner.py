"""Plans of products and convolutions: a published run, and properties that every planner must have."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

import poptorch
from poptorch.ipu_model.architecture import architecture
from poptorch.ipu_model.planner import ConvolutionShape, ProductPass, plan_convolution, plan_product

HALF, FLOAT = torch.float16, torch.float32
MK2, BOW = architecture("mk2"), architecture("bow")


def test_a_run_of_the_vendors_model():
    """(900x600)(600x300) and its result times (300x200), in float32, all operands mapped linearly."""
    first = plan_product(MK2, 1, 900, 600, 300, FLOAT, FLOAT)
    second = plan_product(MK2, 1, 900, 300, 200, FLOAT, FLOAT)
    assert first.cycles(MK2) + second.cycles(MK2) == pytest.approx(34_655, rel=0.15)
    assert first.temporary_bytes * 1400 == pytest.approx(56e6, rel=0.2)
    assert second.temporary_bytes * 1400 == pytest.approx(27e6, rel=0.2)
    tiles = [step.tiles for cost in (first, second) for step in cost.steps if step.name == "convolve"]
    assert all(1300 <= it <= 1472 for it in tiles)
    arranged = [step.duration(MK2) for step in first.steps if step.name == "arrange"]
    assert all(400 <= it <= 1200 for it in arranged)


def test_flops_and_codelets():
    cost = plan_product(BOW, 4, 256, 256, 256, HALF, HALF)
    assert cost.flops == 2 * 4 * 256**3
    assert {v.codelet for step in cost.steps for v in step.vertices} >= {"conv1x1"}
    shape = ConvolutionShape(2, 32, 32, (8, 8), (3, 3), padding=(1, 1))
    cost = plan_convolution(BOW, shape, HALF, HALF)
    assert cost.flops == 2 * 2 * 64 * 32 * 32 * 9
    assert {v.codelet for step in cost.steps for v in step.vertices} >= {"convnx1", "zero"}


def test_plans_use_the_rate_of_the_matrix_unit_but_do_not_exceed_it():
    for dtype, partials, rate in ((HALF, HALF, 64), (HALF, FLOAT, 32), (FLOAT, FLOAT, 16)):
        cycles = plan_product(BOW, 1, 2048, 2048, 2048, dtype, partials).cycles(BOW)
        ideal = 2048**3 / (BOW.tiles * rate)
        assert ideal < cycles < 3 * ideal


def test_serial_plans_save_memory():
    roomy = plan_product(BOW, 1, 1024, 1024, 4096, HALF, HALF, 0.6)
    tight = plan_product(BOW, 1, 1024, 1024, 4096, HALF, HALF, 0.05)
    assert tight.temporary_bytes < roomy.temporary_bytes
    assert tight.temporary_bytes <= 0.05 * BOW.memory_per_tile * 1.25
    assert max(step.repeat for step in tight.steps) > 1
    assert max(step.repeat for step in roomy.steps) == 1


def test_arranged_operands_are_not_arranged_again():
    names = [step.name for step in plan_product(BOW, 1, 64, 64, 64, HALF, HALF, 0.6, False, False).steps]
    assert "arrange" not in names


SIZES = (1, 3, 8, 16, 48, 64, 128, 500, 768, 1024)
PROPORTIONS = (0.02, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0)


def products(count):
    chosen = random.Random(7)
    return [
        (chosen.choice((1, 1, 2, 16)), *(chosen.choice(SIZES) for _ in range(3)), chosen.choice((HALF, FLOAT)), FLOAT)
        for _ in range(count)
    ]


@pytest.mark.parametrize("product", products(12), ids=str)
def test_more_memory_tiles_and_clock_are_never_slower(product):
    times = [plan_product(BOW, *product, share).cycles(BOW) for share in PROPORTIONS]
    assert times == sorted(times, reverse=True)
    chips = [architecture("bow", tiles=n) for n in (16, 64, 368, 736, 1472, 2944)]
    seconds = [chip.seconds(plan_product(chip, *product).cycles(chip)) for chip in chips]
    assert seconds == sorted(seconds, reverse=True)
    faster = architecture("bow", clock=2.5e9)
    assert faster.seconds(plan_product(faster, *product).cycles(faster)) < seconds[-2]


@pytest.mark.parametrize("product", products(12), ids=str)
def test_larger_products_are_never_cheaper(product):
    cycles = plan_product(BOW, *product).cycles(BOW)
    for place in range(4):
        larger = [*product]
        larger[place] *= 2
        assert plan_product(BOW, *larger).cycles(BOW) >= cycles


@pytest.mark.parametrize("kind", ProductPass)
@pytest.mark.parametrize(
    "shape",
    [
        ConvolutionShape(4, 3, 64, (56, 56), (7, 7), (2, 2), (3, 3)),
        ConvolutionShape(4, 64, 128, (28, 28), (3, 3), (2, 2), (1, 1)),
        ConvolutionShape(4, 256, 64, (14, 14), (1, 1)),
        ConvolutionShape(2, 64, 64, (28, 28), (3, 3), padding=(1, 1), groups=64),
        ConvolutionShape(2, 32, 16, (100,), (5,), transposed=True, stride=(2,)),
        ConvolutionShape(1, 8, 8, (8, 8, 8), (3, 3, 3), padding=(1, 1, 1)),
    ],
)
def test_convolutions_cost_more_when_they_are_larger(shape, kind):
    shape = dataclasses.replace(shape, kind=kind)
    cost = plan_convolution(BOW, shape, HALF, HALF)
    assert cost.cycles(BOW) > shape.multiplications / (BOW.tiles * 64)
    assert cost.weight_tile_bytes > 0
    for name in ("batch", "in_channels", "out_channels"):
        if name != "batch" and shape.groups > 1:
            continue
        larger = dataclasses.replace(shape, **{name: 2 * getattr(shape, name)})
        assert plan_convolution(BOW, larger, HALF, HALF).cycles(BOW) >= cost.cycles(BOW)
    times = [plan_convolution(BOW, shape, HALF, HALF, share).cycles(BOW) for share in PROPORTIONS]
    assert times == sorted(times, reverse=True)
    more = architecture("bow", tiles=2944)
    assert plan_convolution(more, shape, HALF, HALF).cycles(more) <= cost.cycles(BOW)


def test_shapes_follow_torch():
    torch.manual_seed(0)
    for shape in (
        ConvolutionShape(2, 6, 4, (9, 11), (3, 2), (2, 3), (1, 0), (1, 2), groups=2),
        ConvolutionShape(2, 6, 4, (9,), (3,), (2,), (1,), transposed=True, output_padding=(1,)),
    ):
        kind = [torch.nn.Conv1d, torch.nn.Conv2d][len(shape.input) - 1]
        sizes = {n: getattr(shape, n) for n in ("stride", "padding", "dilation")}
        if shape.transposed:
            kind, sizes["output_padding"] = torch.nn.ConvTranspose1d, shape.output_padding
        layer = kind(shape.in_channels, shape.out_channels, shape.kernel, groups=shape.groups, **sizes)
        assert shape.output == tuple(layer(torch.zeros(2, shape.in_channels, *shape.input)).shape[2:])


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_impossible_proportions_are_errors(share):
    with pytest.raises(poptorch.Error, match="from 0 to 1"):
        plan_product(BOW, 1, 8, 8, 8, HALF, HALF, share)


def test_impossible_convolutions_are_errors():
    with pytest.raises(poptorch.Error, match="positive"):
        ConvolutionShape(0, 1, 1, (4,), (2,))
    with pytest.raises(poptorch.Error, match="2 dimensions"):
        ConvolutionShape(1, 1, 1, (4, 4), (2,))
