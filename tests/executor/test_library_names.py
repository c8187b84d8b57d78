"""What libraries ask of an executor: whether it is compiled, which model it runs, what the program looks like."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import poptorch

WRAPPERS = [poptorch.inferenceModel, poptorch.trainingModel]


class Modes(nn.Module):
    """Tells the mode of the root and of a child as values of the program."""

    def __init__(self):
        super().__init__()
        self.child = nn.Dropout(0.0)
        self.factor = 2

    def forward(self, x):
        return x * self.factor, x + int(self.training), x + int(self.child.training)


class Pipeline(nn.Module):
    """Two stages with a value between operations that recomputation may keep."""

    def __init__(self, keep):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.keep = keep

    def forward(self, x, target):
        with poptorch.Block("first", ipu_id=0):
            y = torch.sin(torch.relu(self.first(x)))
            if self.keep:
                y = poptorch.recomputationCheckpoint(y)
            with poptorch.NameScope("wave"):
                y = torch.cos(y)
        with poptorch.Block("second", ipu_id=1):
            y = self.second(y)
            return y, nn.functional.mse_loss(y, target)


class TestModelOfInference:
    @pytest.mark.parametrize("change", [lambda e: e.eval(), lambda e: e.model.eval(), lambda e: e.model.train(False)])
    def test_modes_set_after_wrapping_decide(self, change):
        executor = poptorch.inferenceModel(Modes())
        change(executor)
        _, root, child = executor(torch.zeros(1))
        assert (root.item(), child.item()) == (0, 0)

    def test_train_after_wrapping(self):
        executor = poptorch.inferenceModel(Modes().eval())
        executor.train()
        assert [t.item() for t in executor(torch.zeros(1))[1:]] == [1, 1]

    def test_attributes_of_the_executors_model_count_and_those_of_the_users_do_not(self):
        model = Modes()
        executor = poptorch.inferenceModel(model)
        executor.model.factor = 5
        model.factor = 7
        assert executor(torch.ones(1))[0].item() == 5
        assert model.factor == 7

    def test_also_of_a_model_that_is_being_trained(self, linear, batch):
        training = poptorch.trainingModel(linear)
        training(*batch)
        executor = poptorch.inferenceModel(training)
        executor.model.note = 1
        executor.eval()
        assert linear.training
        assert executor(batch[0]).shape == (4, 2)
        assert not executor.model.training
        assert isinstance(executor.model, type(linear))


class TestExecutable:
    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_says_whether_there_is_one(self, wrap, linear, batch):
        executor = wrap(linear)
        assert not executor._executable
        executor(*batch)
        assert executor._executable
        executor.destroy()
        assert not executor._executable


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_missing_attributes_name_the_executor_and_the_model(wrap, linear):
    executor = wrap(linear)
    name = type(executor.model).__name__
    with pytest.raises(AttributeError, match=rf"'PoplarExecutor' object has no attribute 'nonsense'.*{name}"):
        _ = executor.nonsense
    assert getattr(executor, "nonsense", None) is None


class TestProgramText:
    @staticmethod
    def operations(keep):
        options = poptorch.Options()
        options.Training.gradientAccumulation(4)
        executor = poptorch.trainingModel(Pipeline(keep), options)
        with pytest.raises(poptorch.Error, match="has not been compiled"):
            executor._debugGetPopartIR()
        executor.compile(torch.ones(8, 2), torch.ones(8, 2))
        return json.loads(executor._debugGetPopartIR())["maingraph"]

    def test_checkpoints(self):
        without, kept = self.operations(False), self.operations(True)
        assert not [o for o in without if o["attributes"].get("recompute") == "Checkpoint"]
        assert len([o for o in kept if o["attributes"].get("recompute") == "Checkpoint"]) == 1
        assert [o["name"] for o in without if o["type"] == "Stash"] == ["Stash/x"]
        assert len([o for o in kept if o["type"] == "Stash"]) == 2

    def test_names_and_places(self):
        named = [o for o in self.operations(False) if o["name"].startswith("wave/")]
        assert {o["attributes"]["ipu"] for o in named} == {0}
        cosine = next(o for o in named if o["type"] == "Cos")
        assert [v["type"] for v in (*cosine["inputs"], *cosine["outputs"])] == ["float32[2,2]"] * 2
        assert cosine["attributes"]["source"].rpartition(":")[0].endswith("test_library_names.py")

    def test_checkpoints_of_a_model_in_one_part(self, linear, batch):
        class Kept(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 2)

            def forward(self, x, target):
                return nn.functional.mse_loss(poptorch.recomputationCheckpoint(self.fc(x)).sin(), target)

        executor = poptorch.trainingModel(Kept())
        executor(*batch)
        assert '"Checkpoint"' in executor._debugGetPopartIR()
