"""Options that belong to a model or a data loader are read-only."""

from __future__ import annotations

import pytest
import torch

import poptorch

FROZEN = pytest.raises(AttributeError, match="Can't modify frozen Options")


@pytest.fixture
def frozen():
    opts = poptorch.Options().useIpuId(1).outputMode(poptorch.OutputMode.All)
    opts._freeze()
    return opts


def test_assignments_and_generic_setters_are_blocked_everywhere(frozen):
    with FROZEN:
        frozen.device_iterations = 3
    with FROZEN:
        frozen.set(random_seed=3)
    with FROZEN:
        frozen.createOrSet(anything=3)
    with FROZEN:
        frozen.Training.gradient_accumulation = 3
    with FROZEN:
        frozen._Popart.set("enableStableNorm", True)
    for container in (frozen, frozen.Training, frozen.Precision, frozen.Jit, frozen._Popart):
        with FROZEN:
            container.checkIsFrozen()
        with FROZEN:
            container.checkIsFrozen("some option")


def test_reads_stay_possible_and_leave_the_object_frozen(frozen):
    assert frozen.toDict()["ipu_id"] == 1
    assert frozen.exists("ipu_id")
    assert "ipu_id=1" in repr(frozen)
    with FROZEN:
        frozen.deviceIterations(2)


def test_what_freezing_does_not_block(frozen):
    frozen.anchorTensor("a", "b")
    assert "a" in frozen.anchored_tensors
    frozen.deleteIfExists("ipu_id")
    assert not frozen.exists("ipu_id")
    frozen._Popart.options["enableStableNorm"] = True


def test_unfreezing_brings_all_groups_back(frozen):
    frozen._unfreeze()
    frozen.deviceIterations(2).Training.gradientAccumulation(2)
    frozen._Popart.set("enableStableNorm", True)
    assert frozen.checkIsFrozen() is None


def test_refused_calls_have_no_side_effects(frozen):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with FROZEN:
        frozen.randomSeed(42)
    assert torch.equal(torch.get_rng_state(), state)
    with FROZEN:
        frozen.appendToLocationExcludes("x")
    assert "x" not in frozen.source_location_excludes
    frozen._Popart.options["engineOptions"] = {"mine": "1"}
    with FROZEN:
        frozen.enableProfiling("dir")
    assert frozen._Popart.options["engineOptions"] == {"mine": "1"}
    with FROZEN:
        frozen.useOfflineIpuTarget()
    assert frozen.connection_type == poptorch.ConnectionType.Always


def test_a_file_without_statements_can_be_loaded(frozen, tmp_path):
    path = tmp_path / "empty.conf"
    path.write_text("# nothing\n\n   \n")
    assert frozen.loadFromFile(str(path)) is frozen
    path.write_text("deviceIterations(3)\n")
    with FROZEN:
        frozen.loadFromFile(str(path))
    with FROZEN:
        frozen.from_json('{"deviceIterations": 3}')
    assert frozen.from_json("{}") is frozen


def test_the_message_says_what_to_do(frozen):
    with pytest.raises(AttributeError, match=r"device_iterations.*clone\(\)"):
        frozen.deviceIterations(2)
