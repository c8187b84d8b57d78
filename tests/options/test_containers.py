"""What all option containers share."""

from __future__ import annotations

import copy
import pickle
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch
from poptorch.options.containers import OptionContainer, suggestion
from poptorch.options.rows import Key
from poptorch.options.table import OPTIONS


def test_an_unknown_name_is_an_attribute_error_with_a_suggestion():
    with pytest.raises(AttributeError, match=r"Invalid attribute device_iteration\. Did you mean 'device_iter"):
        _ = poptorch.Options().device_iteration
    with pytest.raises(AttributeError, match=r"Invalid attribute deviceIteration\. Did you mean 'deviceIter"):
        _ = poptorch.Options().deviceIteration
    with pytest.raises(AttributeError, match=r"Invalid attribute Traning\. Did you mean 'Training'"):
        _ = poptorch.Options().Traning
    with pytest.raises(AttributeError, match=r"Invalid attribute xyz\.$"):
        _ = poptorch.Options().xyz


def test_an_optional_key_is_absent_until_it_is_set():
    opts = poptorch.Options()
    assert not opts.exists("ipu_id")
    with pytest.raises(AttributeError, match=r"Invalid attribute ipu_id\."):
        _ = opts.ipu_id
    opts.useIpuId(3)
    assert opts.exists("ipu_id")
    assert opts.ipu_id == 3
    opts.deleteIfExists("ipu_id")
    opts.deleteIfExists("ipu_id")
    assert not opts.exists("ipu_id")


def test_assignment_is_the_same_as_set():
    opts = poptorch.Options()
    opts.replication_factor = 4
    assert opts("replication_factor") == opts.replication_factor == 4
    with pytest.raises(AssertionError, match="Unexpected type <class 'str'> for option replication_factor"):
        opts.replication_factor = "4"
    with pytest.raises(AssertionError, match=r"Invalid option .*valid options are"):
        opts.replication_facto = 4


def test_assigning_to_a_setter_suggests_the_key():
    with pytest.raises(AssertionError, match="Did you mean 'device_iterations'"):
        poptorch.Options().deviceIterations = 4


def test_set_applies_the_keys_before_the_failing_one():
    opts = poptorch.Options()
    with pytest.raises(AssertionError, match="Invalid option"):
        opts.set(device_iterations=3, no_such_key=1, replication_factor=2)
    assert (opts.device_iterations, opts.replication_factor) == (3, 1)
    assert opts.set(device_iterations=5) is None


def test_set_needs_keys_that_exist_and_create_or_set_does_not():
    opts = poptorch.Options()
    with pytest.raises(AssertionError, match="Invalid option"):
        opts.set(random_seed=3)
    assert opts.createOrSet(random_seed=3, anything=1.5) is None
    assert (opts.random_seed, opts.anything) == (3, 1.5)
    with pytest.raises(AssertionError, match="Unexpected type"):
        opts.createOrSet(anything="text")


def test_integers_are_accepted_again_after_a_bool():
    opts = poptorch.Options().deviceIterations(True).deviceIterations(7)
    assert opts.device_iterations == 7


def test_private_names_must_exist():
    opts = poptorch.Options()
    with pytest.raises(AttributeError, match="Invalid private attribute"):
        opts._no_such_thing = 1
    opts._popart = opts._popart


def test_a_subclass_sets_its_private_names_before_the_base_constructor():
    class Good(poptorch.Options):
        def __init__(self):
            self._mine = 1
            super().__init__()
            self._mine = 2

    class Bad(poptorch.Options):
        def __init__(self):
            super().__init__()
            self._mine = 1

    good = Good()
    assert good._mine == 2
    assert type(good.clone()) is Good
    assert repr(good).startswith("Good(")
    with pytest.raises(AttributeError, match="Invalid private attribute _mine"):
        Bad()


def test_the_class_of_a_group_may_be_replaced():
    class Launched(type(poptorch.Options().Distributed)):
        def disable(self):
            raise RuntimeError("Cannot call `Distributed.disable`")

    opts = poptorch.Options()
    opts.Distributed.configureProcessId(1, 2)
    opts.Distributed.__class__ = Launched
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (1, 2)
    with pytest.raises(RuntimeError, match="Cannot call"):
        opts.Distributed.disable()
    with pytest.raises(RuntimeError, match="Cannot call"):
        copy.deepcopy(opts).Distributed.disable()


def test_groups_are_read_only_properties():
    opts = poptorch.Options()
    with pytest.raises(AssertionError, match="Invalid option Training"):
        opts.Training = opts.Training


def test_update_refuses_common_keys():
    opts = poptorch.Options()
    merged = {"mine": 1}
    assert opts.Training.update(merged) is merged
    assert merged["mine"] == 1
    assert merged["gradient_accumulation"] == 1
    with pytest.raises(AssertionError, match="Can't merge dictionaries, they have some keys in common"):
        opts.Training.update(merged)


def test_equality_is_identity_and_containers_are_true():
    one, other = poptorch.Options(), poptorch.Options()
    assert one != other
    assert bool(poptorch.TensorLocationSettings())
    assert len({one, other}) == 2


def test_to_dict_is_a_new_dictionary():
    training = poptorch.Options().Training
    training.toDict()["gradient_accumulation"] = 9
    assert training.gradient_accumulation == 1


def test_a_key_that_is_called_like_its_setter_is_read_by_calling():
    locations = poptorch.Options().TensorLocations.numIOTiles(64)
    assert callable(locations.numIOTiles)
    assert locations("numIOTiles") == locations.toDict()["numIOTiles"] == 64
    with pytest.raises(AttributeError, match=r"Invalid attribute nope\."):
        locations("nope")


