"""Executors among other things that are pickled, and what libraries find behind their private names."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import poptorch


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, x, target=None):
        y = self.norm(self.layer(x))
        return y if target is None else (y, nn.functional.mse_loss(y, target))


class Around(nn.Module):
    """A library's module around the user's."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x, target):
        return self.model(x, target)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x + self.calls


def batches(count: int = 1):
    generator = torch.Generator().manual_seed(1)
    shapes = (8, 3), (8, 2)
    found = [tuple(torch.randn(shape, generator=generator) for shape in shapes) for _ in range(count)]
    return found if count > 1 else found[0]


def by_torch(executor, path):
    torch.save({"executor": executor, "epoch": 3}, path / "checkpoint.pt")
    content = torch.load(path / "checkpoint.pt", weights_only=False)
    assert content["epoch"] == 3
    return content["executor"]


def by_pickle(executor, path):
    return pickle.loads(pickle.dumps(executor))


@pytest.mark.parametrize("store", [by_torch, by_pickle])
@pytest.mark.parametrize("make", [poptorch.optim.AdamW, torch.optim.SGD])
def test_training_goes_on_where_it_stopped(store, make, tmp_path):
    data = batches(4)
    whole, model = WithLoss(), WithLoss()
    options = poptorch.Options().deviceIterations(2)
    reference = poptorch.trainingModel(whole, options.clone(), make(whole.parameters(), lr=0.1))
    for batch in data:
        reference(*batch)

    executor = poptorch.trainingModel(model, options.clone(), make(model.parameters(), lr=0.1))
    for batch in data[:2]:
        executor(*batch)
    stored = store(executor, tmp_path)
    assert executor.isCompiled()
    executor(*data[2])  # the first one goes on as well

    assert type(stored) is poptorch.PoplarExecutor
    assert not stored.isCompiled()
    assert stored.options.device_iterations == 2
    assert stored.model is not executor.model
    for batch in data[2:]:
        stored(*batch)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(stored.model.state_dict()[name], value, msg=name)
    for each in (reference, executor, stored):
        each.destroy()


def test_before_compiling_and_after_destroying():
    model = WithLoss()
    executor = poptorch.trainingModel(model)
    first = pickle.loads(pickle.dumps(executor))
    first(*batches())
    executor(*batches())
    torch.testing.assert_close(first.model.state_dict(), model.state_dict())
    executor.destroy()
    second = pickle.loads(pickle.dumps(executor))
    assert torch.equal(second.model.layer.weight, model.layer.weight)
    for each in (first, second):
        each.destroy()


def test_inference_keeps_what_is_on_the_device():
    executor = poptorch.inferenceModel(Counter())
    for _ in range(3):
        executor(torch.zeros(1))
    stored = pickle.loads(pickle.dumps(executor))
    assert stored(torch.zeros(1)).item() == executor(torch.zeros(1)).item() == 4
    for each in (executor, stored):
        each.destroy()


def test_groups_of_replicas_are_kept():
    model = WithLoss()
    model.layer.bias = nn.Parameter(torch.zeros(2, 2))
    executor = poptorch.trainingModel(model, poptorch.Options().replicationFactor(2))
    executor.layer.bias.replicaGrouping(
        poptorch.CommGroupType.Consecutive, 1, poptorch.VariableRetrievalMode.OnePerGroup
    )
    stored = pickle.loads(pickle.dumps(executor))
    assert stored._weights.groups == executor._weights.groups != {}


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_copies_are_refused(how):
    with pytest.raises(poptorch.Error, match=r"An executor cannot be copied.*Copy its \.model.*torch\.save"):
        how(poptorch.inferenceModel(nn.ReLU()))


class Library(poptorch.PoplarExecutor):
    pass


def test_what_a_library_adds_is_not_dropped_in_silence():
    with pytest.raises(poptorch.Error, match="An executor cannot be copied"):
        pickle.dumps(Library(nn.ReLU(), None, training=False))


# -- private names -----------------------------------------------------------------------------------------------------


def test_the_model_behind_the_private_one():
    model = WithLoss()
    executor = poptorch.trainingModel(model)
    assert executor._model.model is model
    assert executor._model.layer is model.layer
    assert executor.model is model
    assert list(executor._model.state_dict()) == [f"model.{name}" for name in model.state_dict()]
    executor(*batches())
    assert torch.equal(executor._model.model.layer.weight, executor.model.layer.weight)
    executor.destroy()


def test_a_model_with_a_model_inside():
    model = Around(WithLoss())
    executor = poptorch.trainingModel(model)
    assert executor._model.model is model
    assert executor.model.model is model.model


def test_with_a_module_of_a_library_around_it():
    model = WithLoss()
    around = Around(model)
    executor = poptorch.PoplarExecutor(around, None, training=True, user_model=model)
    assert executor._model.model is model
    executor(*batches())
    stored = pickle.loads(pickle.dumps(executor))
    assert torch.equal(stored.model.layer.weight, model.layer.weight)
    assert type(stored._model.model).__name__ == "PoptorchWithLoss"
    for each in (executor, stored):
        each.destroy()


def test_the_base_class_of_strategies():
    base = poptorch.options._IExecutionStrategy
    for strategy in (
        poptorch.PipelinedExecution, poptorch.ShardedExecution, poptorch.SerialPhasedExecution,
        poptorch.ParallelPhasedExecution,
    ):  # fmt: skip
        assert issubclass(strategy, base)


# -- schedulers --------------------------------------------------------------------------------------------------------

S = torch.optim.lr_scheduler
SCHEDULERS = {
    "lambda": lambda o: S.LambdaLR(o, lambda epoch: 0.5**epoch),
    "step": lambda o: S.StepLR(o, 1, gamma=0.5),
    "one cycle": lambda o: S.OneCycleLR(o, 0.1, total_steps=8, cycle_momentum=False),
    "cycle": lambda o: S.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "sequence": lambda o: S.SequentialLR(o, [S.ConstantLR(o), S.ExponentialLR(o, 0.9)], [1]),
    "average": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:The learning rate of the optimizer")  # some change it when they are made
@pytest.mark.filterwarnings("error")
def test_schedulers_after_wrapping_give_no_warning(name, capfd):
    model = WithLoss()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    executor(*batches())
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(3):
        executor(*batches())
        optimizer.step = optimizer.step  # what some programs do to be counted
        optimizer._opt_called = True
        scheduler.step()
        executor.setOptimizer(optimizer)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    executor(*batches())
    executor.destroy()
    assert "Ignoring unexpected" not in capfd.readouterr().err
