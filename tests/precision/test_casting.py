"""Result types of mixed operations, against the table of the specification."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Normal, Uniform

import poptorch
from closeness import assert_close_sums

H, F = torch.float16, torch.float32


class Call(nn.Module):
    def __init__(self, function: Callable[..., object], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.layer = layer

    def forward(self, *tensors: torch.Tensor) -> object:
        return self.function(*tensors) if self.layer is None else self.function(self.layer, *tensors)


def front_end(name: str) -> poptorch.Options:
    """``D``: tracing, downcasting. ``U``: tracing, upcasting. ``N``: the dispatcher. ``""``: nothing chosen."""
    options = poptorch.Options()
    if name in ("D", "U"):
        options.Jit.traceModel(True)
    if name == "U":
        options.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    if name == "N":
        options.Jit.traceModel(False)
    return options


def result_type(function, *tensors: torch.Tensor, mode: str = "", layer: nn.Module | None = None) -> torch.dtype:
    return poptorch.inferenceModel(Call(function, layer), front_end(mode))(*tensors).dtype


def uniform(x: torch.Tensor) -> torch.Tensor:
    return Uniform(x, torch.tensor([10.0, 10.0, 10.0]), validate_args=False).sample((3,))


# expression, then the types for a float16 input under D, U, N and for a float32 input under D, U, N
ROWS = [
    (lambda x: torch.ones(3, dtype=x.dtype) + x.to(x.dtype), (F, F, H), (F, F, F)),
    (lambda x: torch.zeros(3, dtype=x.dtype) + x, (H, H, H), (F, F, F)),
    (lambda x: torch.ones(3, dtype=H) + x, (H, H, H), (H, F, F)),
    (lambda x: torch.zeros(3, dtype=F) + x, (H, H, F), (F, F, F)),
    (lambda x: torch.rand(3, dtype=x.dtype) + 0 * x.sum().to(torch.int32), (F, F, H), (F, F, F)),
    (lambda x: torch.rand(3, dtype=x.dtype) + x, (H, H, H), (F, F, F)),
    (lambda x: torch.rand(3, dtype=H) + x, (H, H, H), (H, F, F)),
    (lambda x: torch.normal(x, 10.0), (H, H, H), (F, F, F)),
    (lambda x: torch.normal(0.0, x), (H, H, H), (F, F, F)),
    (uniform, (H, H, F), (F, F, F)),
    (lambda x: Normal(x, 10.0, validate_args=False).sample((3,)), (H, H, H), (F, F, F)),
    (lambda x: Normal(0.0, x, validate_args=False).sample((3,)), (H, H, H), (F, F, F)),
    (lambda x: (x + 0).uniform_(), (H, H, H), (F, F, F)),
    (lambda x: (x + 0).normal_(), (H, H, H), (F, F, F)),
    (lambda x: torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype) + x, (H, H, H), (F, F, F)),
    (lambda x: torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype) + x.to(H), (H, H, H), (H, H, F)),
    (lambda x: torch.tensor([1.0, 2.0, 3.0], dtype=F) + x, (H, H, F), (F, F, F)),
]


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize("column", range(3))
def test_table(row: int, column: int) -> None:
    expression, of_half, of_float = ROWS[row]
    mode = "DUN"[column]
    assert result_type(expression, torch.ones(3, dtype=H), mode=mode) is of_half[column]
    assert result_type(expression, torch.ones(3), mode=mode) is of_float[column]


@pytest.mark.parametrize(("mode", "expected"), [("D", H), ("U", F), ("N", F), ("", H)])
def test_sums_of_mixed_operands(mode: str, expected: torch.dtype) -> None:
    x, y = torch.ones(3, dtype=H), torch.ones(3)
    assert result_type(lambda a, b: a + b, x, y, mode=mode) is expected
    assert result_type(lambda a, b: a + b, y, x, mode=mode) is expected


@pytest.mark.parametrize(
    ("activation", "parameters", "traced", "dispatched"), [(F, F, F, F), (H, F, H, H), (F, H, H, F), (H, H, H, H)]
)
@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 2), lambda: nn.Conv1d(3, 2, 1), lambda: nn.Bilinear(3, 3, 2)])
def test_layers(make, activation, parameters, traced, dispatched) -> None:
    def run(layer, x):
        return layer(x, x) if isinstance(layer, nn.Bilinear) else layer(x)

    for mode, expected in (("D", traced), ("N", dispatched), ("", traced)):
        layer = make().to(parameters)
        x = torch.ones(3, 3, dtype=activation)
        assert result_type(run, x, mode=mode, layer=layer) is expected


@pytest.mark.parametrize("make", [lambda: nn.LSTM(3, 2), lambda: nn.GRU(3, 2), lambda: nn.RNN(3, 2), nn.PReLU])
def test_layers_that_check_types_themselves(make) -> None:
    x = torch.ones(2, 4, 3, dtype=H)

    def first(layer, x):
        y = layer(x)
        return y[0] if isinstance(y, tuple) else y

    assert result_type(first, x, layer=make()) is H
    assert result_type(first, x, layer=make().half()) is H
    assert result_type(first, x.float(), layer=make().half(), mode="D") is H


def test_products_with_parameters_follow_the_activation() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 3))

        def forward(self, x):
            return x @ self.weight

    assert poptorch.inferenceModel(Product())(torch.ones(2, 3, dtype=H)).dtype is H
    x, y = torch.ones(2, 3, dtype=H), torch.ones(3, 2)
    assert result_type(torch.matmul, x, y, mode="N") is F
    assert result_type(torch.matmul, x, y) is H
    assert result_type(torch.matmul, x, y, mode="D") is H


def test_norms_keep_the_type_of_their_input() -> None:
    x = torch.randn(4, 6)
    for layer in (nn.BatchNorm1d(6), nn.LayerNorm(6), nn.GroupNorm(2, 6)):
        y = poptorch.inferenceModel(layer)(x.half())
        assert y.dtype is H
        assert_close_sums(y.float(), layer(x).detach(), terms=1, dtype=H)
        y = poptorch.inferenceModel(layer.half(), front_end("N"))(x)
        assert y.dtype is F


def test_comparison_of_a_rounded_number() -> None:
    x, y = torch.tensor([550.4]).half(), torch.tensor([550.4])
    for mode, expected in (("D", True), ("N", False), ("", True)):
        assert bool(poptorch.inferenceModel(Call(torch.eq), front_end(mode))(x, y)) is expected


@pytest.mark.parametrize("mode", ["D", "U"])
def test_casts_are_out_of_place(mode: str) -> None:
    x = torch.ones(3)
    a, b = poptorch.inferenceModel(Call(lambda x: (x.half(), x + 0)), front_end(mode))(x)
    assert (a.dtype, b.dtype) == (H, F)


@pytest.mark.parametrize("mode", ["D", "N", ""])
def test_casts_of_integers_are_reliable(mode: str) -> None:
    x = torch.arange(3, dtype=torch.uint8)
    assert result_type(lambda x: x.half() + 1, x, mode=mode) is H
    assert result_type(lambda x: x.float() + 1, x, mode=mode) is F


def test_both_types_in_one_model_keep_their_own() -> None:
    def add(a, b, c, d):
        return a + b + 5, c + d + 5

    h, f = torch.tensor([1.0, 2.0]).half(), torch.tensor([3.0, 4.0])
    halves, floats = poptorch.inferenceModel(Call(add))(h, h, f, f)
    assert halves.tolist() == [7.0, 9.0]
    assert floats.tolist() == [11.0, 13.0]
    assert (halves.dtype, floats.dtype) == (H, F)


def test_downcasting_is_refused_by_the_dispatcher() -> None:
    options = poptorch.Options()
    options.Jit.traceModel(False)
    options.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf)
    with pytest.raises(poptorch.Error, match="FloatDowncastToHalf is deprecated and not supported in the dispatcher"):
        poptorch.inferenceModel(Call(torch.relu), options)(torch.ones(2))


@pytest.mark.parametrize("behaviour", list(poptorch.HalfFloatCastingBehavior))
def test_the_option_alone_decides_about_mixed_operands(behaviour) -> None:
    options = poptorch.Options()
    options.Precision.halfFloatCasting(behaviour)
    model = poptorch.inferenceModel(Call(lambda x, y: (x * y, torch.zeros(2, dtype=x.dtype))), options)
    product, created = model(torch.ones(2).half(), torch.ones(2))
    assert product.dtype is (F if behaviour is poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat else H)
    assert created.dtype is H, "types read as they are unless traceModel(True) is explicit"


@pytest.mark.parametrize(
    "function", [torch.hypot, torch.floor_divide, torch.fmax, torch.logaddexp, torch.xlogy, torch.dist, torch.cross]
)
def test_every_operation_on_mixed_operands_is_float16(function) -> None:
    x, y = torch.ones(3).half(), 2 * torch.ones(3)
    assert result_type(function, x, y) is H
    assert result_type(function, y, x) is H


def test_float32_weights_meet_float16_inputs_as_float16_and_keep_their_type() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.PReLU(), nn.Linear(4, 1))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x, target):
            y = self.net(x)
            return y, nn.functional.mse_loss(y, target)

    before = [p.detach().clone() for p in net.parameters()]
    training = poptorch.trainingModel(Loss(), optimizer=poptorch.optim.SGD(net.parameters(), lr=0.1))
    y, loss = training(torch.randn(6, 4).half(), torch.randn(6, 1))
    assert (y.dtype, loss.dtype) == (H, H)
    for old, new in zip(before, net.parameters(), strict=True):
        assert new.dtype is F
        assert not torch.equal(old, new)


def test_a_grid_in_another_type_than_the_image() -> None:
    image, grid = torch.ones(1, 1, 4, 4).half(), torch.zeros(1, 2, 2, 2)

    def sample(image, grid):
        return nn.functional.grid_sample(image, grid, align_corners=False)

    assert result_type(sample, image, grid) is H
    assert result_type(sample, image, grid, mode="N") is F


def test_the_first_mixed_operation_is_announced_once(caplog) -> None:
    poptorch.setLogLevel("INFO")

    def mixed(x, y):
        z = x * y
        return z + y

    poptorch.inferenceModel(Call(mixed))(torch.ones(2).half(), torch.ones(2))
    lines = [r.getMessage() for r in caplog.records if "float16 and float32 operands" in r.getMessage()]
    assert len(lines) == 1
    assert f"mul at {__file__}:{mixed.__code__.co_firstlineno + 1}" in lines[0]
    assert "halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)" in lines[0]
    caplog.clear()
    poptorch.inferenceModel(Call(mixed), front_end("N"))(torch.ones(2).half(), torch.ones(2))
    poptorch.inferenceModel(Call(mixed))(torch.ones(2), torch.ones(2))
    assert "float16 and float32 operands" not in caplog.text


def test_capturing_leaves_types_as_they_were() -> None:
    layer = nn.Linear(3, 2).half()
    poptorch.inferenceModel(layer, front_end("D"))(torch.ones(1, 3))
    assert layer.weight.dtype is H
    assert torch.ones(1).half().dtype is H
    assert not hasattr(torch.ones(1), "_poptorch_ambiguous")


class CastsToItsWeights(nn.Module):
    """Casts its inputs to the type of its weights, as models do that run in any type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.LayerNorm(4)
        self.recurrent = nn.GRU(4, 4, batch_first=True)
        self.linear = nn.Linear(4, 2)
        self.to(dtype)
        self.dtype = dtype

    def forward(self, x, target):
        hidden = torch.relu(self.convolution(x.to(self.dtype))).flatten(2).transpose(1, 2)
        out = self.linear(self.recurrent(self.norm(hidden).to(self.dtype))[0][:, -1].to(self.dtype))
        return out, nn.functional.mse_loss(out, target.to(self.dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_casts_to_the_type_that_weights_have_outside_follow_the_device(dtype) -> None:
    torch.manual_seed(0)
    model = CastsToItsWeights(dtype)
    plain = copy.deepcopy(model).double()
    plain.dtype = torch.float64
    x, target = torch.randn(3, 1, 5, 5), torch.randn(3, 2)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        loss = executor(x, target)[1]
        optimizer.zero_grad()
        expected = plain(x.double(), target.double())[1]
        expected.backward()
        optimizer.step()
        bound = 1e-5 if dtype is torch.float64 else 2e-2  # the target alone is rounded to 8 bits
        torch.testing.assert_close(loss.double(), expected.detach(), rtol=bound, atol=bound)
