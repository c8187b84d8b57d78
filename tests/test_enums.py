"""Members and values of the enumerations, written out again from the contract."""

from __future__ import annotations

import enum

import pytest

import poptorch
from poptorch import enums

VALUES = {
    "OutputMode": {"Final": 0, "EveryN": 1, "All": 2, "Sum": 3, "Default": 4},
    "ConnectionType": {"Always": 0, "OnDemand": 1, "Never": 2},
    "SyncPattern": {"Full": 0, "SinglePipeline": 1, "ReplicaAndLadder": 2},
    "ReductionType": {"Sum": 0, "Mean": 1, "NoReduction": 2},
    "MeanReductionStrategy": {"Running": 0, "Post": 1, "PostAndLoss": 2},
    "HalfFloatCastingBehavior": {"FloatDowncastToHalf": 0, "HalfUpcastToFloat": 1, "Default": 2},
    "DataLoaderMode": {"Sync": 0, "Async": 1, "AsyncRebatched": 2},
    "SharingStrategy": {"SharedMemory": 0, "FileSystem": 1, "Fork": 2, "ForkServer": 3},
    "Liveness": {
        "AlwaysLive": 0,
        "OffChipAfterFwd": 1,
        "OffChipAfterFwdNoOverlap": 2,
        "OffChipAfterEachPhase": 3,
    },
    "AutoStage": {"SameAsIpu": 0, "AutoIncrement": 1},
    "MultiConvPlanType": {"Parallel": 0, "Serial": 1},
    "Compiler": {"PopART": 0, "MLIR": 1},
    "CommGroupType": {"All": 0, "Consecutive": 1, "Orthogonal": 2, "NoGrouping": 3},
    "VariableRetrievalMode": {"OnePerGroup": 0, "AllReplicas": 2},
    "OverlapMode": {
        "NoOverlap": "no_overlap",
        "OverlapAccumulationLoop": "overlap_accumulation_loop",
        "OverlapDeviceIterationLoop": "overlap_device_iteration_loop",
    },
    "MatMulSerializationMode": {
        "InputChannels": "input_channels",
        "ReducingDim": "reducing_dim",
        "OutputChannels": "output_channels",
        "Disabled": "none",
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_members_and_values(name):
    kind = getattr(enums, name)
    assert {member.name: member.value for member in kind} == VALUES[name]
    assert getattr(poptorch, name) is kind
    assert issubclass(kind, enum.IntEnum) == all(isinstance(value, int) for value in VALUES[name].values())
    assert kind.__doc__


def test_there_are_no_others():
    public = {
        name for name, value in vars(enums).items() if isinstance(value, enum.EnumMeta) and not name.startswith("_")
    }
    assert public == set(VALUES)


@pytest.mark.parametrize("module", [poptorch, enums])
def test_names_of_earlier_releases_work_and_warn(module, caplog):
    assert module.AnchorMode is enums.OutputMode
    assert "[Deprecated]" in caplog.text
    assert "OutputMode" in caplog.text
    caplog.clear()
    partials = module.MultiConvPartialsType
    assert {member.name: member.value for member in partials} == {"Float": 0, "Half": 1}
    assert "[Deprecated]" in caplog.text


@pytest.mark.parametrize("module", [poptorch, enums])
def test_other_names_do_not_exist(module):
    with pytest.raises(AttributeError, match="NoSuchMode"):
        _ = module.NoSuchMode


def test_star_import_does_not_warn(caplog):
    names: dict[str, object] = {}
    exec("from poptorch import *", names)
    assert "OutputMode" in names
    assert "AnchorMode" not in names
    assert "[Deprecated]" not in caplog.text
