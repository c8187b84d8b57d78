"""Several micro-batches at once: the same results as one after the other, by every strategy."""

from __future__ import annotations

import threading

import pytest
import torch
from parallel_models import STRATEGIES, Language, Perceptron, infer, make_options, train, with_replicas
from torch import nn

import poptorch
from closeness import assert_close_sums
from host_code import runner_of
from poptorch.executable.groups import GroupedProgram
from poptorch.runtime import gantt

PLAIN = {name: STRATEGIES[name] for name in ("pipelined", "pipelined, two stages", "sharded")}

# Gradients are sums over 8 micro-batches of 2 rows (of 4 tokens) in 2 replicas, four updates long.
LONG = {"terms": 128, "steps": 4}


def group_size_of(executor):
    return executor.executable.code.loop.group_size


def both_ways(monkeypatch, run):
    """What ``run`` returns for one micro-batch at a time, and for groups."""
    found = []
    for size in ("1", "8"):
        monkeypatch.setenv("POPTORCH_GROUP", size)
        found.append(run())
    return found


@with_replicas([None, *PLAIN])
def test_training(monkeypatch, kind, strategy, replicas):
    ipus, make = PLAIN.get(strategy, (None, lambda: None))

    def run():
        options = make_options(make(), iterations=2, replicas=replicas)
        return train(kind, ipus, options, optimizer=poptorch.optim.SGD)

    (alone, state, _), (together, grouped_state, executor) = both_ways(monkeypatch, run)
    writes = any(True for _ in executor.program.mutated())
    recurs = any("rnn" in str(node.target) for node in executor.program.operations())
    assert (group_size_of(executor) > 1) is not (writes or recurs)
    assert_close_sums(together, alone, **LONG)
    assert_close_sums(grouped_state, state, **LONG)


@pytest.mark.parametrize("mode", ["Final", "All", "Sum", "EveryN"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_output_modes(monkeypatch, mode, replicas):
    def run():
        options = make_options(poptorch.PipelinedExecution(), iterations=2, replicas=replicas)
        options.outputMode(poptorch.OutputMode[mode], *[2] * (mode == "EveryN"))
        return train(Language, (0, 0, 1, 1), options, calls=1, optimizer=poptorch.optim.SGD)

    (alone, _, _), (together, _, executor) = both_ways(monkeypatch, run)
    assert group_size_of(executor) == 4
    assert_close_sums(together, alone, **LONG)
    for output in together[0]:
        assert output.untyped_storage().nbytes() == output.nbytes  # not a part of something larger


@pytest.mark.parametrize("strategy", [None, "pipelined", "sharded"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_inference(monkeypatch, strategy, replicas):
    ipus, make = PLAIN.get(strategy, (None, lambda: None))

    def run():
        return infer(Perceptron, ipus, make_options(make(), iterations=8, accumulation=1, replicas=replicas))

    (alone, _), (together, executor) = both_ways(monkeypatch, run)
    assert group_size_of(executor) == (2 if strategy == "pipelined" else 8)
    assert_close_sums(together, alone, terms=8, steps=4)


def test_recomputation_repeats_the_numbers_of_each_micro_batch(monkeypatch):
    def run():
        options = make_options(poptorch.PipelinedExecution(), autoRecomputation=3)
        return train(Language, (0, 0, 1, 1), options, optimizer=poptorch.optim.SGD)[:2]

    alone, together = both_ways(monkeypatch, run)
    assert_close_sums(together, alone, **LONG)


def test_the_program_and_the_ideal_schedule_are_those_of_micro_batches(monkeypatch):
    monkeypatch.setenv("POPTORCH_GROUP", "0")
    *_, executor = train(Perceptron, (0, 0, 1, 1), make_options(poptorch.PipelinedExecution()), calls=1)
    assert group_size_of(executor) == 4
    assert not isinstance(executor.program, GroupedProgram)  # IPUs know nothing of groups
    runner = runner_of(executor)
    assert {task.job.micro for task in runner.scheduled_tasks().tasks} == set(range(8))
    chart = gantt.measured_chart(executor.session.engine.schedule()[1])
    assert {bar.label for bar in chart.bars} == {"0-3F", "0-3B", "4-7F", "4-7B"}
    assert executor.drawSchedule().startswith("ideal, 11 % idle\nIPU0 | 0F 1F .  0B 2F")


def test_every_micro_batch_has_its_times(monkeypatch):
    for strategy in (None, poptorch.PipelinedExecution()):
        monkeypatch.setenv("POPTORCH_GROUP", "0")
        ipus = None if strategy is None else (0, 0, 1, 1)
        *_, executor = train(Perceptron, ipus, make_options(strategy), calls=1)
        assert group_size_of(executor) > 1
        counters = executor.getPerfCounters()
        assert {len(times) for kind in counters.values() for times in kind} == {8}


def test_models_are_compiled_in_several_threads(monkeypatch):
    monkeypatch.setenv("POPTORCH_GROUP", "0")
    sizes, errors = [], []

    def work():
        try:
            sizes.append(group_size_of(train(Perceptron, None, make_options(), calls=1)[2]))
        except Exception as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sizes == [8] * 4


class PassesThrough(nn.Module):
    """Two stages, neither of them the first IPU's, and an input that comes back as it is."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x, target):
        y = x
        for number, layer in enumerate(self.layers, start=1):
            with poptorch.Block(str(number), ipu_id=number):
                y = layer(y)
                if number == 2:
                    loss = nn.functional.mse_loss(y, target)
        return x, loss


@pytest.mark.parametrize("accumulation", [8, 12])
def test_an_input_that_is_returned_belongs_to_no_stage(monkeypatch, accumulation):
    monkeypatch.setenv("POPTORCH_GROUP", "0")
    model = PassesThrough()
    options = poptorch.Options().outputMode(poptorch.OutputMode.All).autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(accumulation, 4)
    assert torch.equal(executor(x, torch.randn(accumulation, 4))[0], x)
    assert group_size_of(executor) > 1
