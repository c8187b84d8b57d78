"""Constructor forms, members and errors of stages, phases and strategies."""

import copy
import pickle

import pytest

import poptorch
from poptorch.ambient import Placement
from poptorch.enums import AutoStage, Liveness
from poptorch.placement import (
    ExecutionStrategy,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)

STAGED = [PipelinedExecution, ShardedExecution]
PHASED = [SerialPhasedExecution, ParallelPhasedExecution]


def test_stage_keeps_its_blocks_in_order():
    assert list(Stage("b", "a").blocks) == ["b", "a"]


@pytest.mark.parametrize("ids", [(1,), ("a", None), (["a"],)])
def test_stage_takes_only_strings(ids):
    with pytest.raises(AssertionError, match="Block IDs are supposed to be strings"):
        Stage(*ids)


def test_stage_ipu_chains_and_asserts_an_int():
    stage = Stage("a")
    assert stage.ipu(3) is stage
    for wrong in ("1", 1.0, None, -1):
        with pytest.raises(AssertionError):
            stage.ipu(wrong)


def test_phase_of_strings_is_one_stage():
    phase = Phase("a", "b")
    assert [list(stage.blocks) for stage in phase.stages] == [["a", "b"]]


def test_phase_of_stages_keeps_them_apart():
    left, right = Stage("a"), Stage("b")
    phase = Phase(left, right)
    assert phase.stage(0) is left
    assert phase.stage(1) is right


@pytest.mark.parametrize("args", [("a", Stage("b")), (1,), (["a"],), (None,)])
def test_phase_refuses_mixed_arguments(args):
    with pytest.raises(AssertionError, match="All arguments must either be block IDs"):
        Phase(*args)


def test_phase_ipus_gives_one_per_stage():
    phase = Phase(Stage("a"), Stage("b"))
    assert phase.ipus(0, 2) is None
    assert [stage.pinned_ipu for stage in phase.stages] == [0, 2]
    with pytest.raises(AssertionError, match="Phase contains 2 stages but you provided 1 ipus"):
        phase.ipus(0)


@pytest.mark.parametrize("strategy", STAGED)
def test_stages_are_numbered_by_position(strategy):
    staged = strategy(Stage("a", "b"), "c", ["d", "e"], ("f",), (name for name in "gh"))
    numbers = {block: staged.place(block, None).stage for block in "abcdefgh"}
    assert numbers == {"a": 0, "b": 0, "c": 1, "d": 2, "e": 2, "f": 3, "g": 4, "h": 4}
    assert staged.stage("b") is staged.stage("a")


@pytest.mark.parametrize("strategy", STAGED)
def test_automatic_stages(strategy):
    same, counted = strategy(AutoStage.SameAsIpu), strategy(AutoStage.AutoIncrement)
    ipus = [0, 1, 2, 1]
    assert [same.place(str(n), ipu).stage for n, ipu in enumerate(ipus)] == [0, 1, 2, 1]
    assert [counted.place(str(n), ipu) for n, ipu in enumerate(ipus)] == [
        Placement(stage=n, ipu=ipu, block=str(n)) for n, ipu in enumerate(ipus)
    ]
    assert [counted.place(str(n), ipu, leading=True).stage for n, ipu in enumerate(ipus)] == [1, 2, 3, 4]
    assert [same.place(str(n), ipu, leading=True).stage for n, ipu in enumerate(ipus)] == [0, 1, 2, 1]


def test_a_block_keeps_its_first_stage_number():
    strategy = PipelinedExecution(AutoStage.AutoIncrement)
    strategy.place("a", 0), strategy.place("b", 1)
    assert strategy.place("a", 1) == Placement(stage=0, ipu=1, block="a")
    same = PipelinedExecution()
    same.place("a", 2)
    assert same.place("a", 3) == Placement(stage=2, ipu=3, block="a")


def test_without_arguments_the_stage_is_the_ipu():
    with pytest.raises(AssertionError, match="no IPU was specified for block lonely"):
        PipelinedExecution().place("lonely", None)


def test_integer_ids_work_where_no_stage_must_match_them():
    assert PipelinedExecution().place(7, 1).stage == 1
    with pytest.raises(AssertionError, match="Unknown Block '7'"):
        PipelinedExecution("7").place(7, 1)


@pytest.mark.parametrize("strategy", [*STAGED, *PHASED])
def test_one_block_belongs_to_one_stage(strategy):
    with pytest.raises(AssertionError, match="a associated with more than one stage"):
        strategy("a", Stage("b", "a"))


@pytest.mark.parametrize("strategy", STAGED)
@pytest.mark.parametrize("args", [(["a", 1],), (3,), (AutoStage.SameAsIpu, "a"), ("a", AutoStage.SameAsIpu), (None,)])
def test_wrong_stages_are_refused(strategy, args):
    with pytest.raises(AssertionError):
        strategy(*args)


