"""Cutting programs into stages, and recomputation, seen from the graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from poptorch.compiler.passes.slots import Division, partition
from poptorch.compiler.passes.stages import split
from poptorch.program.graphs import is_view
from poptorch.program.opinfo import info_of
from poptorch.program.program import Role


class Chain(nn.Module):
    def __init__(self, ipus):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in ipus)
        self.ipus = ipus

    def forward(self, x, target=None):
        for index, (layer, ipu) in enumerate(zip(self.layers, self.ipus, strict=True)):
            poptorch.Block.start(str(index), ipu_id=ipu)
            x = torch.relu(layer(x))
        return x if target is None else nn.functional.mse_loss(x, target)


def inference_program(ipus):
    """The program in one piece, although it is annotated: cut by the tests themselves."""
    strategy = poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)
    options = poptorch.Options().autoRoundNumIPUs(True).setExecutionStrategy(strategy)
    executor = poptorch.inferenceModel(Chain(ipus), options)
    executor.compile(torch.ones(2, 4))
    return executor.program


def training_executor(ipus, mode=None):
    options = poptorch.Options().autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(2 * len(ipus))
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    if mode is not None:
        options._Popart.set("autoRecomputation", mode)
    model = Chain(ipus)
    executor = poptorch.trainingModel(model, options)
    executor.compile(torch.ones(4 * len(ipus), 4), torch.ones(4 * len(ipus), 4))
    return executor


@pytest.mark.parametrize(
    ("ipus", "division", "expected"),
    [
        ((0, 1), Division.STAGES, [0, 1]),
        ((0, 0, 1, 1), Division.STAGES, [0, 1]),  # neighbours on one IPU are one part
        ((0, 1, 0, 1), Division.STAGES, [0, 1, 0, 1]),
        ((0, 0, 1, 1), Division.SHARDS, [0, 1]),
        ((0, 1, 0, 1), Division.SHARDS, [0, 1, 0, 1]),
    ],
)
def test_parts(ipus, division, expected):
    assert [p.ipu for p in partition(inference_program(ipus), division).parts] == expected


def test_slots_never_decrease_along_the_data():
    program = inference_program((0, 1, 0, 1))
    found = partition(program, Division.SHARDS)
    for node in program.operations():
        for operand in node.all_input_nodes:
            assert found.slots.get(operand, 0) <= found.slots[node]


def test_the_stages_hold_every_operation_once_and_edges_join_them():
    program = inference_program((0, 1, 2))
    cut = split(program, partition(program, Division.STAGES), carried=[])
    held = [n.name for stage in cut.stages for n in stage.program.operations()]
    assert sorted(held) == sorted(n.name for n in program.operations())
    assert [(e.producer, e.consumers, e.num_bytes) for e in cut.edges] == [(0, (1,), 32), (1, (2,), 32)]
    assert [s.after for s in cut.stages] == [[], [0], [1]]
    assert [s.results for s in cut.stages] == [[], [], [0]]
    for stage in cut.stages:
        stage.program.graph.lint()
        assert str(stage.program).startswith("program (inference)")


def test_backward_stages_mirror_the_forward_ones():
    stages = [s.description for s in training_executor((0, 1, 2)).executable.code.stages]
    assert [(s.part, s.backward) for s in stages] == [
        (0, False), (1, False), (2, False), (2, True), (1, True), (0, True)
    ]  # fmt: skip
    for stage in stages[3:]:
        assert set(stage.gradients) == {f"layers.{stage.part}.weight", f"layers.{stage.part}.bias"}


def run_again(stages):
    """How many operations of each backward pass are second executions; views cost nothing."""

    def count(program):
        return sum(info_of(n).recomputed and not is_view(n) for n in program.operations())

    return {s.part: count(s.program) for s in stages if s.backward}


def test_pipelines_recompute_all_but_the_last_stage():
    plan = training_executor((0, 1, 2)).plan
    again = run_again(plan.stages)
    assert again[0] > 0
    assert again[1] > 0
    assert again[2] == 0


class CheckedLast(nn.Module):
    """Two parts; the last one has three layers, with checkpoints after some of them."""

    def __init__(self, checkpoints):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.checkpoints = checkpoints

    def forward(self, x, target):
        poptorch.Block.start("0", ipu_id=0)
        x = torch.sigmoid(self.layers[0](x))
        poptorch.Block.start("1", ipu_id=1)
        for index, function in ((1, torch.tanh), (2, torch.sigmoid), (3, nn.functional.gelu)):
            x = function(self.layers[index](x))
            if index in self.checkpoints:
                x = poptorch.recomputationCheckpoint(x)
        return nn.functional.mse_loss(x, target)


@pytest.mark.parametrize(
    ("checkpoints", "again"),
    [
        ((), []),
        ((1,), ["addmm", "tanh"]),
        ((2,), ["addmm", "tanh", "addmm", "sigmoid"]),
        ((1, 2), ["addmm", "sigmoid", "addmm", "tanh"]),
        ((3,), ["addmm", "tanh", "addmm", "sigmoid", "addmm"]),  # the gelu itself is kept: it is the checkpoint
    ],
)
def test_the_last_stage_recomputes_what_comes_before_its_last_checkpoint(checkpoints, again):
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(CheckedLast(checkpoints), options)
    executor.compile(torch.ones(8, 4), torch.ones(8, 4))
    (backward,) = [stage for stage in executor.plan.stages if stage.backward and stage.part == 1]
    names = [n.target._schema.name for n in backward.program.operations() if info_of(n).recomputed and not is_view(n)]
    assert [name.removeprefix("aten::") for name in names] == again
    own = {edge.name for edge in executor.plan.kept if edge.producer == 1}
    assert ("tanh" in own) is (not checkpoints)  # the memory between the two passes says the same
    assert len([name for name in own if name.startswith("recomputation_checkpoint")]) == len(checkpoints)


def test_the_host_computes_again_what_it_is_told_to():
    executor = training_executor((0, 1, 2), 3)
    stages = [s.description for s in executor.executable.code.stages]
    assert stages == list(executor.plan.stages)  # it runs what an IPU runs
    again = run_again(stages)
    assert [again[part] > 0 for part in range(3)] == [True, True, False]


class Smooth(nn.Module):
    """Functions whose derivative needs their operand, in two parts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, target):
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(str(index // 2), ipu_id=index // 2)
            x = nn.functional.gelu(layer(x))
        return nn.functional.mse_loss(x, target)


def test_of_its_own_accord_the_host_computes_again_what_is_cheap():
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(Smooth(), options)
    executor.compile(torch.ones(8, 4), torch.ones(8, 4))
    plan = executor.plan
    repeated = {
        part: [n.target for n in s.description.program.operations() if info_of(n).recomputed and not is_view(n)]
        for s in executor.executable.code.stages
        if s.description.backward
        for part in [s.description.part]
    }
    # The first layer's output is an operand of the second one's gradient; what comes last is read by another part.
    assert repeated[0] == [torch.ops.aten.gelu.default]
    assert set(repeated[1]) <= {torch.ops.aten.gelu.default}

    def kept_by_part_0(edges):
        return [e.name for e in edges if e.producer == 0 and e.consumers == (3,)]

    assert kept_by_part_0(executor.executable.code.edges) == ["addmm", "addmm_1"]
    assert kept_by_part_0(plan.edges) == []  # an IPU begins with the model's input again
    assert any("divide: recompute cheap: " in line for line in executor.executable.code.log)


def test_without_recomputation_everything_is_stashed():
    ipus = (0, 0, 0, 1, 1, 1)
    kept = {mode: len(training_executor(ipus, mode).plan.kept) for mode in (0, 3, 4)}
    assert kept[0] > kept[3] > kept[4]  # the last stage is recomputed only when everything is


def test_the_random_numbers_of_a_second_execution_are_the_first_ones():
    class Dropping(Chain):
        def forward(self, x, target=None):
            return super().forward(nn.functional.dropout(x, 0.5), target)

    model = Dropping((0, 1))
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    options._Popart.set("autoRecomputation", 3)
    executor = poptorch.trainingModel(model, options)
    executor.compile(torch.ones(8, 4), torch.ones(8, 4))
    streams = [
        (info_of(n).random, s.description.backward)
        for s in executor.executable.code.stages
        for n in s.description.program.operations()
        if info_of(n).random is not None
    ]
    numbers = {backward: {r for r, b in streams if b is backward} for backward in (False, True)}
    assert numbers[False] == numbers[True] != set()


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_two_stages_stash_the_input_and_each_checkpoint(checkpoints):
    class Marked(Chain):
        def forward(self, x, target=None):
            poptorch.Block.start("0", ipu_id=0)
            for index, layer in enumerate(self.layers):
                x = torch.sigmoid(layer(x))
                if index < checkpoints:
                    x = poptorch.recomputationCheckpoint(x)
            x = torch.tanh(x)
            poptorch.Block.start("1", ipu_id=1)
            return nn.functional.mse_loss(torch.sigmoid(x), target)

    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(Marked((0, 0, 0)), options)
    executor.compile(torch.ones(8, 4), torch.ones(8, 4))
    plan = executor.plan
    (backward,) = [stage for stage in plan.stages if stage.backward and stage.part == 0]
    inputs = [port.name for port in backward.program.ports_of(Role.INPUT)[: len(backward.inputs)]]
    assert inputs == ["x"]
    assert sum(plan.edges[edge].producer < len(plan.parts) for edge in backward.receives) == checkpoints
