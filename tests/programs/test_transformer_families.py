"""Models of ``transformers`` as their users write them: what they return and how they learn equals plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformer_families import FAMILIES, Family

import poptorch
from closeness import assert_close_sums

TERMS = 256  # the largest sums: pixels of a patch, rows of a batch
SCALE = 1.0  # norms make values of this size
LAYERS = 12  # sums that follow one another, in two small blocks and a head

NAMES = list(FAMILIES)
CHOSEN = ["gpt2", "llama", "bert", "t5", "vit", "mamba"]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")


class Wrapper(nn.Module):
    """As users wrap a model to choose what it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> Any:
        output = self.model(**inputs)
        return (output.loss, output.logits) if "labels" in inputs else output.logits


def without_labels(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in inputs.items() if name != "labels"}


def assert_same(given: Any, expected: Any, steps: int = 1) -> None:
    assert_close_sums(given, expected, terms=TERMS, steps=LAYERS * steps, scale=SCALE)


@pytest.mark.parametrize("name", NAMES)
def test_inference(name: str) -> None:
    family = FAMILIES[name]
    model, reference = family.build().eval(), family.build().eval()
    executor = poptorch.inferenceModel(model)
    for seed in range(2):
        inputs = without_labels(family.example(seed))
        output, expected = executor(**inputs), reference(**inputs)
        assert type(output) is type(expected)
        assert list(output) == list(expected)
        assert_same(output.logits, expected.logits)
        for cache in ("past_key_values", "cache_params"):
            if cache in expected:
                assert type(output[cache]) is type(expected[cache])
                assert_same(tensors_in(output[cache]), tensors_in(expected[cache]))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in the attributes of an object, at any depth; integers as wide as on a device."""
    if isinstance(value, torch.Tensor):
        return [value.int() if value.dtype is torch.int64 else value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    attributes = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return [tensor for item in attributes.values() for tensor in tensors_in(item)]


def train(
    family: Family, wrap: bool = True, options: poptorch.Options | None = None, repeat: int = 1
) -> tuple[list[Any], nn.Module]:
    """Losses of two calls and the trained model; each call has ``repeat`` times the same rows."""
    model = family.build().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(Wrapper(model) if wrap else model, options, optimizer)
    losses = []
    for seed in range(2):
        inputs = {name: torch.cat([value] * repeat) for name, value in family.example(seed).items()}
        output = executor(**inputs)
        losses.append(output[0] if wrap else output.loss)
    executor.destroy()
    return losses, model


def train_eagerly(family: Family) -> tuple[list[torch.Tensor], nn.Module]:
    model = family.build().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for seed in range(2):
        optimizer.zero_grad()
        loss = model(**family.example(seed)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, model


def assert_trained_alike(given: tuple[list[Any], nn.Module], expected: tuple[list[torch.Tensor], nn.Module]) -> None:
    assert_same([loss.mean() for loss in given[0]], expected[0], steps=2)
    assert_same(dict(given[1].state_dict()), dict(expected[1].state_dict()), steps=2)


@pytest.mark.parametrize("name", NAMES)
def test_training(name: str) -> None:
    assert_trained_alike(train(FAMILIES[name]), train_eagerly(FAMILIES[name]))


@pytest.mark.parametrize("name", CHOSEN)
def test_training_without_a_wrapper(name: str) -> None:
    assert_trained_alike(train(FAMILIES[name], wrap=False), train_eagerly(FAMILIES[name]))


@pytest.mark.parametrize("name", CHOSEN)
def test_inference_in_a_wrapper(name: str) -> None:
    family = FAMILIES[name]
    model = family.build().eval()
    inputs = without_labels(family.example())
    expected = copy.deepcopy(model)(**inputs).logits
    assert_same(poptorch.inferenceModel(Wrapper(model))(**inputs), expected.detach())


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The longest list of layers: a transformer's blocks."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "mamba", "opt"])
def test_a_pipeline_with_replicas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]
    plain = family.build

    def annotated(self: Family) -> nn.Module:
        model = plain()
        layers = layers_of(model)
        layers[1] = poptorch.BeginBlock(layers[1], ipu_id=1)
        return model

    expected = train_eagerly(family)
    monkeypatch.setattr(Family, "build", annotated)
    options = poptorch.Options().replicationFactor(2).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(4)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    given = train(family, options=options, repeat=8)
    state = dict(zip(expected[1].state_dict(), given[1].state_dict().values(), strict=True))
    assert_same([loss.mean() for loss in given[0]], expected[0], steps=2)
    assert_same(state, dict(expected[1].state_dict()), steps=2)


@pytest.mark.parametrize("name", CHOSEN)
def test_float16(name: str) -> None:
    family = FAMILIES[name]
    model, reference = family.build().eval().half(), family.build().eval()
    inputs = without_labels(family.example())
    narrow = {k: v.half() if v.is_floating_point() else v for k, v in inputs.items()}
    expected_type = copy.deepcopy(model)(**narrow).logits.dtype
    output = poptorch.inferenceModel(model)(**narrow).logits
    assert output.dtype is expected_type
    assert_close_sums(
        output.float(), reference(**inputs).logits.detach(), terms=1, steps=4 * LAYERS, scale=SCALE, dtype=torch.float16
    )
