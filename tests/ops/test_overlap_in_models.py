"""Overlap marks and memory hints in whole models: checked when compiling, kept for the IPU Model, free at run time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from poptorch.compiler.opinfo import info_of

MODE = poptorch.OverlapMode.OverlapAccumulationLoop


class Overlapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = poptorch.set_overlap_for_input(x, MODE)
        y = poptorch.set_available_memory(self.fc(x), 0.3)
        return poptorch.set_overlap_for_output(y, MODE)


def options() -> poptorch.Options:
    opts = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
    opts.TensorLocations.numIOTiles(32)
    return opts


def test_marks_are_accepted_and_leave_no_operation():
    model = Overlapped()
    executor = poptorch.inferenceModel(model, options())
    x = torch.randn(2, 4)
    torch.testing.assert_close(executor(x), model.fc(x).detach())
    targets = [str(n.target) for n in executor.program.operations()]
    assert not any("poptorch" in t for t in targets), targets
    [product] = [n for n in executor.program.operations() if "addmm" in str(n.target)]
    assert info_of(product).attributes["__available_memory"] == {"proportion": "0.3"}


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (lambda o: o.setExecutionStrategy(poptorch.PipelinedExecution()), "Overlapped IO is not supported"),
        (lambda o: o.TensorLocations.deleteIfExists("numIOTiles"), "No IO tiles allocated"),
        (lambda o: o.outputMode(poptorch.OutputMode.Final), "Unsupported output mode for overlapped IO"),
    ],
)
def test_settings_that_do_not_allow_overlap(change, phrase):
    opts = options()
    change(opts)
    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.inferenceModel(Overlapped(), opts)(torch.randn(2, 4))


def test_marks_must_be_on_inputs_and_outputs():
    class Inside(nn.Module):
        def forward(self, x):
            return poptorch.set_overlap_for_input(x * 2, MODE) + 1

    with pytest.raises(poptorch.Error, match="not a tensor input to the model"):
        poptorch.inferenceModel(Inside(), options())(torch.randn(2, 4))
