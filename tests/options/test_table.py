"""Every row of the option table, one by one: its setter stores, refuses, chains and freezes as it says."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import pytest

import poptorch
from poptorch.options.rows import ABSENT, Option
from poptorch.options.table import OPTIONS, keys_of, rows_of

ROWS = pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.qualified_name)
PLAIN_OWNERS = {"Options", "TensorLocationSettings"}


def root_and_owner(row: Option) -> tuple[Any, Any]:
    """A fresh object, and the part of it that the row's setter belongs to."""
    if row.group == "TensorLocationSettings":
        settings = poptorch.TensorLocationSettings()
        return settings, settings
    options = poptorch.Options()
    return options, options if row.group == "Options" else getattr(options, row.group)


def example_call(row: Option, owner: Any) -> Any:
    import torch

    return eval(f"owner.{row.method}({row.example})", {"poptorch": poptorch, "torch": torch, "owner": owner})


@ROWS
def test_the_example_in_the_documentation_runs_and_shows_what_it_says(row):
    _, owner = root_and_owner(row)
    documentation = getattr(owner, row.method).__doc__
    test = doctest.DocTestParser().get_doctest(documentation, {}, row.method, None, None)
    assert len(test.examples) >= 3
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0
    assert f".{row.method}({row.example})" in documentation


@ROWS
def test_the_signature_is_that_of_the_row(row):
    _, owner = root_and_owner(row)
    parameters = inspect.signature(getattr(owner, row.method)).parameters
    expected = [(parameter.name, parameter.default) for parameter in row.parameters]
    expected += [(old, ABSENT) for old in row.renamed_parameters]
    assert [(name, parameter.default) for name, parameter in parameters.items()] == expected


@ROWS
def test_defaults_are_there_from_the_start_and_optional_keys_are_not(row):
    root, owner = root_and_owner(row)
    for key in row.keys:
        if key.store == "popart":
            held = root._Popart.options
            assert (key.name in held) == (key.default is not ABSENT)
        elif key.store == "python":
            assert repr(getattr(owner, key.name)) == repr(key.default)
        else:
            assert owner.exists(key.name) == (key.default is not ABSENT)
            if key.default is not ABSENT:
                assert owner(key.name) == key.default


@ROWS
def test_the_setter_returns_what_the_row_says(row):
    _, owner = root_and_owner(row)
    returned = example_call(row, owner)
    assert returned is (owner if row.returns_self else None)


@ROWS
def test_wrong_arguments_are_refused_and_change_nothing(row):
    for refusal in row.refusals:
        root, owner = root_and_owner(row)
        before = repr(root)
        with pytest.raises(refusal.error) as caught:
            getattr(owner, row.method)(*refusal.arguments)
        assert refusal.phrase in str(caught.value)
        assert repr(root) == before


@ROWS
def test_a_frozen_object_refuses_before_it_changes_anything(row):
    root, owner = root_and_owner(row)
    root._freeze()
    before = repr(root)
    if not row.blocked_when_frozen:
        example_call(row, owner)
        return
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        example_call(row, owner)
    assert repr(root) == before


@ROWS
def test_a_copy_of_a_frozen_object_can_be_set(row):
    import copy

    root, _ = root_and_owner(row)
    root._freeze()
    duplicate = copy.deepcopy(root)
    owner = duplicate if row.group in PLAIN_OWNERS else getattr(duplicate, row.group)
    example_call(row, owner)


@ROWS
def test_old_names_warn_and_do_what_the_new_ones_do(row, caplog):
    if row.replacement is None:
        return
    old, owner = root_and_owner(row)
    example_call(row, owner)
    assert "[Deprecated]" in caplog.text
    assert row.replacement in caplog.text

    new, owner = root_and_owner(row)
    (successor,) = (other for other in rows_of(row.group) if other.method == row.replacement)
    assert successor.replacement is None
    eval(f"owner.{row.replacement}({row.example})", {"poptorch": poptorch, "owner": owner})
    assert repr(old) == repr(new)


@ROWS
def test_unknown_arguments_are_a_type_error_that_names_the_method(row):
    _, owner = root_and_owner(row)
    with pytest.raises(TypeError, match=row.method):
        getattr(owner, row.method)(no_such_argument=1)


@ROWS
def test_the_row_says_what_happens_on_virtual_ipus(row):
    assert row.effect in ("host", "modelled", "none", "later")
    assert row.effect_note
    assert row.doc


def test_no_setter_is_described_twice():
    names = [row.qualified_name for row in OPTIONS]
    assert len(names) == len(set(names))


def test_keys_that_several_rows_share_agree_on_their_default():
    seen: dict[tuple[str, str], Any] = {}
    for row in OPTIONS:
        for key in row.keys:
            known = seen.setdefault((row.group, key.name), key)
            assert (known.default, known.type, known.store) == (key.default, key.type, key.store)


def test_the_keys_are_those_of_the_contract():
    assert {name for name, key in keys_of("Options").items() if key.default is ABSENT} == {
        "model_name",
        "use_model",
        "ipu_id",
        "ipu_version",
        "random_seed",
    }
    assert poptorch.Options()._values == {
        "replication_factor": 1,
        "device_iterations": 1,
        "broadcast_buffers": True,
        "log_dir": ".",
        "auto_round_num_ipus": False,
        "anchored_tensors": {},
        "output_mode": 4,
        "output_return_period": 1,
        "connection_type": 0,
        "sync_pattern": 0,
        "available_memory_proportion": {},
        "input_group_size": 1,
        "input_cgt": poptorch.CommGroupType.Consecutive,
        "max_repeat_logs": 4,
    }
    opts = poptorch.Options()
    assert opts.Training.toDict() == {
        "gradient_accumulation": 1,
        "accumulation_and_replication_reduction_type": poptorch.ReductionType.Mean,
        "meanAccumulationAndReplicationReductionStrategy": poptorch.MeanReductionStrategy.Post,
    }
    assert opts.TensorLocations.toDict() == {}
    assert opts.Distributed.toDict() == {
        "num_distributed_processes": 1,
        "distributed_process_id": 0,
        "ipuof_configs": {},
    }
    assert opts.Jit.toDict() == {"trace_model": True}
    assert opts._Popart.options == {
        "instrumentWithHardwareCycleCounter": False,
        "rearrangeAnchorsOnHost": False,
    }
    precision = opts.Precision.toDict()
    assert precision.pop("autocast_policy") is poptorch.autocasting.default
    assert precision.pop("autocast_policy_dict") == poptorch.autocasting.default.names()
    assert precision == {
        "autocast_enabled": True,
        "half_float_casting": poptorch.HalfFloatCastingBehavior.Default,
        "running_statistics_always_float": True,
    }
    assert type(opts.output_mode) is int
    assert type(opts.connection_type) is int
