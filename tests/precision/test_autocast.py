"""Autocast: regions, modules, policies and the master switch."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.autocasting import Policy

H, F = torch.float16, torch.float32


def types(model: poptorch.PoplarExecutor) -> dict[str, torch.dtype]:
    """The result type of each operation of the program, by its name."""
    return {
        str(node.target).split(".")[1]: node.meta["val"].dtype
        for node in model.program.operations()
        if isinstance(node.meta["val"], torch.Tensor)
    }


class WithBlock(nn.Module):
    def __init__(self, *enabled: bool) -> None:
        super().__init__()
        self.enabled = enabled

    def forward(self, x, y):
        with poptorch.autocast(*self.enabled):
            return torch.bmm(x, y)


class WithDecorator(WithBlock):
    def forward(self, x, y):
        @poptorch.autocast(*self.enabled)
        def product(a, b):
            return torch.bmm(a, b)

        return product(x, y)


@pytest.mark.parametrize("kind", [WithBlock, WithDecorator])
@pytest.mark.parametrize(("enabled", "expected"), [((), H), ((True,), H), ((False,), F)])
def test_regions(kind, enabled, expected) -> None:
    x, y = torch.randn(1, 2, 3), torch.randn(1, 3, 2)
    model = poptorch.inferenceModel(kind(*enabled))
    result = model(x, y)
    assert types(model)["bmm"] is expected
    assert_close_sums(result.float(), torch.bmm(x, y), terms=1, steps=2, dtype=H)  # operands and results are rounded
    assert kind(*enabled)(x, y).dtype is F  # on the host nothing changes


class Nested(nn.Module):
    def forward(self, x):
        with poptorch.autocast():
            a = x * 2
            with poptorch.autocast(False):
                b = x * 3
            c = x * 4
        return a, b, c, x * 5


def test_the_innermost_region_decides() -> None:
    assert [t.dtype for t in poptorch.inferenceModel(Nested())(torch.ones(2))] == [H, F, H, F]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x):
        return torch.relu(0.5 * self.conv(x))


@pytest.mark.parametrize(
    ("policy", "conv", "mul", "relu"),
    [
        (Policy([nn.Conv2d], [torch.mul, torch.relu]), H, F, F),
        (Policy([nn.Conv2d, torch.relu], [torch.mul]), H, F, H),
        (Policy([torch.mul], [nn.Conv2d, torch.relu]), H, H, F),
        (Policy(), H, H, H),
    ],
)
def test_policies(policy, conv, mul, relu) -> None:
    module = Convolution()
    assert module.autocast() is None
    options = poptorch.Options()
    options.Precision.autocastPolicy(policy)
    model = poptorch.inferenceModel(module, options)
    model(torch.randn(1, 1, 5, 5))
    found = types(model)
    assert (found["convolution"], found["mul"], found["relu"]) == (conv, mul, relu)


@pytest.mark.parametrize(("enabled", "expected"), [(None, H), (True, H), (False, F)])
def test_master_switch(enabled, expected) -> None:
    module = Convolution()
    module.autocast()
    options = poptorch.Options()
    if enabled is not None:
        options.Precision.autocastEnabled(enabled)
    model = poptorch.inferenceModel(module, options)
    model(torch.randn(1, 1, 5, 5))
    assert types(model)["convolution"] is expected


def test_a_layer_can_be_excluded() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.second = nn.Sequential(nn.Linear(2, 2))

        def forward(self, x):
            return self.first(x), self.second(x)

    module = Two()
    module.autocast()
    module.second.autocast(False)
    assert [t.dtype for t in poptorch.inferenceModel(module)(torch.ones(1, 2))] == [H, F]


def test_promotion_and_demotion_of_mixed_operands() -> None:
    class Joined(nn.Module):
        def forward(self, a, b):
            with poptorch.autocast():
                return torch.cat([a, b]), torch.cat([a, a]), torch.cat([b, b]), torch.dot(a, b)

    a, b = torch.ones(2).half(), torch.ones(2)
    assert [t.dtype for t in poptorch.inferenceModel(Joined())(a, b)] == [F, H, F, F]
    options = poptorch.Options()
    options.Precision.autocastPolicy(Policy(demote=[torch.cat]))
    assert [t.dtype for t in poptorch.inferenceModel(Joined(), options)(a, b)][:3] == [H, H, F]


def test_unlisted_operations_follow_the_casting_mode() -> None:
    options = poptorch.Options()
    options.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    assert [t.dtype for t in poptorch.inferenceModel(Nested(), options)(torch.ones(2).half())] == [F, H, F, H]


@pytest.mark.parametrize(
    ("policy", "mixed", "expected"),
    [
        (Policy(fp16=[nn.Linear]), False, H),
        (Policy(fp32=[nn.Linear]), False, F),
        (Policy(promote=[nn.Linear], fp16=[nn.Linear]), True, F),
        (Policy(demote=[nn.Linear], fp32=[nn.Linear]), True, H),
        (Policy(promote=[nn.Linear], fp16=[nn.Linear]), False, H),
    ],
)
def test_module_classes_convert_parameters_in_place(policy, mixed, expected) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].autocast()
    if mixed:
        module[0].bias.data = module[0].bias.data.half()
    options = poptorch.Options()
    options.Precision.autocastPolicy(policy)
    poptorch.inferenceModel(module, options)
    assert {p.dtype for p in module[0].parameters()} == {expected}
    assert {p.dtype for p in module[1].parameters()} == {F}  # not asked for


def test_training_through_a_region_updates_float32_weights() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, target):
            y = self.layer(x)
            return y, nn.functional.mse_loss(y, target)

    module = WithLoss()
    module.autocast()
    before = module.layer.weight.detach().clone()
    reference = WithLoss()
    reference.load_state_dict(module.state_dict())
    reference(torch.ones(2, 4), torch.zeros(2, 4))[1].backward()
    model = poptorch.trainingModel(module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0))
    output, loss = model(torch.ones(2, 4), torch.zeros(2, 4))
    assert (output.dtype, loss.dtype) == (H, H)
    change = before - module.layer.weight.detach()
    assert change.dtype is F
    assert_close_sums(change, reference.layer.weight.grad, terms=1, steps=4, dtype=H)  # two roundings in each pass


def test_checkpointed_layers_are_cast_again() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.layer.autocast()

        def forward(self, x, target):
            y = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)
            return y, nn.functional.mse_loss(y.float(), target)

    output, loss = poptorch.trainingModel(WithLoss())(torch.ones(2, 4), torch.zeros(2, 4))
    assert (output.dtype, loss.dtype) == (H, F)
