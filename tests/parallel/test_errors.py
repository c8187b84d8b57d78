"""What a user gets wrong, and what the message says about it."""

from __future__ import annotations

import re

import pytest
import torch
from parallel_models import Perceptron, make_options
from torch import nn

import poptorch
from closeness import assert_close_sums


def run(model, options, rows, training=True):
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel
    data = torch.ones(rows, 8), torch.ones(rows, 8)
    return wrap(model, options)(*data[: 2 if training else 1])


class Chain(nn.Module):
    """Layers in scoped blocks, and whatever comes after the last of them."""

    def __init__(self, blocks, after=lambda x: x):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in blocks)
        self.blocks, self.after = blocks, after

    def forward(self, x):
        for layer, (name, ipu) in zip(self.layers, self.blocks, strict=True):
            with poptorch.Block(name, ipu_id=ipu):
                x = layer(x)
        return self.after(x)


FOUR = [(str(i), i) for i in range(4)]


def refuses(message, model, options, rows=1, training=False, error=poptorch.Error):
    with pytest.raises(error, match=message):
        run(model, options, rows, training)
    assert not poptorch.isRunningOnIpu()  # a failed compilation leaves nothing behind


def test_an_operation_outside_of_all_blocks():
    refuses("No active Block", Chain(FOUR, lambda x: x * 4), make_options(poptorch.ShardedExecution(), accumulation=1))


def test_a_block_that_no_stage_lists():
    options = make_options(poptorch.PipelinedExecution("0", "1"), iterations=4, accumulation=1)
    with pytest.raises(AssertionError, match=r"Unknown Block '2'.*list of expected Blocks:"):
        run(Chain(FOUR), options, 4, training=False)


def test_data_that_flows_back():
    blocks = [("a", 0), ("b", 1), ("c", 0)]
    options = make_options(poptorch.PipelinedExecution(), iterations=4, accumulation=1)
    refuses("must not decrease along the data flow.*AutoIncrement", Chain(blocks), options, rows=4)


@pytest.mark.parametrize("accumulation", [4, 5])
def test_too_few_micro_batches_for_a_training_pipeline(accumulation):
    options = make_options(poptorch.PipelinedExecution(), accumulation=accumulation)
    message = (
        r"gradientAccumulation must be greater than or equal to the number of pipeline stages \(7\) when using "
        r"poptorch.PipelinedExecution\. Please note that a model with 4 pipeline stages in PopTorch will have an "
        r"additional 3 stages when training\.."
    )
    refuses(message, Perceptron((0, 1, 2, 3)), options, rows=accumulation, training=True)


def test_seven_are_enough():
    run(Perceptron((0, 1, 2, 3)), make_options(poptorch.PipelinedExecution(), accumulation=7), 7)


def test_too_few_iterations_for_an_inference_pipeline():
    options = make_options(poptorch.PipelinedExecution(), iterations=3, accumulation=1)
    message = r"deviceIterations must be greater than or equal to the number of pipeline stages \(4\)"
    refuses(message, Chain(FOUR), options, rows=3)


def test_shards_accept_any_number_of_micro_batches():
    run(Chain(FOUR), make_options(poptorch.ShardedExecution(), accumulation=1), 1, training=False)


def test_too_many_ipus():
    options = make_options(poptorch.ShardedExecution(), accumulation=1, replicas=17)
    refuses(r"Too many IPUs requested \(68\)\. Experiments that need more than 64", Chain(FOUR), options, rows=17)


@pytest.mark.parametrize("target", ["useIpuModel", "useOfflineIpuTarget"])
def test_too_many_ipus_for_any_target(target):
    options = make_options(poptorch.ShardedExecution(), accumulation=1, replicas=17)
    getattr(options, target)(*[True] * (target == "useIpuModel"))
    with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(68\)"):
        poptorch.inferenceModel(Chain(FOUR), options).compile(torch.ones(17, 8))


