"""Training for quantised inference with torch's observers, against the same training in eager mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.ao import quantization as Q
from torch.nn import functional as F

import poptorch

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max", "ignore:.*is deprecated")


def imitation(observer, **settings):
    return Q.FakeQuantize.with_args(observer=observer, **settings)


BYTE = {"quant_min": 0, "quant_max": 255}
SIGNED = {"quant_min": -128, "quant_max": 127, "dtype": torch.qint8}
LAYERS = {
    "default": Q.default_fake_quant,
    "weights": Q.default_weight_fake_quant,
    "fused": Q.default_fused_act_fake_quant,
    "extremes": imitation(Q.MinMaxObserver, **BYTE),
    "average": imitation(Q.MovingAverageMinMaxObserver, averaging_constant=0.3, **BYTE),
    "symmetric": imitation(Q.MovingAverageMinMaxObserver, qscheme=torch.per_tensor_symmetric, **SIGNED),
    "symmetric bytes": imitation(Q.MovingAverageMinMaxObserver, qscheme=torch.per_tensor_symmetric, **BYTE),
    "fixed": Q.default_fixed_qparams_range_0to1_fake_quant,
    "observer alone": Q.MovingAverageMinMaxObserver,
}
BY_CHANNEL = {
    "channels": imitation(Q.PerChannelMinMaxObserver, qscheme=torch.per_channel_symmetric, ch_axis=0, **SIGNED),
    "channels, average": imitation(
        Q.MovingAveragePerChannelMinMaxObserver, qscheme=torch.per_channel_affine, ch_axis=0, **SIGNED
    ),
}


class Quantised(nn.Module):
    """Activations and a weight pass through the layers."""

    def __init__(self, make, for_weights=None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.activation, self.weight = make(), (for_weights or make)()

    def forward(self, x, target=None):
        hidden = self.activation(torch.relu(self.first(x)))
        y = F.linear(hidden, self.weight(self.second.weight), self.second.bias)
        return y if target is None else (y, F.cross_entropy(y, target))


def batches(count):
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(6, 4, generator=generator) * (1 + i), torch.randint(3, (6,), generator=generator))
        for i in range(count)
    ]


def model_of(make, for_weights=None):
    torch.manual_seed(0)
    return Quantised(make, for_weights)


def step(model, optimizer, x, target):
    optimizer.zero_grad()
    loss = model(x, target)[1]
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same_state(model, expected):
    wanted = expected.state_dict()
    for name, value in model.state_dict().items():
        assert torch.allclose(value.double(), wanted[name].double(), rtol=1e-4, atol=1e-5), name


def trainer(model):
    return poptorch.trainingModel(model, poptorch.Options(), torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.filterwarnings("error:The value")  # nothing is frozen
@pytest.mark.parametrize("name", LAYERS)
def test_trains_as_in_eager(name):
    model = model_of(LAYERS[name])
    expected = copy.deepcopy(model)
    executor, optimizer = trainer(model), torch.optim.SGD(expected.parameters(), lr=0.1)
    for batch in batches(4):
        torch.testing.assert_close(executor(*batch)[1], step(expected, optimizer, *batch), rtol=1e-4, atol=1e-5)
    assert_same_state(model, expected)
    executor.destroy()


@pytest.mark.parametrize("name", BY_CHANNEL)
def test_channels_need_a_batch_on_the_host_first(name):
    with pytest.raises(poptorch.Error, match=r"Zero-sized tensors.* call the model once on the host"):
        trainer(model_of(Q.default_fake_quant, BY_CHANNEL[name]))(*batches(1)[0])
    model = model_of(Q.default_fake_quant, BY_CHANNEL[name])
    model(*batches(1)[0])
    expected = copy.deepcopy(model)
    executor, optimizer = trainer(model), torch.optim.SGD(expected.parameters(), lr=0.1)
    for batch in batches(3):
        torch.testing.assert_close(executor(*batch)[1], step(expected, optimizer, *batch), rtol=1e-4, atol=1e-5)
    assert_same_state(model, expected)
    executor.destroy()


def test_switches_work_when_they_are_copied_to_the_device():
    model = model_of(LAYERS["average"])
    expected = copy.deepcopy(model)
    executor, optimizer = trainer(model), torch.optim.SGD(expected.parameters(), lr=0.1)
    first, second, third = batches(3)
    for each in (lambda: executor(*first), lambda: step(expected, optimizer, *first)):
        each()
    for switch in (Q.disable_observer, Q.disable_fake_quant):
        model.apply(switch)
        expected.apply(switch)
        executor.copyWeightsToDevice()
        for batch in (second, third):
            loss = executor(*batch)[1]
            torch.testing.assert_close(loss, step(expected, optimizer, *batch), rtol=1e-4, atol=1e-5)
    assert_same_state(model, expected)
    executor.destroy()


def test_inference_with_frozen_statistics():
    model = model_of(LAYERS["average"])
    model(*batches(1)[0])
    model.apply(Q.disable_observer).eval()
    x = batches(3)[2][0]
    executor = poptorch.inferenceModel(model)
    torch.testing.assert_close(executor(x), model(x).detach())
    executor.destroy()


@pytest.mark.parametrize("make", [Q.HistogramObserver, imitation(Q.HistogramObserver)])
def test_histograms_are_refused(make):
    with pytest.raises(poptorch.Error, match=r"HistogramObserver decides in Python.*MovingAverageMinMaxObserver"):
        trainer(model_of(make))(*batches(1)[0])


@pytest.mark.filterwarnings("ignore:The value")
def test_histograms_that_are_switched_off_are_fine():
    model = model_of(imitation(Q.HistogramObserver, **BYTE))
    model(*batches(1)[0])
    model.apply(Q.disable_observer)
    x = batches(2)[1][0]
    executor = poptorch.inferenceModel(model)
    torch.testing.assert_close(executor(x), model(x).detach())
    executor.destroy()


@pytest.mark.parametrize("name", ["average", "fused"])
def test_each_replica_observes_for_itself(name):
    model = model_of(LAYERS[name])
    options = poptorch.Options().replicationFactor(2)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.0))
    (x, target), (other, _) = batches(2)
    executor(torch.cat([x, other]), torch.cat([target, target]))
    alone = model_of(LAYERS[name])
    alone(x, target)
    torch.testing.assert_close(model.activation.activation_post_process.max_val.detach().clone(),
                               alone.activation.activation_post_process.max_val)  # fmt: skip
    executor.destroy()


class Convolutional(nn.Module):
    """As the guide of torch prepares it."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = Q.QuantStub(), Q.DeQuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.head = nn.Linear(4, 3)

    def forward(self, x, target):
        x = self.relu(self.norm(self.conv(self.quant(x)))).mean((2, 3))
        x = self.dequant(self.head(x))
        return x, F.cross_entropy(x, target)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("fused", [False, True])
def test_a_prepared_model_trains_as_in_eager(fused):
    torch.manual_seed(0)
    model = Convolutional().train()
    model = Q.fuse_modules_qat(model, [["conv", "norm", "relu"]]) if fused else model
    model.qconfig = Q.get_default_qat_qconfig("fbgemm")
    model = Q.prepare_qat(model)
    data = [(torch.randn(4, 1, 6, 6) * (i + 1), torch.randint(3, (4,))) for i in range(4)]
    model(*data[0])
    expected = copy.deepcopy(model)
    executor, optimizer = trainer(model), torch.optim.SGD(expected.parameters(), lr=0.1)
    for batch in data[1:]:
        torch.testing.assert_close(executor(*batch)[1], step(expected, optimizer, *batch), rtol=1e-4, atol=1e-5)
    assert_same_state(model, expected)
    executor.destroy()
