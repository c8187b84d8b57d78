"""What ``popdist`` says about the job and this process."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable

import pytest
import torch

import popdist
import popdist.popart
import popdist.popdist_core
import popdist.tensorflow
from popdist import backend, collectives

Launch = Callable[..., None]

GETTERS = (
    popdist.getNumTotalReplicas,
    popdist.getNumLocalReplicas,
    popdist.getNumIpusPerReplica,
    popdist.getReplicaIndexOffset,
    popdist.getNumInstances,
    popdist.getInstanceIndex,
    popdist.getLocalInstanceIndex,
)


def test_without_a_launcher() -> None:
    assert popdist.isPopdistEnvSet() is False
    assert [getter() for getter in GETTERS] == [1, 1, 1, 0, 1, 0, 0]
    assert popdist.checkNumIpusPerReplica(1) is True
    assert popdist.checkNumIpusPerReplica(2) is False


@pytest.mark.parametrize("instance", range(4))
def test_under_a_launcher(instance: int, launch: Launch) -> None:
    launch(total=8, local=2, ipus=2, instance=instance)
    assert popdist.isPopdistEnvSet() is True
    assert [getter() for getter in GETTERS] == [8, 2, 2, 2 * instance, 4, instance, instance]
    assert popdist.checkNumIpusPerReplica(2) is True


def test_one_instance_under_a_launcher(launch: Launch) -> None:
    launch(total=4, local=4, ipus=1, instance=0)
    assert popdist.isPopdistEnvSet() is True
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (1, 0)


def test_instances_of_different_sizes_have_no_numbers(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(total=5, local=2, ipus=1, instance=0)
    with pytest.raises(RuntimeError, match=r"5 replicas .* cannot be spread evenly over instances of 2"):
        popdist.getNumInstances()
    launch(total=6, local=2, ipus=1, instance=0, uniform=0)
    for getter in (popdist.getNumInstances, popdist.getInstanceIndex):
        with pytest.raises(RuntimeError, match="different numbers of replicas"):
            getter()
    assert popdist.getNumTotalReplicas() == 6


def test_variables_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "many")
    with pytest.raises(RuntimeError, match="POPDIST_NUM_TOTAL_REPLICAS is 'many'"):
        popdist.getNumTotalReplicas()
    monkeypatch.setenv("POPDIST_NUM_LOCAL_REPLICAS", "0")
    with pytest.raises(RuntimeError, match="from 1 upwards"):
        popdist.getNumLocalReplicas()


def test_the_native_module_is_an_alias() -> None:
    assert popdist.popdist_core.getInstanceIndex is popdist.getInstanceIndex
    assert all(getattr(popdist.popdist_core, name) is getattr(popdist, name) for name in popdist.__all__)


def test_the_layout_is_known_without_torch() -> None:
    code = "import sys, popdist; popdist.init(); popdist.getNumInstances(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- devices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", range(4))
def test_devices_of_a_reconfigurable_partition(instance: int, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod16")
    launch(total=8, local=2, ipus=2, instance=instance)
    assert popdist.getDeviceId() == 24 + instance
    monkeypatch.setenv("POPDIST_NODE_DEVICE_ID", "30")
    assert popdist.getDeviceId() == popdist.getDeviceId(2) == 24 + instance


def test_the_device_is_a_part_of_the_host_s_device(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(total=8, local=2, ipus=1, instance=3)
    monkeypatch.setenv("POPDIST_LOCAL_INSTANCE_INDEX", "1")
    monkeypatch.setenv("POPDIST_NODE_DEVICE_ID", "97")  # the second four of 64
    assert popdist.getDeviceId() == 64 + 3, "its second pair: IPUs 6 and 7"


def test_the_device_of_a_fixed_partition(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(total=4, local=1, ipus=4, instance=2)
    monkeypatch.setenv("IPUOF_VIPU_API_GCD_ID", "2")
    assert popdist.getDeviceId() == 96 + 2


def test_a_device_without_a_launcher() -> None:
    assert (popdist.getDeviceId(), popdist.getDeviceId(2), popdist.getDeviceId(64)) == (0, 64, 126)
    with pytest.raises(RuntimeError, match="no device with 3 IPUs"):
        popdist.getDeviceId(3)


def test_devices_that_do_not_exist(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
    launch(total=8, local=2, ipus=2, instance=1)
    with pytest.raises(RuntimeError, match="needs 4 IPUs from number 4"):
        popdist.getDeviceId()
    launch(total=6, local=3, ipus=1, instance=0)
    with pytest.raises(RuntimeError, match="powers of two"):
        popdist.getDeviceId()
    monkeypatch.setenv("POPTORCH_SYSTEM", "none")
    with pytest.raises(RuntimeError, match="no device to choose from"):
        popdist.getDeviceId()


# --- life cycle ------------------------------------------------------------------------------------------------


def test_the_life_of_a_backend() -> None:
    assert popdist.isBackendInitialized() is False
    popdist.finalizeBackend()
    popdist.init()
    popdist.init()
    assert popdist.isBackendInitialized() is True
    popdist.synchronize()
    popdist.finalizeBackend()
    popdist.finalizeBackend()
    assert popdist.isBackendInitialized() is False
    popdist.initializeBackend()
    assert popdist.isBackendInitialized() is True


def test_one_library_for_each_process() -> None:
    popdist.registerBackend("/lib/libother.so")
    popdist.registerBackend("/lib/libother.so")
    with pytest.raises(RuntimeError, match="is registered already"):
        popdist.registerDefaultBackend()
    popdist.init()
    assert popdist.isBackendInitialized()


def test_several_instances_need_contact(launch: Launch) -> None:
    launch(total=4, local=2, ipus=1, instance=0)
    with pytest.raises(popdist.popdist_error, match=r"needs the 2 instances to be in contact: call popdist.init\(\)"):
        popdist.synchronize()
    with pytest.raises(RuntimeError, match=r"collectives\.allGather needs the 2 instances"):
        collectives.allGather(torch.ones(1))
    popdist.registerBackend("/lib/libother.so")
    with pytest.raises(popdist.popdist_error, match="instances talk through gloo"):
        popdist.init()
    assert popdist.isBackendInitialized() is False
    launch(total=2, local=2, ipus=1, instance=0)
    popdist.init()


def test_collectives_of_one_instance() -> None:
    value = torch.arange(3, dtype=torch.int16)
    assert torch.equal(collectives.allReduceSum(value, name="a"), torch.arange(3, dtype=torch.int16))
    assert collectives.allGather(value).shape == (1, 3)
    assert collectives.broadcast(value) is value
    with pytest.raises(ValueError, match="Instance 1 does not take part"):
        collectives.broadcast(value, 1)
    with pytest.raises(TypeError, match="Truth values"):
        collectives.allReduceSum(torch.tensor([True]))


def test_functions_on_some_instances(launch: Launch) -> None:
    assert popdist.execute_on_instances({0}, dict, [("a", 1)], b=2) == {"a": 1, "b": 2}
    launch(total=4, local=2, ipus=1, instance=1)
    assert popdist.execute_on_instances({0}, pytest.fail) is None
    assert popdist.execute_on_instances([1], lambda: "here") == "here"
    with pytest.raises(ValueError, match="no instance 2: the job has 2"):
        popdist.execute_on_instances({2}, print)


def test_synchronising_inside_involves_the_members_only(launch: Launch) -> None:
    launch(total=4, local=2, ipus=1, instance=0)
    assert popdist.execute_on_instances({0}, popdist.synchronize) is None
    with pytest.raises(ValueError, match="Instance 1 does not take part in the execute_on_instances"):
        popdist.execute_on_instances({0}, popdist.execute_on_instances, {0, 1}, popdist.synchronize)
    with pytest.raises(RuntimeError, match="2 instances"):
        popdist.synchronize()


# --- other frameworks ------------------------------------------------------------------------------------------


def test_session_options_of_popart(launch: Launch) -> None:
    launch(total=8, local=2, ipus=1, instance=3)
    opts = types.SimpleNamespace()
    popdist.popart.configureSessionOptions(opts)
    assert vars(opts) == {
        "enableReplicatedGraphs": True,
        "replicatedGraphCount": 2,
        "enableDistributedReplicatedGraphs": True,
        "globalReplicaOffset": 6,
        "globalReplicationFactor": 8,
    }


def test_what_other_frameworks_would_need() -> None:
    with pytest.raises(RuntimeError, match="no PopART"):
        popdist.popart.getDevice(ipus_per_replica=2)
    with pytest.raises(RuntimeError, match="no TensorFlow"):
        popdist.tensorflow.set_ipu_config(object())
    assert backend.isBackendInitialized is popdist.isBackendInitialized
