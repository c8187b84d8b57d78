"""Settings from configuration files and from JSON."""

from __future__ import annotations

import json

import pytest
import torch

import poptorch


@pytest.fixture
def load(tmp_path):
    def load(text, options=None, **how):
        path = tmp_path / "tmp.conf"
        path.write_text(text)
        return (options or poptorch.Options()).loadFromFile(str(path), **how)

    return load


def test_indented_lines_blank_lines_and_comments(load):
    opts = load(
        """
        deviceIterations(1)
        setExecutionStrategy(poptorch.ShardedExecution())
              \t
        # a comment
        replicationFactor(4)  # another one
        Training.gradientAccumulation(8)
        enableSyntheticData(True)
        log_dir = "/tmp/x"
        """
    )
    assert isinstance(opts.execution_strategy, poptorch.ShardedExecution)
    assert (opts.device_iterations, opts.replication_factor, opts.log_dir) == (1, 4, "/tmp/x")
    assert opts.Training.gradient_accumulation == 8
    assert opts._Popart.options["syntheticDataMode"] == 2


def test_a_second_file_changes_only_what_it_mentions(load):
    opts = load("deviceIterations(3)\nreplicationFactor(2)\n")
    assert load("replicationFactor(4)\n", opts) is opts
    assert (opts.device_iterations, opts.replication_factor) == (3, 4)


def test_a_syntax_error_names_the_kept_line_and_applies_nothing(load):
    opts = poptorch.Options()
    with pytest.raises(poptorch.ConfigFileError) as caught:
        load(
            "deviceIterations(1)\n"
            "setExecutionStrategy(poptorch.ShardedExecution())\n"
            "\n"
            "# comment\n"
            "replicationFactor(4)\n"
            "enableSyntheticData(True)\n"
            "outputMode(poptorch.OutputMode.All",
            opts,
        )
    expected = (
        "SyntaxError at line 5 of tmp.conf: unexpected EOF while parsing\n> options.outputMode(poptorch.OutputMode.All"
    )
    assert expected in str(caught.value)
    assert "Line 7 of the file" in str(caught.value)
    assert opts.replication_factor == 1


def test_other_syntax_errors_keep_pythons_own_words(load):
    with pytest.raises(poptorch.ConfigFileError, match=r"SyntaxError at line 2 of tmp.conf: .*syntax.*\n> options"):
        load("deviceIterations(1)\ndeviceIterations 4\n")


def test_statements_do_not_continue_on_the_next_line(load):
    with pytest.raises(poptorch.ConfigFileError, match=r"line 1 of tmp.conf.*\n> options.outputMode\("):
        load("outputMode(\n    poptorch.OutputMode.All)\n")


def test_other_errors_come_through_and_earlier_lines_stay(load):
    opts = poptorch.Options()
    with pytest.raises(AttributeError, match=r"Invalid attribute deviceIteration.*Did you mean") as caught:
        load("replicationFactor(2)\ndeviceIteration(4)\nreplicationFactor(8)\n", opts)
    assert opts.replication_factor == 2
    if hasattr(caught.value, "__notes__"):
        assert "line 2" in caught.value.__notes__[0]
    with pytest.raises(AssertionError, match="Unexpected type"):
        load("deviceIterations('4')\n")
    with pytest.raises(ValueError, match="accumulationAndReplicationReductionType"):
        load("Training.accumulationAndReplicationReductionType(3)\n")


def test_only_poptorch_options_and_builtins_are_in_scope(load):
    with pytest.raises(NameError):
        load("Precision.setPartialsType(torch.half)\n")
    text = "deviceIterations(max(2, options.replication_factor))\n"
    assert load(text, trusted=True).device_iterations == 2
    with pytest.raises(poptorch.ConfigFileError, match="uses the function 'max'"):
        load(text)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        poptorch.Options().loadFromFile(str(tmp_path / "nope.conf"))


# --- JSON ---------------------------------------------------------------------------------------------------


def test_json_calls_setters_in_order():
    opts = poptorch.Options()
    text = json.dumps(
        {
            "replicationFactor": 4,
            "inputReplicaGrouping": [2, "CommGroupType.Orthogonal"],
            "Training.gradientAccumulation": 8,
            "outputMode": "OutputMode.Sum",
            "setAvailableMemoryProportion": {"IPU0": 0.5},
            "disableModuleNamescope": [],
            "_Popart.set": ["autoRecomputation", 3],
            "logDir": "OutputMode.Nope",
            "modelName": "some.name",
        }
    )
    assert opts.from_json(text) is opts
    same = poptorch.Options().replicationFactor(4)
    same.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal).outputMode(poptorch.OutputMode.Sum)
    same.Training.gradientAccumulation(8)
    same.setAvailableMemoryProportion({"IPU0": 0.5}).logDir("OutputMode.Nope").modelName("some.name")
    same._Popart.set("autoRecomputation", 3)
    assert repr(opts) == repr(same)
    assert not opts.module_namescope_enabled


def test_enum_text_inside_arrays_is_converted():
    opts = poptorch.Options().from_json('{"outputMode": ["OutputMode.EveryN", 3]}')
    assert (opts.output_mode, opts.output_return_period) == (poptorch.OutputMode.EveryN, 3)


@pytest.mark.parametrize(
    ("text", "error", "phrase"),
    [
        ("", json.JSONDecodeError, "Expecting value"),
        ("{'a': 1}", json.JSONDecodeError, "Expecting property name"),
        ("[1]", ValueError, "expected a JSON object"),
        ('{"deviceIteration": 1}', AttributeError, "Invalid attribute deviceIteration"),
        ('{"deviceIteration": 1}', AttributeError, "Did you mean 'deviceIterations'"),
        ('{"Training.nope": 1}', AttributeError, "Invalid attribute nope"),
        ('{"_Popart.nope": 1}', AttributeError, "Invalid attribute nope"),
        ('{"device_iterations": 1}', AttributeError, "Invalid attribute device_iterations"),
        ('{"Training": 1}', AttributeError, "Invalid attribute Training"),
        ('{"__class__": 1}', AttributeError, "Invalid attribute __class__"),
        ('{"deviceIterations": "four"}', AssertionError, "Unexpected type"),
        ('{"deviceIterations": [1, 2]}', TypeError, "deviceIterations"),
    ],
)
def test_wrong_json(text, error, phrase):
    with pytest.raises(error, match=phrase):
        poptorch.Options().from_json(text)


def test_null_is_none():
    assert poptorch.Options().from_json('{"maxRepeatLogs": null}').max_repeat_logs == 2**64 - 1


def test_torch_types_have_no_json_form():
    with pytest.raises(ValueError, match="parameter to setPartialsType should be either"):
        poptorch.Options().from_json('{"Precision.setPartialsType": "half"}')
    assert poptorch.Options().Precision.setPartialsType(torch.half) is not None
