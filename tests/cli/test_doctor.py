"""``poptorch``: one command with sub-commands; ``doctor`` says what a bug report needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import poptorch
from poptorch.cli import doctor, main


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"poptorch {poptorch.__version__}\n"


def test_doctor_names_versions_processor_compiler_and_settings(capsys, monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 7}')
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["versions"]["torch"] == torch.__version__
    assert told["versions"]["poptorch"].startswith(poptorch.__version__)
    assert told["machine"]["processor"]
    assert told["native code"]["C++ compiler"]
    assert told["options that differ from the defaults"] == {"device_iterations": "7"}
    assert told["environment variables"]["POPTORCH_SYSTEM"] == "pod4"
    assert told["virtual IPUs"]["system"].startswith("pod4: 4")
    assert told["problems"] == []


def test_doctor_reports_problems_and_ends_with_one(capsys, monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIteration": 7}')
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod5")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "There is no C++ compiler" in text
    assert "pod5" in text.partition("Problems:")[2]
    assert "poptorch.Options() fails: Invalid attribute deviceIteration" in text


def test_a_compiler_that_does_not_run_is_said(tmp_path, monkeypatch):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(broken))
    sections, _ = doctor.findings()
    assert "does not run" in sections["native code"]["C++ compiler"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_flags(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "doctor" in script
    assert "--older-than" in script


def test_completion_without_its_package_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install shtab" in capsys.readouterr().err


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m poptorch devices --json | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")
