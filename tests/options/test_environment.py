"""Environment variables and what wins over what."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch

import poptorch
from poptorch import environment, launchers


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for variable in environment.VARIABLES:
        if not variable.name.startswith("POPTORCH_LOG"):
            monkeypatch.delenv(variable.name, raising=False)
    for launcher in launchers.LAUNCHERS:
        for name in (launcher.num_processes, launcher.process_id):
            monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(("text", "on"), [("0", False), ("1", True), ("7", True), ("-1", True), ("00", False)])
def test_flags(monkeypatch, text, on):
    monkeypatch.setenv("POPTORCH_IPU_MODEL", text)
    assert environment.IPU_MODEL.read() is on


@pytest.mark.parametrize("text", ["yes", "", "0x1", "1.0"])
def test_text_that_is_not_a_number_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("POPTORCH_IPU_MODEL", text)
    with pytest.raises(poptorch.Error, match="POPTORCH_IPU_MODEL"):
        environment.IPU_MODEL.read()


def test_the_small_model_counts_only_while_the_full_one_is_off(monkeypatch):
    assert environment.ipu_model_request() == environment.ModelRequest(enabled=False, small=False)
    monkeypatch.setenv("POPTORCH_SMALL_IPU_MODEL", "1")
    assert environment.ipu_model_request() == environment.ModelRequest(enabled=True, small=True)
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert environment.ipu_model_request() == environment.ModelRequest(enabled=True, small=False)


def test_model_versions(monkeypatch):
    assert environment.ipu_model_version() == "ipu2"
    for name in ("ipu1", "ipu2", "ipu21", "my-ipu:arch"):
        monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", name)
        assert environment.ipu_model_version() == name
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "gpu")
    with pytest.raises(poptorch.Error, match=r"Invalid IPU model version\."):
        environment.ipu_model_version()
    monkeypatch.setenv("POPTORCH_SMALL_IPU_MODEL", "1")
    assert environment.ipu_model_version() == "gpu"


def test_the_model_version_is_checked_at_compilation_for_the_model_only(monkeypatch):
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "gpu")
    poptorch.inferenceModel(torch.nn.ReLU()).compile(torch.ones(2))
    options = poptorch.Options().useIpuModel(True)
    with pytest.raises(poptorch.Error, match=r"Invalid IPU model version\."):
        poptorch.inferenceModel(torch.nn.ReLU(), options).compile(torch.ones(2))


def test_every_variable_is_documented_and_reads_its_default():
    for variable in environment.VARIABLES:
        assert variable.doc
        assert variable.accepts
        assert variable.read_at
        if not variable.name.startswith("POPTORCH_LOG"):
            assert variable.read() == variable.default
    names = [variable.name for variable in environment.VARIABLES]
    assert len(names) == len(set(names))


SRC = Path(poptorch.__file__).parent


def names_in(tree: ast.AST) -> set[str]:
    """What a piece of code says of the environment: ``environment.NAME``, ``NAME``, and texts that it looks up."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "environment":
            found.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get":
            found |= {text.value for text in node.args if isinstance(text, ast.Constant)}
    return found


def test_every_variable_is_read_outside_of_the_list_of_them():
    def tree(path: Path) -> ast.Module:
        return ast.parse(path.read_text(encoding="utf-8"))

    own = SRC / "environment.py"
    used = set().union(*(names_in(tree(path)) for path in SRC.rglob("*.py") if path != own))
    functions = {node.name: names_in(node) for node in tree(own).body if isinstance(node, ast.FunctionDef)}
    for _ in functions:  # they call each other
        used = used.union(*(names for function, names in functions.items() if function in used))
    constants = {name: value for name, value in vars(environment).items() if isinstance(value, environment.Variable)}
    assert sorted(v.name for v in constants.values()) == sorted(v.name for v in environment.VARIABLES)
    never = [name for name, variable in constants.items() if not {name, variable.name} & used]
    assert not never, f"documented and never read: {never}"


# --- Options ------------------------------------------------------------------------------------------------


def test_the_cache_directory_is_taken_at_construction_and_later_calls_win(monkeypatch, caplog):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/tmp/a")
    with caplog.at_level("INFO", logger="poptorch::python"):
        opts = poptorch.Options()
    assert "POPTORCH_CACHE_DIR is set" in caplog.text
    assert opts._Popart.options["cachePath"] == "/tmp/a"
    assert opts._Popart.options["enableEngineCaching"] is True
    opts.enableExecutableCaching(None)
    assert opts._Popart.options["enableEngineCaching"] is False
    assert opts._Popart.options["cachePath"] == "/tmp/a"
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "")
    assert "cachePath" not in poptorch.Options()._Popart.options


@pytest.mark.parametrize(
    "settings",
    [
        {"deviceIterations": 4},
        {"Training.gradientAccumulation": 8},
        {"connectionType": "ConnectionType.OnDemand"},
        {"_Popart.set": ["autoRecomputation", 3]},
    ],
)
def test_default_options_print_like_the_same_calls(monkeypatch, settings):
    configured = poptorch.Options().from_json(json.dumps(settings))
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", json.dumps(settings))
    assert repr(poptorch.Options()) == repr(configured)


def test_default_options_come_after_the_cache_directory_and_before_calls(monkeypatch):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/tmp/a")
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"enableExecutableCaching": "/tmp/b", "deviceIterations": 3}')
    opts = poptorch.Options().deviceIterations(5)
    assert opts._Popart.options["cachePath"] == "/tmp/b"
    assert opts.device_iterations == 5


@pytest.mark.parametrize("text", ["", "{", "deviceIterations(4)"])
def test_default_options_that_are_not_json(monkeypatch, text):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    with pytest.raises(json.JSONDecodeError, match="POPTORCH_DEFAULT_OPTIONS"):
        poptorch.Options()


def test_process_numbers_come_from_mpi(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = poptorch.Options().Distributed
    assert (distributed.numProcesses, distributed.processId) == (4, 3)
    monkeypatch.setenv("MY_SIZE", "2")
    assert distributed.setEnvVarNames("MY_SIZE", "MY_RANK") is distributed
    assert (distributed.numProcesses, distributed.processId) == (2, 0)
    distributed.configureProcessId(1, 2).disable()
    assert (distributed.numProcesses, distributed.processId) == (1, 0)


def test_process_numbers_that_are_not_numbers(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "many")
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_SIZE"):
        poptorch.Options()
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE")
    opts = poptorch.Options()
    monkeypatch.setenv("MY_RANK", "first")
    before = repr(opts)
    with pytest.raises(ValueError, match="MY_RANK"):
        opts.Distributed.setEnvVarNames("MY_SIZE", "MY_RANK")
    assert repr(opts) == before


def test_profiling_warns_when_the_environment_decides(monkeypatch, caplog):
    poptorch.Options().enableProfiling()
    assert not caplog.text
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.directory": "/tmp/x"}')
    poptorch.Options().enableProfiling("mine")
    assert "Check content of POPLAR_ENGINE_OPTIONS" in caplog.text


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}, (4, 2)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (1, 0)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"}, (8, 5)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (1, 0)),
        ({"PMI_SIZE": "3", "PMI_RANK": "1"}, (3, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "RANK": "0", "WORLD_SIZE": "9"}, (2, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, (2, 0)),
    ],
)
def test_launchers_are_recognised(monkeypatch, variables, expected):
    for name in ("MASTER_ADDR", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    distributed = poptorch.Options().Distributed
    assert (distributed.numProcesses, distributed.processId) == expected
    distributed.disable()
    assert (distributed.numProcesses, distributed.processId) == (1, 0)
