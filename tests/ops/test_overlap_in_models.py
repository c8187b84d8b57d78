"""Overlap marks and memory hints in whole models: checked when compiling, kept for the IPU Model, free at run time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.program.opinfo import info_of

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
    assert_close_sums(executor(x), model.fc(x).detach(), terms=4)
    targets = [str(n.target) for n in executor.program.operations()]
    assert not any("poptorch" in t for t in targets), targets
    [product] = [n for n in executor.program.operations() if "addmm" in str(n.target)]
    assert info_of(product).available_memory == 0.3


def test_marks_stay_on_inputs_and_results_of_the_stages_of_a_model():
    class TwoIpus(Overlapped):
        def forward(self, x):
            poptorch.Block.start("first", ipu_id=0)
            x = torch.tanh(poptorch.set_overlap_for_input(x, MODE))
            poptorch.Block.start("second", ipu_id=1)
            y = poptorch.set_available_memory(self.fc(x), 0.3)
            return poptorch.set_overlap_for_output(y, MODE)

    executor = poptorch.inferenceModel(TwoIpus(), options())
    executor.compile(torch.randn(2, 4))
    stages = executor.plan.stages
    assert [[p.overlap for p in stage.program.ports if p.name == "x"] for stage in stages] == [[MODE], []]
    assert [[o.overlap for o in stage.program.outputs] for stage in stages] == [[None], [MODE]]
    [product] = [n for n in stages[1].program.operations() if "addmm" in str(n.target)]
    assert info_of(product).available_memory == 0.3
    assert str(executor.program).count(f"(overlap: {MODE.name})") == 2


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


class Trained(nn.Module):
    """Marks an output, the loss, or both."""

    def __init__(self, marked: str, mode: poptorch.OverlapMode = MODE) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.marked, self.mode = marked, mode

    def forward(self, x, target):
        y = self.fc(x)
        loss = nn.functional.mse_loss(y, target)
        if "output" in self.marked:
            y = poptorch.set_overlap_for_output(y, self.mode)
        if "loss" in self.marked:
            loss = poptorch.set_overlap_for_output(loss, self.mode)
        return y, loss


@pytest.mark.parametrize("marked", ["output", "loss", "output and loss"])
def test_outputs_of_training_models_can_be_marked(marked):
    torch.manual_seed(0)
    model = Trained(marked)
    opts = options().outputMode(poptorch.OutputMode.All)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    x, target = torch.randn(2, 4), torch.randn(2, 4)
    expected = nn.functional.mse_loss(model.fc(x), target).detach()
    assert_close_sums(executor(x, target)[1], expected, terms=8)
    assert executor.program.loss_result == 1


def test_training_says_what_does_not_allow_overlap():
    x = torch.randn(2, 4)
    with pytest.raises(poptorch.Error, match="Unsupported output mode for overlapped IO"):
        poptorch.trainingModel(Trained("output"), options())(x, x)
    opts = options().setExecutionStrategy(poptorch.PipelinedExecution())
    with pytest.raises(poptorch.Error, match=r"Overlapped IO is not supported with poptorch\.PipelinedExecution"):
        poptorch.trainingModel(Trained("loss"), opts)(x, x)


def test_marks_run_nowhere_and_need_no_block():
    class Scoped(nn.Module):
        def forward(self, x):
            with poptorch.Block("only", ipu_id=1):
                x = x * 2
            return poptorch.set_overlap_for_output(x, MODE)

    assert poptorch.inferenceModel(Scoped(), options())(torch.ones(2)).tolist() == [2.0, 2.0]
