"""The demo's classifier reaches its accuracy with every optimizer, and in float16 with loss scaling."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import torch
from torch import nn

import poptorch

_DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo_for_convergence", _DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits(demo):
    generator = torch.Generator().manual_seed(3)
    return demo.draw_digits(3072, generator).tensors, demo.draw_digits(512, generator).tensors


OPTIMIZERS = {
    "SGD": lambda p: poptorch.optim.SGD(p, lr=0.03, momentum=0.9, use_combined_accum=False),
    "SGD combined": lambda p: poptorch.optim.SGD(p, lr=0.03, momentum=0.9, use_combined_accum=True),
    "SGD plain": lambda p: poptorch.optim.SGD(p, lr=0.3),
    "Adam": lambda p: poptorch.optim.Adam(p, lr=0.005),
    "AdamW": lambda p: poptorch.optim.AdamW(p, lr=0.005),
    "RMSprop": lambda p: poptorch.optim.RMSprop(p, lr=0.002),
    "RMSprop centered": lambda p: poptorch.optim.RMSprop(p, lr=0.002, centered=True),
    "LAMB": lambda p: poptorch.optim.LAMB(p, lr=0.02),
    "torch SGD": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9),
    "torch AdamW": lambda p: torch.optim.AdamW(p, lr=0.005),
}


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    scores = poptorch.inferenceModel(model.eval())(images)
    return (scores.argmax(1) == labels).float().mean().item()


def train(model, optimizer, images, labels, epochs: int = 5) -> None:
    executor = poptorch.trainingModel(model, poptorch.Options().deviceIterations(24), optimizer)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        if epoch == epochs - 1:
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
            executor.setOptimizer(optimizer)
        for chosen in torch.randperm(len(images), generator=generator).split(32 * 24):
            executor(images[chosen], labels[chosen])
    executor.destroy()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_reaches_the_accuracy(demo, digits, name):
    torch.manual_seed(0)
    model = demo.Classifier().train()
    (images, labels), test = digits
    train(model, OPTIMIZERS[name](model.parameters()), images, labels)
    assert accuracy(model, *test) > 0.95


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_float16_with_loss_scaling_reaches_it_too(demo, digits, name):
    torch.manual_seed(0)
    model = demo.Classifier().train().half()
    (images, labels), (test_images, test_labels) = digits
    if name == "SGD":
        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=0.03, momentum=0.9, loss_scaling=128.0, use_combined_accum=False
        )
    else:
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.005, loss_scaling=128.0, eps=1e-5)
    train(model, optimizer, images.half(), labels)
    assert accuracy(model, test_images.half(), test_labels) > 0.95
