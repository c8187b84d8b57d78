"""Numbers of stages and IPUs, and the rules about them."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch import _logging
from poptorch.ambient import Placement
from poptorch.errors import Error
from poptorch.placement import (
    ParallelPhasedExecution,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    counting,
)


@pytest.fixture
def log(caplog):
    _logging.logger.addHandler(caplog.handler)
    caplog.set_level(logging.DEBUG, logger=_logging.logger.name)
    yield caplog
    _logging.logger.removeHandler(caplog.handler)


def on(*ipus):
    return [Placement(stage=ipu, ipu=ipu) for ipu in ipus]


@pytest.mark.parametrize(
    ("ipus", "stages"), [((), 1), ((0,), 1), ((1,), 1), ((0, 0, 1, 1), 2), ((0, 1, 0), 3), ((1, 2, 3), 3)]
)
def test_forward_stages_count_changes_of_ipu(ipus, stages):
    assert len(counting.forward_stages(on(*ipus))) == stages


@given(st.integers(1, 64))
def test_power_of_two(count):
    power = counting.next_power_of_two(count)
    assert power >= count > power // 2
    assert power.bit_count() == 1


@pytest.mark.parametrize(("used", "count"), [([], 0), ([0], 1), ([1], 2), ([0, 5], 6), ([2, 2, 0, 1], 3)])
def test_ipus_per_replica(used, count):
    assert counting.ipus_per_replica(used) == count


def test_too_many_ipus_on_any_device():
    assert counting.reserve_ipus(4, 16) == 64
    for hardware in (True, False):
        with pytest.raises(Error, match=r"Too many IPUs requested \(66\).*Experiments that need more than 64"):
            counting.reserve_ipus(2, 33, hardware=hardware, auto_round=True)


def test_power_of_two_rule(log):
    with pytest.raises(
        Error,
        match=r"The model specifies the use of 3 IPUs.*must reserve a minimum of 4.*"
        r"because PopTorch must reserve a power of 2 or maximum of 64 IPUs per process.*"
        r"poptorch\.Options\(\)\.autoRoundNumIPUs\(True\)",
    ):
        counting.reserve_ipus(3)
    assert counting.reserve_ipus(3, hardware=False) == 3
    assert not log.records
    assert counting.reserve_ipus(3, auto_round=True) == 4
    assert "1 IPUs will be reserved but not used" in log.text


def test_no_operation_no_ipus(log):
    assert counting.reserve_ipus(0, 4) == 0
    assert "No IPUs are used" in log.text


def test_selected_device(log):
    counting.check_selected_device(4, 4, device_id=0)
    with pytest.raises(Error, match=r"Expected at least replication factor \* used IPUs"):
        counting.check_selected_device(2, 4, device_id=0)
    assert not log.records
    counting.check_selected_device(8, 4, device_id=0)
    assert "means some of them will not be used" in log.text


@pytest.mark.parametrize("accumulation", [1, 4, 5, 6])
def test_training_pipeline_must_be_filled(accumulation):
    with pytest.raises(
        Error,
        match=r"gradientAccumulation must be greater than or equal to the number of pipeline stages \(7\) "
        r"when using poptorch\.PipelinedExecution\. Please note that a model with 4 pipeline stages in PopTorch will "
        r"have an additional 3 stages when training\..*Stages: 0 on IPU 0 .*3 on IPU 3",
    ):
        counting.check_pipeline_depth(
            PipelinedExecution(),
            counting.forward_stages(on(0, 1, 2, 3)),
            training=True,
            gradient_accumulation=accumulation,
            device_iterations=100,
        )


def test_inference_pipeline_must_be_filled():
    with pytest.raises(
        Error,
        match=r"poptorch\.Options\(\)\.deviceIterations must be greater than or equal to the number of "
        r"pipeline stages \(4\)",
    ):
        counting.check_pipeline_depth(
            PipelinedExecution(),
            counting.forward_stages(on(0, 1, 2, 3)),
            training=False,
            gradient_accumulation=1,
            device_iterations=3,
        )


@pytest.mark.parametrize(
    ("strategy", "ipus", "training", "accumulation", "iterations"),
    [
        (PipelinedExecution(), (0, 1, 2, 3), True, 7, 1),
        (PipelinedExecution(), (0, 1, 2, 3), False, 1, 4),
        (PipelinedExecution(), (0, 0), True, 1, 1),
        (ShardedExecution(), (0, 1, 2, 3), True, 1, 1),
        (SerialPhasedExecution("a"), (0, 1), False, 1, 1),
    ],
)
def test_full_enough(strategy, ipus, training, accumulation, iterations):
    counting.check_pipeline_depth(
        strategy,
        counting.forward_stages(on(*ipus)),
        training=training,
        gradient_accumulation=accumulation,
        device_iterations=iterations,
    )


def test_inference_accumulates_nothing():
    counting.check_inference_accumulation(PipelinedExecution(), 1)
    wanted = r"gradientAccumulation to 1 or leave it as its default value \(1\).*poptorch\.inferenceModel\(\)"
    with pytest.raises(Error, match=wanted + r".*poptorch\.Options\(\)\.deviceIterations"):
        counting.check_inference_accumulation(PipelinedExecution(), 2)
    with pytest.raises(Error, match=wanted) as sharded:
        counting.check_inference_accumulation(ShardedExecution(), 2)
    assert "deviceIterations" not in str(sharded.value)


def test_stages_must_not_decrease():
    first, second = Placement(0, 0, 0, "a"), Placement(1, 0, 1, "b")
    counting.check_stage_order(PipelinedExecution(), [(first, second), (second, second)])
    counting.check_stage_order(ShardedExecution(), [(second, first)])
    with pytest.raises(Error, match=r"Block 'a' .* uses a value of Block 'b'.*AutoIncrement"):
        counting.check_stage_order(PipelinedExecution(), [(first, second), (second, first)])


def test_parallel_phases_alternate():
    strategy = ParallelPhasedExecution("a", "b")
    counting.check_phase_ipus(strategy, [Placement(phase=0, ipu=2), Placement(phase=1, ipu=1)])
    wrong = [Placement(phase=1, ipu=2, block="b")]
    counting.check_phase_ipus(SerialPhasedExecution("a", "b"), wrong)
    with pytest.raises(Error, match="even phases must run on even IPUs and odd phases on odd IPUs"):
        counting.check_phase_ipus(strategy, wrong)


def test_one_ipu_is_no_pipeline():
    assert counting.uses_pipelining(PipelinedExecution(), 2)
    assert not counting.uses_pipelining(PipelinedExecution(), 1)
    assert not counting.uses_pipelining(ShardedExecution(), 2)
