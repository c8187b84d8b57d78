"""Choosing, attaching and sharing devices within one process (spec: executor §12)."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch import ConnectionType
from poptorch.devices import groups
from poptorch.devices.groups import Group


@pytest.fixture(autouse=True)
def _no_leftovers():
    """Executors of other tests that wait for the garbage collector do not hold devices here."""
    gc.collect()


@pytest.fixture
def small(monkeypatch):
    """A machine of four IPUs."""
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")


def model(options=None):
    return poptorch.inferenceModel(nn.ReLU(), options)


def x(rows=1):
    return torch.ones(rows)


class Staged(nn.Module):
    """One operation on each of the given IPUs."""

    def __init__(self, *ipus):
        super().__init__()
        self.ipus = ipus

    def forward(self, value):
        for number, ipu in enumerate(self.ipus):
            with poptorch.Block(f"part {number}", ipu_id=ipu):
                value = value + 1
        return value


def sharded():
    return poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())


class TestIds:
    def test_table(self):
        first = {size: groups.id_of(Group(0, size), 64) for size in (1, 2, 4, 8, 16, 32, 64)}
        assert first == {1: 0, 2: 64, 4: 96, 8: 112, 16: 120, 32: 124, 64: 126}
        assert groups.group_of(27, 16) == Group(12, 4)

    @pytest.mark.parametrize("total", [1, 2, 4, 16, 64, 256])
    def test_round_trip(self, total):
        found = [groups.group_of(i, total) for i in range(2 * total - 1)]
        assert len(set(found)) == len(found)
        for number, group in enumerate(found):
            assert group.first % group.size == 0
            assert group.first + group.size <= total
            assert groups.id_of(group, total) == number

    @pytest.mark.usefixtures("small")
    def test_chosen_device(self, log):
        executor = model(poptorch.Options().useIpuId(2))
        executor(x())
        assert "Acquired 1 IPU(s): running on device Id 2" in log.text
        assert "Attached to device 2" in log.text

    @pytest.mark.usefixtures("small")
    def test_chosen_device_is_too_small_or_too_large_or_unknown(self, caplog):
        with pytest.raises(poptorch.Error, match=r"Expected at least replication factor \* used IPUs"):
            model(poptorch.Options().useIpuId(1).replicationFactor(2))(x(2))
        executor = model(poptorch.Options().useIpuId(4))
        executor(x())
        assert "means some of them will not be used" in caplog.text
        with pytest.raises(poptorch.Error, match="Failed to acquire device Id 0"):
            model(poptorch.Options().useIpuId(0))(x())
        with pytest.raises(poptorch.Error, match="Failed to acquire device Id 7"):
            model(poptorch.Options().useIpuId(7))(x())
        executor.destroy()
        model(poptorch.Options().useIpuId(0))(x())


class TestSharing:
    @pytest.mark.usefixtures("small")
    def test_all_ipus_taken(self):
        executors = [model() for _ in range(4)]
        for executor in executors:
            executor(x())
        last = model()
        with pytest.raises(poptorch.Error, match=r"Failed to acquire 1 IPU\(s\)") as error:
            last(x())
        assert not last.isCompiled()
        assert "in use" in str(error.value)
        executors[2].destroy()
        assert last(x()).item() == 1

    @pytest.mark.usefixtures("small")
    def test_more_than_the_machine_has(self):
        with pytest.raises(poptorch.Error, match=r"Failed to acquire 8 IPU\(s\).*No device found on the system with 8"):
            model(poptorch.Options().replicationFactor(8))(x(8))
        assert model(poptorch.Options().replicationFactor(4))(x(4)).shape == (4,)

    def test_no_machine(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_SYSTEM", "none")
        with pytest.raises(poptorch.Error, match=r"Failed to acquire 1 IPU\(s\).*No IPU detected in the system"):
            model()(x())
        with pytest.raises(poptorch.Error, match=r"Failed to acquire device Id 3.*No IPU detected"):
            model(poptorch.Options().useIpuId(3))(x())
        assert model(poptorch.Options().useIpuModel(True))(x()).item() == 1

    def test_two_executors_take_turns_on_one_id(self, linear, batch):
        def options():
            return poptorch.Options().useIpuId(5)

        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
        training = poptorch.trainingModel(linear, options(), optimizer)
        inference = poptorch.inferenceModel(linear, options())
        losses = [training(*batch)[1].item()]
        with pytest.raises(poptorch.Error, match="Failed to acquire device Id 5"):
            inference(batch[0])
        for _ in range(3):
            training.detachFromDevice()
            output = inference(batch[0])
            assert_close_sums(output, linear(batch[0]).detach(), terms=4)
            with pytest.raises(poptorch.Error, match="Failed to acquire device Id 5"):
                training(*batch)
            inference.detachFromDevice()
            losses.append(training(*batch)[1].item())
        assert losses == sorted(losses, reverse=True)
        assert len(set(losses)) == 4

    def test_dropped_executors_free_their_device(self):
        executor = model(poptorch.Options().useIpuId(6))
        executor(x())
        del executor
        gc.collect()
        assert model(poptorch.Options().useIpuId(6))(x()).item() == 1

    def test_a_failed_compile_frees_its_device(self):
        class Bad(nn.Module):
            def forward(self, value):
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            poptorch.inferenceModel(Bad(), poptorch.Options().useIpuId(7))(x())
        options = poptorch.Options().useIpuId(7).updatableNamedBuffers(["none of this name"])
        with pytest.raises(poptorch.Error):
            model(options)(x())
        assert model(poptorch.Options().useIpuId(7))(x()).item() == 1

    def test_groups_do_not_overlap(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
        pair = model(poptorch.Options().replicationFactor(2))
        one = model()
        pair(x(2))
        one(x())
        other = model(poptorch.Options().replicationFactor(2))
        with pytest.raises(poptorch.Error, match=r"Failed to acquire 2 IPU\(s\)"):
            other(x(2))
        one.destroy()
        other(x(2))


class TestWaiting:
    def test_waits_until_a_device_is_free(self, monkeypatch, log):
        monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
        first = model(poptorch.Options().useIpuId(8))
        first(x())
        second = model(poptorch.Options().useIpuId(8))
        result = []
        thread = threading.Thread(target=lambda: result.append(second(x()).item()), daemon=True)
        thread.start()
        for _ in range(200):
            if "No IPU available, sleeping" in log.text:
                break
            thread.join(0.05)
        assert "No IPU available, sleeping" in log.text
        assert not result
        first.detachFromDevice()
        thread.join(30)
        assert result == [1]

    def test_does_not_wait_for_what_does_not_exist(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
        monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
        with pytest.raises(poptorch.Error, match="No device found on the system"):
            model(poptorch.Options().replicationFactor(8))(x(8))


class TestConnection:
    def attached_before_compiled(self, log):
        return log.text.index("Attached to device") < log.text.index("Finished Poplar compilation")

    def test_always_attaches_before_compiling(self, log):
        model()(x())
        assert self.attached_before_compiled(log)

    def test_on_demand_attaches_afterwards_to_any_free_device(self, log, monkeypatch):
        monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
        on_demand = poptorch.Options().connectionType(ConnectionType.OnDemand)
        first, second = model(on_demand), model(on_demand)
        first(x())
        assert not self.attached_before_compiled(log)
        second(x())
        first.detachFromDevice()
        third = model()
        third(x())
        log.clear()
        first(x())
        assert "Acquired 1 IPU(s): running on device Id 2" in log.text

    @pytest.mark.parametrize(
        "options",
        [
            lambda: poptorch.Options().connectionType(ConnectionType.Never),
            lambda: poptorch.Options().useOfflineIpuTarget(),
            lambda: poptorch.Options().useOfflineIpuTarget(1),
        ],
    )
    def test_offline_targets_compile_and_refuse_to_run(self, options, log, monkeypatch):
        monkeypatch.setenv("POPTORCH_SYSTEM", "none")
        executor = model(options())
        with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
            executor(1, 2, 3)
        with pytest.raises(AssertionError, match="Trying to attach to an offline device"):
            executor.attachToDevice()
        executor.compile(x())
        assert executor.isCompiled()
        assert not executor.isAttachedToDevice()
        with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
            executor(x())
        with pytest.raises(poptorch.Error, match="Device is not attached"):
            executor.detachFromDevice()
        assert "Finished Poplar compilation" in log.text
        assert "Writing weights" not in log.text
        assert "Attached" not in log.text
        executor.destroy()

    def test_combinations_that_make_no_sense(self, monkeypatch):
        never = poptorch.Options().connectionType(ConnectionType.Never).useIpuModel(True)
        with pytest.raises(poptorch.Error, match="not supported for the IPU model"):
            model(never).compile(x())
        with pytest.raises(poptorch.Error, match="Offline compilation targeting a specific id not supported"):
            model(poptorch.Options().connectionType(ConnectionType.Never).useIpuId(1)).compile(x())
        for options in (poptorch.Options().useIpuModel(True), poptorch.Options().useOfflineIpuTarget()):
            with pytest.raises(poptorch.Error, match="Cycle count logging is only supported on actual IPU hardware"):
                model(options.logCycleCount(True)).compile(x())
        assert model()(x()).item() == 1


class TestIpuModel:
    def test_option_wins_over_environment(self, monkeypatch, log):
        monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
        model()(x())
        assert "Acquired" not in log.text
        assert "From the user configuration" not in log.text
        model(poptorch.Options().useIpuModel(False))(x())
        assert "From the user configuration: Ipu model: Disabled" in log.text
        assert "Acquired 1 IPU(s)" in log.text

    def test_life_cycle_is_the_same(self, log):
        executor = model(poptorch.Options().useIpuModel(True))
        executor(x())
        assert "From the user configuration: Ipu model: Enabled" in log.text
        assert executor.isAttachedToDevice()
        executor.detachFromDevice()
        assert not executor.isAttachedToDevice()
        assert executor(x()).item() == 1

    def test_any_number_of_ipus(self):
        assert poptorch.inferenceModel(Staged(0, 1, 2), sharded().useIpuModel(True))(x()).item() == 4


class TestCounts:
    def test_highest_id_counts(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
        assert poptorch.inferenceModel(Staged(3), sharded())(x()).item() == 2
        with pytest.raises(poptorch.Error, match=r"Failed to acquire 8 IPU\(s\)"):
            poptorch.inferenceModel(Staged(7), sharded())(x())

    def test_powers_of_two(self, caplog):
        with pytest.raises(poptorch.Error, match="The model specifies the use of 3 IPUs") as error:
            poptorch.inferenceModel(Staged(0, 1, 2), sharded())(x())
        for phrase in ("reserve a minimum of 4", "a power of 2", "autoRoundNumIPUs(True)"):
            assert phrase in str(error.value)
        assert poptorch.inferenceModel(Staged(0, 1, 2), sharded().autoRoundNumIPUs(True))(x()).item() == 4
        assert "will be reserved but not used" in caplog.text

    def test_too_many(self):
        with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(128\).*Experiments that need"):
            model(poptorch.Options().replicationFactor(128))(x(128))
        assert model()(x()).item() == 1

    def test_pipelines_need_enough_micro_batches(self):
        with pytest.raises(poptorch.Error) as error:
            poptorch.inferenceModel(Staged(0, 1, 2, 3), poptorch.Options().deviceIterations(3))(x(3))
        assert (
            "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline stages"
            in str(error.value)
        )

        class Trained(Staged):
            def __init__(self):
                super().__init__(0, 1, 2, 3)
                self.w = nn.Parameter(torch.ones(1))

            def forward(self, value):
                with poptorch.Block("start", ipu_id=0):
                    value = value * self.w
                value = super().forward(value)
                with poptorch.Block("end", ipu_id=3):
                    return poptorch.identity_loss(value.sum(), reduction="none")

        options = poptorch.Options()
        options.Training.gradientAccumulation(6)
        with pytest.raises(poptorch.Error) as error:
            poptorch.trainingModel(Trained(), options)(x(6))
        assert (
            "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of pipeline "
            "stages (7)"
        ) in str(error.value)
        assert ("a model with 4 pipeline stages in PopTorch will have an additional 3 stages when training") in str(
            error.value
        )
        poptorch.trainingModel(Trained(), sharded())(x())

    def test_replicas(self):
        """R = 2, B = 2, Final: the outputs of the two replicas one after the other."""
        options = poptorch.Options().replicationFactor(2).outputMode(poptorch.OutputMode.Final)
        assert model(options)(torch.arange(4.0)).tolist() == [0, 1, 2, 3]
