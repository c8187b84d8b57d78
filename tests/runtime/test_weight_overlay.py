"""The device's weights in the host's memory while the host's are not looked at: no look sees the difference."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import tempfile

import numpy
import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.runtime import weight_overlay

WIDTH = 256  # one weight of 256 KiB
SUMS = {"terms": WIDTH, "steps": 10}


class Regression(nn.Module):
    """A network and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(x), target)


class Pair:
    """The same model twice: wrapped, and trained by eager torch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Regression()
        self.reference = copy.deepcopy(self.model)
        self.data = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
        self.executor = poptorch.trainingModel(
            self.model,
            poptorch.Options().showCompilationProgressBar(False),
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9),
        )
        self.optimizer = torch.optim.SGD(self.reference.parameters(), lr=0.1, momentum=0.9)

    def train(self, calls: int = 5) -> None:
        for _ in range(calls):
            self.optimizer.zero_grad()
            loss = self.reference(*self.data)
            loss.backward()
            self.optimizer.step()
            assert_close_sums(self.executor(*self.data), loss, **SUMS, scale=1.0)  # the targets are of size 1

    @property
    def overlaid(self) -> bool:
        with torch._C.DisableTorchFunctionSubclass():  # asking for an address is not a look
            return weight_overlay.is_overlaid(self.weight)

    @property
    def weight(self) -> nn.Parameter:
        return self.model.net[0].weight

    @property
    def expected(self) -> torch.Tensor:
        return self.reference.net[0].weight.detach()


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(weight_overlay, "WORTHWHILE", 1)
    return Pair()


def test_processes_that_fork_meanwhile_restore_their_own_copies() -> None:
    tries, size = 10, 1 << 18
    for attempt in range(tries):
        expected = [torch.full((size,), float(attempt + i)) for i in range(4)]
        host, device = [t.clone() for t in expected], [torch.zeros(size) for _ in expected]
        overlay = weight_overlay.WeightOverlay(possible=True)
        overlay.begin(zip(host, device, strict=True))
        assert all(weight_overlay.is_overlaid(t) for t in host)
        child = os.fork()
        overlay.end(keep=False)
        # NumPy compares on this thread: a forked process has none of those with which torch would compare.
        right = all(numpy.array_equal(one.numpy(), other.numpy()) for one, other in zip(host, expected, strict=True))
        if not child:
            os._exit(0 if right else 1)
        assert right
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print(f"{tries} forks")


def matrices() -> int:
    """How many pieces of memory of a weight's size there are."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor) and "Fake" not in type(t).__name__]
    with torch._C.DisableTorchFunctionSubclass():
        return len({t.data_ptr() for t in tensors if t.shape == (WIDTH, WIDTH)})


def test_there_is_one_copy_while_training(pair):
    others = matrices()
    pair.train(1)
    pair.optimizer.zero_grad()
    two_copies = matrices()
    pair.train(5)
    pair.optimizer.zero_grad()
    assert pair.overlaid
    assert matrices() == two_copies - 2  # two weights, one copy of each less
    assert others > 0


def test_looking_brings_the_trained_weights_and_a_copy_of_their_own(pair):
    pair.train()
    assert pair.overlaid
    assert_close_sums(pair.weight, pair.expected, **SUMS)
    assert not pair.overlaid
    with torch.no_grad():
        pair.weight.zero_()
    pair.train(1)  # the device did not see the zeros
    assert_close_sums(pair.weight, pair.expected, **SUMS)


def test_going_back_to_the_host_weights(pair):
    before = pair.weight.detach().clone()
    pair.train()
    assert pair.overlaid
    pair.executor.copyWeightsToDevice()
    assert not pair.overlaid
    assert torch.equal(pair.weight, before)
    pair.reference.load_state_dict(pair.model.state_dict())
    assert_close_sums(pair.executor(*pair.data), pair.reference(*pair.data), **SUMS)


