"""The annotations of the first releases."""

import logging

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch import _logging, ambient
from poptorch.ambient import CaptureContext, Placement


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(2, 2) for _ in range(4))
        self.where = []

    def note(self):
        context = ambient.current()
        self.where.append(context.placement.ipu if context and context.placement else None)

    def forward(self, x):
        x = self.a(x)
        self.note()
        x = self.b(x)
        self.note()
        with poptorch.IPU(2):
            x = self.c(x)
            self.note()
        x = self.d(x)
        self.note()
        return x


def test_wrapper_and_scope_mix():
    model = Model()
    model.b = poptorch.IPU(1, model.b)
    x = torch.ones(1, 2)
    native = model(x)
    assert model.where == [None] * 4
    with ambient.capturing(CaptureContext()) as context:
        assert torch.equal(model(x), native)
    assert model.where[4:] == [0, 1, 2, 2]  # leaving the scope changes nothing
    assert [start.stage for start in context.block_starts] == [1, 2]


def test_the_wrapped_layer_is_a_submodule():
    wrapped = poptorch.IPU(1, nn.Linear(2, 2))
    assert wrapped.ipu_id == 1
    assert isinstance(wrapped.layer_to_call, nn.Linear)
    assert list(wrapped.state_dict()) == ["layer_to_call.weight", "layer_to_call.bias"]


def test_arguments_pass_through():
    assert poptorch.IPU(1, lambda x, y=0: x - y)(5, y=2) == 3


def test_a_scope_cannot_be_called():
    with pytest.raises(TypeError, match="has no layer to call"):
        poptorch.IPU(1)(torch.ones(1))


def test_construction_warns_of_deprecation(caplog):
    _logging.forget_said()
    _logging.logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING):
            poptorch.IPU(0)
    finally:
        _logging.logger.removeHandler(caplog.handler)
    assert "deprecated" in caplog.text


@pytest.mark.parametrize(
    ("kwargs", "placement"),
    [
        ({"stage_id": 3}, Placement(3, 0, 3)),
        ({"ipu_id": 2}, Placement(2, 0, 2)),
        ({"stage_id": 3, "ipu_id": 1, "phase_id": 2}, Placement(3, 2, 1)),
        ({"stage_id": 3, "ipu_id": poptorch.IpuId.SameAsPreviousStage}, Placement(3, 0, 7)),
        ({"stage_id": 3, "phase_id": poptorch.PhaseId.Disabled}, Placement(3, 0, 3)),
    ],
)
def test_begin_phase_and_the_old_scope_select_by_number(kwargs, placement):
    with ambient.capturing(CaptureContext(placement=Placement(ipu=7))) as context, poptorch.Phase(**kwargs):
        pass
    assert context.placement == placement  # leaving the scope changes nothing
    layer = poptorch.BeginPhase(layer_to_call=nn.Identity(), **kwargs)
    with ambient.capturing(CaptureContext(placement=Placement(ipu=7))) as context:
        layer(1)
    assert context.placement == placement
    assert context.block_starts == [placement]
    assert layer(4) == 4


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"stage_id": -1}, "stage_id must be a positive integer"),
        ({"stage_id": 0, "ipu_id": -3}, "ipu_id must be either a positive integer or a IpuId"),
        ({"stage_id": 0, "phase_id": "0"}, "phase_id must be either a positive integer or a PhaseId"),
    ],
)
def test_begin_phase_and_the_old_scope_check_their_numbers(kwargs, message):
    with pytest.raises(AssertionError, match=message):
        poptorch.Phase(**kwargs)
    with pytest.raises(AssertionError, match=message):
        poptorch.BeginPhase(layer_to_call=nn.Identity(), **kwargs)


def test_the_old_scope_in_a_model():
    class Scoped(nn.Module):
        def forward(self, x):
            with poptorch.Phase(stage_id=0):
                x = x + 1
            with poptorch.Phase(stage_id=1):
                x = x * 2
            return x - 3

    inference = poptorch.inferenceModel(Scoped(), poptorch.Options().deviceIterations(2))
    assert inference(torch.ones(2, 1)).tolist() == [[1.0], [1.0]]
    assert "IPU1 | .  0F 1F" in inference.drawSchedule()


def test_a_phase_of_the_current_api_takes_no_numbers():
    with pytest.raises(AssertionError, match=r"All arguments must either be block IDs \(strings\) or Stages"):
        poptorch.Phase(1)


@pytest.mark.parametrize("enabled", [True, False])
def test_pipelining_can_be_switched_off(enabled):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), poptorch.IPU(1, nn.Linear(2, 2))

        def forward(self, x):
            return self.second(self.first(x))

    model = Wrapped()
    options = poptorch.Options().deviceIterations(2).enablePipelining(enabled)
    inference = poptorch.inferenceModel(model, options)
    assert_close_sums(inference(torch.ones(2, 2)), model(torch.ones(2, 2)), terms=4)
    ideal = inference.drawSchedule().splitlines()[1:3]
    assert ideal == (["IPU0 | 0F 1F .", "IPU1 | .  0F 1F"] if enabled else ["IPU0 | 0F .  1F .", "IPU1 | .  0F .  1F"])


def test_without_pipelining_one_micro_batch_is_enough():
    options = poptorch.Options().enablePipelining(False)
    model = nn.Sequential(nn.Linear(2, 2), poptorch.IPU(1, nn.Linear(2, 2)))
    x = torch.ones(1, 2)
    assert_close_sums(poptorch.inferenceModel(model, options)(x), model(x), terms=16, steps=3)