def test_ipus_that_are_no_power_of_two():
    options = make_options(poptorch.ShardedExecution(), accumulation=1).autoRoundNumIPUs(False)
    message = re.escape(
        "The model specifies the use of 3 IPUs, however PopTorch must reserve a minimum of 4 in order to allow the "
        "model to run, because PopTorch must reserve a power of 2 or maximum of 64 IPUs per process. Please "
        "reconfigure your model to use a different number of IPUs or set poptorch.Options().autoRoundNumIPUs(True)."
    )
    refuses(message, Chain(FOUR[:3]), options)


def test_the_number_of_ipus_is_checked_before_the_depth_of_the_pipeline():
    options = make_options(poptorch.PipelinedExecution(), iterations=1, accumulation=1).autoRoundNumIPUs(False)
    refuses(r"The model specifies the use of 3 IPUs.*Stages: 0 on IPU 0 \(block '0'\); 1 ", Chain(FOUR[:3]), options)
    options = make_options(poptorch.PipelinedExecution(), iterations=1, accumulation=1).autoRoundNumIPUs(False)
    refuses("pipeline stages", Chain(FOUR[:3]), options.useIpuModel(True))
    options = make_options(poptorch.PipelinedExecution(), iterations=1, accumulation=1).autoRoundNumIPUs(False)
    with pytest.raises(poptorch.Error, match="pipeline stages"):
        poptorch.inferenceModel(Chain(FOUR[:3]), options.useOfflineIpuTarget()).compile(torch.ones(1, 8))


@pytest.mark.parametrize("pipelined", [True, False])
def test_accumulation_in_inference(pipelined):
    strategy = poptorch.PipelinedExecution() if pipelined else poptorch.ShardedExecution()
    message = (
        "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value (1) when "
        "running a poptorch.inferenceModel()."
    )
    if pipelined:
        message += (
            " Use poptorch.Options().deviceIterations to process a sufficient number of batches each run for pipelined "
            "execution instead."
        )
    refuses(re.escape(message), Chain(FOUR), make_options(strategy, accumulation=2), rows=2)


def test_parallel_phases_on_the_wrong_ipus():
    strategy = poptorch.ParallelPhasedExecution(poptorch.Stage("0").ipu(0), poptorch.Stage("1").ipu(2))
    message = "even phases must run on even IPUs and odd phases on odd IPUs"
    refuses(message, Chain(FOUR[:2]), make_options(strategy, accumulation=1))


def test_a_phase_without_an_ipu():
    strategy = poptorch.SerialPhasedExecution("0", "1")
    blocks = [("0", None), ("1", None)]
    refuses("No active Block", Chain(blocks), make_options(strategy, accumulation=1))


def test_written_buffers_with_replicas():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1.0)
            return x * self.calls

    model = Counting()
    options = make_options(poptorch.ShardedExecution(), accumulation=1, replicas=2).broadcastBuffers(True)
    message = r"PopTorch does not support broadcasting buffers.*broadcastBuffers\(False\)"
    refuses(message, model, options, rows=4)


def test_buffers_that_are_only_read_with_replicas():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()
    executor = poptorch.inferenceModel(model, poptorch.Options().replicationFactor(2))
    x = torch.randn(4, 8)
    assert_close_sums(executor(x), model(x).detach(), terms=16)
    assert not executor.program.mutated()


@pytest.mark.parametrize("stages", [poptorch.AutoStage.AutoIncrement, poptorch.AutoStage.SameAsIpu])
def test_a_pipeline_may_return_its_input(stages):
    class Passing(nn.Module):
        def forward(self, x):
            with poptorch.Block("a", ipu_id=1):
                y = x * 2
            with poptorch.Block("b", ipu_id=2):
                return y + 1, x

    options = make_options(poptorch.PipelinedExecution(stages), iterations=4, accumulation=1)
    x = torch.arange(4.0)
    y, same = poptorch.inferenceModel(Passing(), options)(x)
    assert y.tolist() == [1.0, 3.0, 5.0, 7.0]
    assert same.tolist() == x.tolist()