def test_host_values_that_were_never_uploaded_come_back(pair):
    pair.train(1)
    with torch.no_grad():
        pair.weight.fill_(0.5)
    pair.train()
    assert pair.overlaid
    pair.executor.copyWeightsToDevice()
    assert torch.equal(pair.weight, torch.full_like(pair.expected, 0.5))


@pytest.mark.parametrize(
    "look",
    [
        lambda p: p.model.state_dict()["net.0.weight"],
        lambda p: dict(p.model.named_parameters())["net.0.weight"],
        lambda p: pickle.loads(pickle.dumps(p.model)).net[0].weight,
        lambda p: copy.deepcopy(p.model.net[0].weight),
        lambda p: p.weight.data,
        lambda p: torch.from_numpy(p.weight.detach().numpy()),
    ],
    ids=["state_dict", "named_parameters", "pickle", "deepcopy", "data", "numpy"],
)
def test_every_way_to_look(pair, look):
    pair.train()
    assert pair.overlaid
    assert_close_sums(look(pair), pair.expected, **SUMS)
    assert not pair.overlaid


@pytest.mark.parametrize("leave", ["destroy", "detachFromDevice", "del"])
def test_leaving(pair, leave):
    pair.train()
    assert pair.overlaid
    if leave == "del":
        del pair.executor
        gc.collect()
    else:
        getattr(pair.executor, leave)()
    assert_close_sums(pair.weight, pair.expected, **SUMS)


def test_an_alias_that_cannot_be_watched_keeps_the_old_values(pair):
    alias = pair.weight.data
    before = alias.clone()
    pair.train(10)
    assert torch.equal(alias, before)
    assert_close_sums(pair.weight, pair.expected, **SUMS)
    assert torch.equal(alias, pair.weight)


def test_a_saved_graph_keeps_the_old_values(pair):
    loss = (pair.weight * pair.weight).sum()
    before = pair.weight.detach().clone()
    pair.train(10)
    with torch._C.DisableTorchFunctionSubclass():
        gradient = torch.autograd.grad(loss, pair.weight)[0]
    assert torch.equal(gradient, 2 * before)


def test_inference_follows_a_trainer_with_an_overlay(pair):
    inference = poptorch.inferenceModel(pair.model, poptorch.Options().showCompilationProgressBar(False))
    pair.train()
    assert pair.overlaid
    assert_close_sums(inference(*pair.data), pair.reference(*pair.data), **SUMS)
    pair.train()
    assert_close_sums(inference(*pair.data), pair.reference(*pair.data), **SUMS)


def test_a_second_trainer_of_the_same_weights_does_not_disturb(pair):
    class Other(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return nn.functional.mse_loss(self.net(x), x)

    pair.train()
    assert pair.overlaid
    other = Other(pair.model.net)
    second = poptorch.trainingModel(
        other,
        poptorch.Options().showCompilationProgressBar(False),
        torch.optim.SGD(other.parameters(), lr=0.0),
    )
    second(pair.data[0])
    second.copyWeightsToHost()
    pair.train(2)  # losses are compared with eager


def test_looking_often_makes_overlays_rare(pair):
    made = 0
    for _ in range(20):
        pair.train(4)
        made += pair.overlaid
        pair.model.state_dict()
    assert made == 1


def test_no_room_for_the_file(pair, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    pair.train()
    assert not pair.overlaid
    assert_close_sums(pair.weight, pair.expected, **SUMS)


def test_switched_off(monkeypatch):
    monkeypatch.setattr(weight_overlay, "WORTHWHILE", 1)
    monkeypatch.setenv("POPTORCH_SPILL_WEIGHTS", "0")
    pair = Pair()
    pair.train()
    assert not pair.overlaid


def test_small_models_do_not_bother(monkeypatch):
    monkeypatch.setattr(weight_overlay, "WORTHWHILE", 1 << 20)
    pair = Pair()
    pair.train()
    assert not pair.overlaid