@pytest.mark.parametrize("strategy", PHASED)
def test_phase_forms(strategy):
    phased = strategy(Phase("a"), Stage("b"), "c", [Stage("d"), Stage("e")], ["f", "g"])
    assert [[list(stage.blocks) for stage in phase.stages] for phase in phased.phases] == [
        [["a"]],
        [["b"]],
        [["c"]],
        [["d"], ["e"]],
        [["f", "g"]],
    ]
    assert list(phased.stage("e").blocks) == ["e"]


@pytest.mark.parametrize("strategy", PHASED)
@pytest.mark.parametrize("args", [(("a", "b"),), (1,), ([Phase("a"), Phase("b")],), (["a", Stage("b")],)])
def test_wrong_phases_are_refused(strategy, args):
    with pytest.raises(AssertionError):
        strategy(*args)


@pytest.mark.parametrize("strategy", PHASED)
def test_phases_cannot_be_automatic(strategy):
    with pytest.raises(AssertionError, match="There is currently no AutoStage for PhasedExecution"):
        strategy()


@pytest.mark.parametrize("strategy", PHASED)
def test_phase_lookup(strategy):
    phased = strategy("a", "b")
    assert list(phased.phase(1).stage(0).blocks) == ["b"]
    for wrong in (-1, "a", 1.0, None):
        with pytest.raises(AssertionError, match="Phases are identified by positive integers"):
            phased.phase(wrong)
    with pytest.raises(IndexError, match="has 2 phases"):
        phased.phase(2)


@pytest.mark.parametrize("strategy", [*STAGED, *PHASED])
def test_unknown_blocks(strategy):
    declared = strategy("a")
    with pytest.raises(AssertionError, match="Unknown block b"):
        declared.stage("b")
    with pytest.raises(AssertionError, match=r"Unknown Block 'b'.*list of expected Blocks:.*'a'"):
        declared.place("b", 0)


@pytest.mark.parametrize("strategy", PHASED)
def test_phased_blocks_need_an_ipu_from_somewhere(strategy):
    phased = strategy("a", Stage("b").ipu(3), [Stage("c"), Stage("d")])
    phased.phase(2).ipus(0, 2)
    assert phased.place("a", None) is None
    assert phased.place("a", 2) == Placement(stage=0, phase=0, ipu=2, block="a")
    assert phased.place("b", 1) == Placement(stage=0, phase=1, ipu=3, block="b")
    assert phased.place("d", None) == Placement(stage=1, phase=2, ipu=2, block="d")


def test_liveness_spreads_the_phase_numbers():
    strategy = SerialPhasedExecution("a", "b", "c")
    assert strategy.setTensorsLiveness(Liveness.OffChipAfterEachPhase) is strategy
    assert [strategy.place(block, 0).phase for block in "abc"] == [0, 4, 8]
    assert strategy.numbering().span == 12


def test_options_entries():
    assert PipelinedExecution().backendOptions() == {"execution_mode": 0}
    assert ShardedExecution().backendOptions() == {"execution_mode": 1}
    serial = SerialPhasedExecution("a").useSeparateBackwardPhase()
    assert serial.setTensorsLiveness(Liveness.OffChipAfterFwdNoOverlap).backendOptions() == {
        "execution_mode": 2,
        "separate_backward_phase": True,
        "tensors_liveness": 2,
        "serial_phases_execution": True,
    }
    assert ParallelPhasedExecution("a").backendOptions() == {
        "execution_mode": 2,
        "separate_backward_phase": False,
        "tensors_liveness": 0,
        "serial_phases_execution": False,
    }


def test_parallel_phases_off_chip():
    strategy = ParallelPhasedExecution("a")
    assert strategy.sendTensorsOffChipAfterFwd() is strategy
    assert strategy.backendOptions()["tensors_liveness"] == Liveness.OffChipAfterFwd
    assert strategy.sendTensorsOffChipAfterFwd(False).backendOptions()["tensors_liveness"] == 0


def test_phased_setters_check_their_types():
    serial, parallel = SerialPhasedExecution("a"), ParallelPhasedExecution("a")
    for call in (
        lambda: serial.setTensorsLiveness(2),
        lambda: serial.useSeparateBackwardPhase(1),
        lambda: parallel.sendTensorsOffChipAfterFwd("yes"),
    ):
        with pytest.raises(AssertionError):
            call()


@pytest.mark.parametrize("make", [pickle.dumps, copy.deepcopy])
def test_strategies_can_be_copied_and_stored(make):
    strategy = PipelinedExecution(Stage("a").ipu(1), "b")
    twin = make(strategy)
    twin = pickle.loads(twin) if isinstance(twin, bytes) else twin
    assert twin.place("a", None) == strategy.place("a", None)
    twin.stage("b").ipu(4)
    assert strategy.place("b", None).ipu == 1


def test_the_family():
    assert issubclass(ShardedExecution, PipelinedExecution)
    assert all(issubclass(strategy, ExecutionStrategy) for strategy in (*STAGED, *PHASED))
    assert poptorch.Stage is Stage
    assert poptorch.Phase is Phase
