"""Compiling needs no values, of plain tensor attributes neither; running needs them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import poptorch
from poptorch.capture.arguments import Signature
from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.memory import Category
from poptorch.compiler.request import CompileRequest
from poptorch.program.program import Role

META = torch.device("meta")

pytestmark = pytest.mark.filterwarnings("ignore:Output expected to be on the IPU")


class Plain(nn.Module):
    """Plain tensors that are neither parameters nor buffers, alone and in a list."""

    def __init__(self, without, device=META):
        super().__init__()
        self.fc = nn.Linear(4, 2, device=device)
        self.without = without
        self.listed = [without, torch.full((2,), 5.0)]
        self.with_values = torch.ones(2)

    def forward(self, x):
        y = self.fc(x) + self.without * 2 + self.listed[0] + self.with_values * 3
        return y, self.without + self.listed[1], self.with_values + self.listed[1]


def lower(model, device=META):
    call = Signature(model.forward).bind((torch.ones(8, 4, device=device),), {})
    return lower_for_device(CompileRequest(model, call, poptorch.Options(), training=False))


def fake(shape):
    with FakeTensorMode():
        return torch.empty(shape)


@pytest.mark.parametrize("make", [lambda: torch.ones(2, device=META), lambda: fake((2,))], ids=["meta", "fake"])
def test_what_has_no_values_is_not_evaluated(make):
    without = make()
    model = Plain(without)
    listed = model.listed
    device = lower(model)
    assert device.interface.result_positions == (0, 1, -1)  # the second result is computed on the device
    assert torch.equal(device.interface.host_results[2], torch.full((2,), 6.0))
    constants = {port.name: device.program.constants[port.name] for port in device.program.ports_of(Role.CONSTANT)}
    folded = [t.tolist() for t in constants.values() if t.device.type == "cpu" and type(t) is torch.Tensor]
    assert sorted(folded) == [[3.0, 3.0], [5.0, 5.0]]
    assert len(constants) == 3  # one stands for the tensor without values, wherever it is used
    assert {h.shape for h in device.memory.of(Category.CONSTANT)} == {(2,)}
    assert model.without is without
    assert model.listed is listed
    assert listed[0] is without


def test_the_same_program_as_with_values_but_for_folding():
    with_values = lower(Plain(torch.ones(2), device=torch.device("cpu")), torch.device("cpu"))
    without = lower(Plain(torch.ones(2, device=META)))
    assert {h.name: h.shape for h in with_values.memory.of(Category.WEIGHT)} == {
        h.name: h.shape for h in without.memory.of(Category.WEIGHT)
    }
    assert len(without.program.results) == len(with_values.program.results) + 1


def test_what_has_no_values_cannot_run():
    model = poptorch.inferenceModel(Plain(torch.ones(2, device=META), device=torch.device("cpu")))
    with pytest.raises(
        poptorch.Error, match=r"a tensor of type float32\[2\] that has no values.*test_constants_without_values\.py:\d+"
    ):
        model(torch.ones(8, 4))


def test_python_that_needs_the_value_names_the_attribute():
    class Asks(Plain):
        def forward(self, x):
            return self.fc(x) if self.without.sum() > 0 else x

    model = Asks(torch.ones(2, device=META), device=torch.device("cpu"))
    with pytest.raises(poptorch.Error, match=r"needs the value of a tensor in Python, at .*, but without has none"):
        lower(model, torch.device("cpu"))
