"""Models of which some part holds little or nothing: unused values, inputs that are returned, blocks in any place."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch

WIDTH = 3


class Steps(nn.Module):
    """Layers, with a block or something without use before some of them."""

    def __init__(self, steps, returned, numbered):
        super().__init__()
        self.steps, self.returned, self.numbered = steps, returned, numbered
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in steps)
        self.factor = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, other):
        blocks, seen = 0, []
        y = x
        for step, layer in zip(self.steps, self.layers, strict=True):
            if "block" in step and poptorch.isRunningOnIpu():
                poptorch.Block.start(f"block {blocks}", **({"ipu_id": blocks + 1} if self.numbered else {}))
                blocks += 1
            if "unused" in step:
                layer(y * 2) + other
            if "cheap" in step:
                y = y * self.factor
            if "layer" in step:
                y = torch.tanh(layer(y))
            if "other" in step:
                y = y + other
            if "kept" in step:
                seen.append(y)
        results = {"x": x, "other": other, "seen": seen, "view": x[:, :1], "factor": self.factor}
        return (
            y,
            [results[name] for name in self.returned],
            poptorch.identity_loss((y - other * self.factor).pow(2).mean(), "none"),
        )


STEP = st.sets(st.sampled_from(["block", "unused", "cheap", "layer", "other", "kept"]))
RETURNED = st.lists(st.sampled_from(["x", "other", "seen", "view", "factor"]), max_size=2)
STRATEGIES = {
    "pipelined": lambda stage: poptorch.PipelinedExecution(stage),
    "sharded": lambda stage: poptorch.ShardedExecution(stage),
}


def options_for(strategy, stage):
    options = poptorch.Options().autoRoundNumIPUs(True)
    options.setExecutionStrategy(STRATEGIES[strategy](stage))
    return options


def flat(results):
    return [t for r in results for t in (flat(r) if isinstance(r, (list, tuple)) else [r])]


def check(model, options, training, parts):
    x, other = torch.randn(2 * parts, WIDTH), torch.randn(2 * parts, WIDTH)
    reference = copy.deepcopy(model).double()
    expected = [
        flat(reference(a, b)) for a, b in zip(x.double().chunk(parts), other.double().chunk(parts), strict=True)
    ]
    if training:
        options.Training.gradientAccumulation(parts)
        options.outputMode(poptorch.OutputMode.All)
        optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        (sum(results[-1] for results in expected) / parts).backward()
        optimizer.step()
        executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    else:
        options.deviceIterations(parts)
        executor = poptorch.inferenceModel(model, options)
    found = flat(executor(x, other))
    for own, *theirs in zip(found, *expected, strict=True):
        wanted = torch.stack(theirs) if theirs[0].dim() == 0 else torch.cat(theirs)
        torch.testing.assert_close(own.double(), wanted.detach().reshape(own.shape), rtol=1e-4, atol=1e-5)
    if training:
        for (name, own), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(own.double(), theirs, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    executor.destroy()


@settings(max_examples=40)
@given(
    steps=st.lists(STEP, min_size=1, max_size=4),
    returned=RETURNED,
    numbered=st.booleans(),
    strategy=st.sampled_from(list(STRATEGIES)),
    training=st.booleans(),
    parts=st.sampled_from([1, 8]),
)
def test_whatever_the_parts_hold(steps, returned, numbered, strategy, training, parts):
    blocks = sum("block" in step for step in steps)
    if training and strategy == "pipelined" and blocks > 1:
        parts = 8 if blocks < 4 else 16
    stage = poptorch.AutoStage.SameAsIpu if numbered else poptorch.AutoStage.AutoIncrement
    model = Steps(steps, returned, numbered)
    try:
        check(model, options_for(strategy, stage), training, parts)
    except poptorch.Error as error:
        if not any(reason in str(error) for reason in REFUSED):
            raise


REFUSED = ["must be greater than or equal to the number of pipeline stages", "no parameter of the optimizer"]


class Returned(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with poptorch.Block(ipu_id=1):
            y = self.layer(x)
            return x, y, poptorch.identity_loss(y.pow(2).mean(), "none")


def test_an_input_that_is_returned_by_a_model_on_one_ipu():
    """The device's program is one part, and so is the host's of several micro-batches."""
    model, x = Returned(), torch.randn(8, WIDTH)
    options = poptorch.Options().deviceIterations(4)
    assert torch.equal(poptorch.inferenceModel(model, options)(x)[0], x)
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(executor(x)[0], x[-2:])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_input_that_is_returned_beside_a_block_elsewhere(strategy):
    options = options_for(strategy, poptorch.AutoStage.SameAsIpu)
    options.Training.gradientAccumulation(4)
    options.outputMode(poptorch.OutputMode.All)
    model = Returned()
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(8, WIDTH)
    assert torch.equal(executor(x)[0], x)
    assert [part.ipu for part in executor.plan.parts] == [1]
