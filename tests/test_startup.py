"""What importing the package does to the process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import poptorch
import preloaded
from poptorch import startup


def test_the_version_has_a_build_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+-\w+", poptorch.__version__)


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.1", "2.14.0.dev20261101", "3.0.0", "unknown"])
def test_this_torch_and_newer_ones_are_accepted(version: str) -> None:
    startup.check_torch(version)


@pytest.mark.parametrize("version", ["1.10.0", "2.0.1", "2.12.1+cpu"])
def test_an_older_torch_is_refused_with_both_versions(version: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(version)) as caught:
        startup.check_torch(version)
    assert "2.13" in str(caught.value)


ROOT = Path(__file__).resolve().parent.parent
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_metadata_demand_the_torch_that_the_import_demands() -> None:
    (demand,) = [text for text in METADATA["project"]["dependencies"] if text.startswith("torch")]
    assert demand == f"torch>={'.'.join(map(str, startup.MINIMUM_TORCH))}"
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    startup.check_torch(pinned)


def test_one_oldest_python_is_named_everywhere() -> None:
    oldest = METADATA["project"]["requires-python"].removeprefix(">=")
    assert METADATA["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert METADATA["tool"]["mypy"]["python_version"] == oldest
    assert f"# Needs Python >= {oldest} with" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"Python {oldest} or newer" in (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [ROOT / "README.md", ROOT / "Makefile", *(ROOT / "docs").glob("*.md")]
    named = {page.name: set(re.findall(r"Python (?:>= )?(3\.\d+)", page.read_text(encoding="utf-8"))) for page in pages}
    assert {page: versions for page, versions in named.items() if versions - {oldest}} == {}


def test_fork_safety_is_set_unless_chosen() -> None:
    code = "import os, poptorch; print(os.environ['RDMAV_FORK_SAFE'])"
    clean = {name: text for name, text in os.environ.items() if name != "RDMAV_FORK_SAFE"}
    for chosen, expected in ({}, "1\n"), ({"RDMAV_FORK_SAFE": "0"}, "0\n"):
        assert preloaded.run(["-c", code], env={**clean, **chosen}).stdout == expected


def test_sigterm_shows_the_stack_and_still_ends_the_process() -> None:
    code = "import poptorch, time\ndef busy():\n    print('ready', flush=True)\n    time.sleep(60)\nbusy()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=30)
    assert child.returncode == -signal.SIGTERM
    assert "in busy" in err


def test_a_stderr_without_descriptor_is_no_problem() -> None:
    code = "import sys, io; sys.stderr = io.StringIO(); import poptorch; print('fine')"
    assert preloaded.run(["-c", code]).stdout == "fine\n"


def test_importing_again_keeps_one_handler_and_one_hook() -> None:
    startup.prepare_process()
    startup.prepare_process()
    assert startup._previous_hook is not startup.log_uncaught
    assert len(poptorch.logger.handlers) == 1


LATE = (
    # rooms that compile and run models, and what few programs ask for
    *(f"poptorch.{room}" for room in ("capture", "compiler", "executable", "executor", "host", "program", "runtime")),
    *(f"poptorch.{room}" for room in ("debug", "distributed", "experimental", "ipu_model", "report", "schedule")),
    *(f"poptorch.{room}" for room in ("cli", "testing")),
    # parts of torch that take long to import, and that nothing but the rooms above needs
    "torch._inductor",
    "torch.utils.tensorboard",
    "torch.distributed.distributed_c10d",
    "matplotlib",
    "tqdm",
)


def test_what_compiles_and_runs_models_is_loaded_late() -> None:
    """Programs that make options and data loaders do not load it either, and its names are there all along."""
    code = f"""
import sys
import torch
before = set(sys.modules)
import poptorch
poptorch.Options().deviceIterations(2)
poptorch.DataLoader(poptorch.Options(), [1, 2], 1)
print([name for name in {LATE!r} if name in set(sys.modules) - before])
assert {{"PoplarExecutor", "autoPipeline", "debug", "inferenceModel", "load", "trainingModel"}} <= set(dir(poptorch))
print(poptorch.trainingModel.__module__)
print(poptorch.experimental.IPUScope.__name__, poptorch.distributed.Partition.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\npoptorch.executor.wrapping\nIPUScope Partition\n", done.stderr