def test_location_setters_keep_a_snapshot():
    where = poptorch.TensorLocationSettings().useOnChipStorage(False)
    locations = poptorch.Options().TensorLocations.setWeightLocation(where)
    where.useOnChipStorage(True).minElementsForOffChip(8)
    assert locations.location_weight == {"onChip": 0}
    assert where.useOnChipStorage(None).toDict() == {"minElementsForOffChip": 8}


# --- printing -----------------------------------------------------------------------------------------------


def test_printing_lists_keys_then_groups_without_addresses():
    text = repr(poptorch.Options().replicationFactor(4))
    assert text.startswith("Options(")
    assert "replication_factor=4" in text
    assert "0x" not in text
    order = [text.index(f" {name}=") for name in ("Distributed", "Jit", "Precision", "TensorLocations", "Training")]
    assert order == sorted(order)
    assert text.index(" _Popart=_PopartOptions(") > order[-1]


def test_equal_settings_print_alike():
    def make():
        return poptorch.Options().setAvailableMemoryProportion({"IPU0": 0.1}).useIpuId(2)

    assert repr(make()) == repr(make())
    assert repr(poptorch.Options()) != repr(make())


# --- copies -------------------------------------------------------------------------------------------------


def test_a_deep_copy_is_independent_and_its_groups_share_its_own_backend_settings():
    opts = poptorch.Options().deviceIterations(2)
    opts.anchorTensor("a", "tensor")
    opts._Popart.set("dummyKey", 1)
    opts._freeze()
    duplicate = copy.deepcopy(opts)
    duplicate.deviceIterations(10)
    duplicate.Distributed.configureProcessId(3, 4)
    duplicate._Popart.set("dummyKey", 2)
    duplicate.Training.gradientAccumulation(5)
    duplicate.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings())
    duplicate.Precision.setPartialsType(torch.half)
    duplicate.anchorTensor("b", "tensor")
    assert duplicate._Popart.options["partialsTypeMatMuls"] == "half"
    assert duplicate.Precision._popart is duplicate._Popart is duplicate._popart
    assert opts.device_iterations == 2
    assert opts._Popart.options["dummyKey"] == 1
    assert "partialsTypeMatMuls" not in opts._Popart.options
    assert list(opts.anchored_tensors) == ["a"]
    assert opts.Distributed.processId == 0


def test_a_shallow_copy_shares_everything():
    opts = poptorch.Options()
    opts._freeze()
    shallow = copy.copy(opts)
    assert shallow.Training is opts.Training
    assert shallow.anchored_tensors is opts.anchored_tensors
    with pytest.raises(AttributeError, match="Can't modify frozen"):
        shallow.deviceIterations(2)


def test_pickling_keeps_values_strategy_and_frozen_flag():
    opts = poptorch.Options().deviceIterations(3).setExecutionStrategy(poptorch.ShardedExecution())
    opts.Precision.autocastPolicy(poptorch.autocasting.Policy(fp16=[torch.matmul]))
    opts._freeze()
    back = pickle.loads(pickle.dumps(opts))
    assert repr(back) == repr(opts)
    assert isinstance(back.execution_strategy, poptorch.ShardedExecution)
    with pytest.raises(AttributeError, match="Can't modify frozen"):
        back.Training.gradientAccumulation(2)
    back._unfreeze()
    back.Precision.enableStochasticRounding(True)
    assert back._Popart.options["enableStochasticRounding"] is True


def test_copies_do_not_read_the_environment_again(monkeypatch):
    opts = poptorch.Options()
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/somewhere")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    for duplicate in (opts.clone(), copy.copy(opts), pickle.loads(pickle.dumps(opts))):
        assert "cachePath" not in duplicate._Popart.options
        assert duplicate.Distributed.numProcesses == 1


def test_options_do_not_share_their_collections():
    one = poptorch.Options()
    one.anchorTensor("a", "b")
    one.appendToLocationExcludes("x")
    other = poptorch.Options()
    assert other.anchored_tensors == {}
    assert "x" not in other.source_location_excludes
    assert one.execution_strategy is not other.execution_strategy


SETTABLE = [row for row in OPTIONS if row.group != "TensorLocationSettings"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(SETTABLE), max_size=8))
def test_copies_of_any_configuration_print_like_the_original(rows):
    opts = poptorch.Options()
    for row in rows:
        owner = "opts" if row.group == "Options" else f"opts.{row.group}"
        eval(f"{owner}.{row.method}({row.example})", {"poptorch": poptorch, "torch": torch, "opts": opts})
    assert repr(opts.clone()) == repr(pickle.loads(pickle.dumps(opts))) == repr(opts)
    opts._freeze()
    frozen = repr(opts)
    assert repr(opts.clone().deviceIterations(77)) != frozen
    assert repr(opts) == frozen


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=10), max_size=5))
def test_suggestions_never_repeat_the_wrong_name(name, known):
    assert f"Did you mean {name!r}?" not in suggestion(name, known)


def test_a_container_of_ones_own():
    class Colours(OptionContainer):
        _declared: ClassVar = {"red": Key("red", 1), "tint": Key("tint", declared=str)}

    colours = Colours(extra=2.5)
    colours.createOrSet(tint="warm")
    assert repr(colours) == "Colours(red=1, extra=2.5, tint='warm')"
    with pytest.raises(AssertionError, match=r"Unexpected type <class 'int'> for option tint\. Expected <class 'str'>"):
        colours.createOrSet(tint=3)
