"""Which of host and device has the newer weights, and what is copied then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executor import instrumentation
from poptorch.executor.host_weights import HostWeights, Newest
from poptorch.executor.turns import Turns


class Memory:
    """Device memory that is a dictionary."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def upload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def upload_some(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors |= {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def written(self) -> frozenset[str]:
        return frozenset({"weight"})

    def upload_buffers(self, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        for name in names:
            self.tensors[name].copy_(tensors[name])

    def download(self) -> dict[str, torch.Tensor]:
        return self.tensors

    fetch = download

    def parameters(self) -> Mapping[str, torch.Tensor]:
        return self.tensors


class Holder:
    """In the place of an executor: weights, memory, and the method that fetches."""

    def __init__(self, model: nn.Module, options: poptorch.Options | None = None, *, training: bool = False) -> None:
        self.memory = Memory()
        plain = instrumentation.plain_shallow_copy(model)
        self.weights = HostWeights(plain, model, options or poptorch.Options(), self, Turns(), training=training)
        self.weights.open(overlay=training)
        if training:
            instrumentation.instrument(model, self.weights, self)
        self.copies = 0

    def copyWeightsToHost(self) -> None:
        self.copies += 1
        self.weights.download(self.memory)

    def destroy(self) -> None:
        """Part of what an instrumented model asks for."""

    def train(self) -> None:
        self.memory.tensors["weight"].add_(1.0)
        self.weights.trains()


@pytest.fixture
def model():
    return nn.Linear(2, 2)


@pytest.fixture
def trainer(model):
    holder = Holder(model, training=True)
    holder.weights.upload(holder.memory)
    return holder


def test_training_makes_the_device_newer_and_a_copy_ends_that(trainer):
    weights = trainer.weights
    assert weights.newest is Newest.HOST
    assert not weights.download_if_needed()
    trainer.train()
    assert weights.newest is Newest.DEVICE
    assert weights.download_if_needed()
    assert weights.newest is Newest.HOST
    assert trainer.copies == 1


def test_an_upload_gives_up_what_was_not_fetched(trainer, model):
    before = model.weight.detach().clone()
    trainer.train()
    trainer.weights.upload(trainer.memory)
    assert trainer.weights.newest is Newest.HOST
    assert torch.equal(trainer.memory.tensors["weight"], before)
    assert trainer.copies == 0


def test_a_look_fetches_unless_it_is_our_own(trainer, model):
    before = model.weight.detach().clone()
    trainer.train()
    with trainer.weights.unwatched():
        with trainer.weights.unwatched():
            pass
        assert torch.equal(model.weight, before)
    assert trainer.copies == 0
    assert torch.equal(model.weight, before + 1)
    assert trainer.copies == 1


def test_what_a_trainer_learned_is_news_once(trainer, model):
    follower = Holder(model)
    follower.weights.upload(follower.memory)
    assert not follower.weights.fetch_newer()
    trainer.train()
    assert follower.weights.fetch_newer()
    assert trainer.copies == 1
    follower.weights.follow(follower.memory)
    assert torch.equal(follower.memory.tensors["weight"], trainer.memory.tensors["weight"])
    assert not follower.weights.fetch_newer()
    assert not trainer.weights.fetch_newer()


def test_another_trainer_of_the_same_model_is_news(trainer, model):
    follower = Holder(model)
    follower.weights.upload(follower.memory)
    instrumentation.restore(model)
    assert not follower.weights.fetch_newer()
    second = Holder(model, training=True)
    second.weights.upload(second.memory)
    assert follower.weights.fetch_newer()


def test_loading_keeps_what_the_dictionary_does_not_mention(trainer, model):
    expected = model.weight.detach() + 1
    trainer.train()
    trainer.weights.load_state_dict(model, {"bias": torch.zeros(2)}, strict=False)
    assert torch.equal(model.weight, expected)
    assert not model.bias.any()


def test_values_of_the_device_for_a_while(trainer, model):
    before = model.bias.detach().clone()
    trainer.memory.tensors["bias"].fill_(7.0)
    with trainer.weights.with_values_of(trainer.memory, {"bias"}):
        assert (model.bias == 7.0).all()
    assert torch.equal(model.bias, before)


def test_groups_are_fixed_while_there_is_a_program(model):
    holder = Holder(model, poptorch.Options().replicationFactor(2))
    one_each = poptorch.CommGroupType.NoGrouping, 1, poptorch.VariableRetrievalMode.OnePerGroup
    with pytest.raises(poptorch.Error, match="after compilation"):
        holder.weights.group_replicas(model.weight, *one_each)
    holder.weights.close()
    holder.weights.group_replicas(model.weight, *one_each)
    assert list(holder.weights.groups) == ["weight"]


def test_the_weights_of_a_collected_executor_stay_as_they_are(model):
    holder = Holder(model, training=True)
    weights = holder.weights
    weights.upload(holder.memory)
    weights.trains()
    del holder
    assert not weights.download_if_needed()
