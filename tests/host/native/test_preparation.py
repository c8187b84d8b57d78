"""What depends on weights alone leaves the graph; folding and packing keep the numbers.

The graphs are interpreted here, which is quick; compiled ones are tested with the frozen code.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import fx, nn
from torch.func import functional_call

from closeness import assert_close_sums
from poptorch.host.native.freezing import freeze
from poptorch.host.native.inductor import decompose, fake_mode
from poptorch.host.native.preparation import Preparation
from poptorch.libraries.choice import MKL_ALONE

aten = torch.ops.aten


class Frozen:
    """A module's graph with its weights frozen."""

    def __init__(self, model: nn.Module, *inputs: torch.Tensor) -> None:
        self.state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        mode = fake_mode()
        with mode:
            fakes = [torch.empty_like(t) for t in (*self.state.values(), *inputs)]

            def function(*flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
                state = dict(zip(self.state, flat, strict=False))
                return (functional_call(model, state, flat[len(state) :]),)

            self.module = decompose(function, fakes)
        weights = self.module.graph.find_nodes(op="placeholder")[: len(self.state)]
        self.preparation: Preparation = freeze(self.module, mode, dict(zip(weights, fakes, strict=False)), MKL_ALONE)

    def prepare(self) -> list[torch.Tensor]:
        with torch.no_grad():
            return self.preparation.run(self.state.values())

    def run(self, inputs: Sequence[torch.Tensor], prepared: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            result = fx.Interpreter(self.module).run(*inputs, *prepared, enable_io_processing=False)[0]
        assert isinstance(result, torch.Tensor)
        return result

    def targets(self) -> list[str]:
        return [str(n.target) for n in self.module.graph.nodes if n.op == "call_function"]


def shuffled(model: nn.Module) -> nn.Module:
    """With statistics that a folded batch norm cannot get right by chance."""
    torch.manual_seed(0)
    for value in (*model.parameters(), *model.buffers()):
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 1.5)
    return model.eval()


def packed(name: str) -> str:
    return {"linear": "poptorch_frozen.linear", "conv": "mkldnn._convolution_pointwise.default"}[name]


FOLDED = {
    "conv": (nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), (2, 3, 8, 8), 1),
    "conv with bias": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 3, 8, 8), 2),
    "grouped conv": (nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)), (2, 4, 8, 8), 1),
    "linear": (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), (5, 6), 2),
    "linear without bias": (nn.Sequential(nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4)), (5, 6), 2),
}


@pytest.mark.parametrize("name", FOLDED)
def test_batch_norm_is_folded_into_the_layer_before_it(name: str) -> None:
    model, shape, operations = FOLDED[name]
    shuffled(model)
    x = torch.randn(shape)
    frozen = Frozen(model, x)
    # The layer, what follows the batch norm, and at most the order of the output's elements.
    arithmetic = [t for t in frozen.targets() if "force_stride_order" not in t and "clone" not in t]
    assert len(arithmetic) <= operations, arithmetic
    # The weights of one output are the terms; the factor of the norm is one more rounding of each.
    assert_close_sums(frozen.run([x], frozen.prepare()), model(x), terms=model[0].weight[0].numel(), steps=2)


@pytest.mark.parametrize("channels", [(3, 3), (3, 5)])
def test_batch_norm_after_a_transposed_convolution(channels: tuple[int, int]) -> None:
    """The first axis of its weight is not the one of the output channels, even where both are equally long."""
    model = shuffled(nn.Sequential(nn.ConvTranspose2d(*channels, 2, 2), nn.BatchNorm2d(channels[1])))
    x = torch.randn(2, 3, 4, 4)
    frozen = Frozen(model, x)
    assert_close_sums(frozen.run([x], frozen.prepare()), model(x), terms=channels[0], steps=2)


def test_prepared_values_follow_the_weights() -> None:
    model = shuffled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3)))
    x = torch.randn(2, 3, 8, 8)
    frozen = Frozen(model, x)
    first = frozen.run([x], frozen.prepare())
    with torch.no_grad():
        for value in frozen.state.values():
            value.mul_(2)
    second = frozen.run([x], frozen.prepare())
    assert not torch.allclose(first, second)
    assert_close_sums(second, model(x), terms=4 * 36, steps=3)


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.linear(x)))


def test_a_weight_that_is_used_twice_is_packed_once() -> None:
    model, x = Tied(), torch.randn(4, 6)
    frozen = Frozen(model, x)
    prepared = frozen.prepare()
    assert len({id(t) for t in prepared}) == 3  # packed, as it is, and the bias
    assert_close_sums(frozen.run([x], prepared), model(x), terms=6, steps=2)


class Positions(nn.Module):
    """Looks rows of a table up that are always the same, and returns nothing but weights beside."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table(torch.arange(8))


def test_constant_operands_do_not_keep_an_operation_in_the_graph() -> None:
    model, x = Positions(), torch.randn(3, 8, 4)
    frozen = Frozen(model, x)
    assert frozen.targets() == ["aten.add.Tensor"] or frozen.targets()[0] == "aten.add.Tensor"
    assert [t.shape for t in frozen.prepare()] == [(8, 4)]
    assert_close_sums(frozen.run([x], frozen.prepare()), model(x), terms=2)


class Spread(nn.Module):
    """Makes a large matrix of two small vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(64, 1)), nn.Parameter(torch.randn(1, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.a * self.b


def test_nothing_is_kept_that_is_larger_than_the_weights() -> None:
    model, x = Spread(), torch.randn(64, 64)
    frozen = Frozen(model, x)
    assert sum(t.numel() for t in frozen.prepare()) == 128
    assert_close_sums(frozen.run([x], frozen.prepare()), model(x), terms=2)


class OnlyWeights(nn.Module):
    """Its result does not depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * 2


def test_the_caller_never_gets_a_prepared_value_itself() -> None:
    frozen = Frozen(OnlyWeights(), torch.ones(3))
    prepared = frozen.prepare()
    frozen.run([torch.ones(3)], prepared).zero_()
    assert frozen.run([torch.ones(3)], prepared).tolist() == [2, 2, 2]
