"""What ``mypy --strict`` says about a user's script: nothing when it is right, the line when a name is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("user_script.py")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of mypy for the module: torch is read once."""
    return tmp_path_factory.mktemp("mypy")


def checked(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(cache), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=path.parent)


@pytest.mark.slow
@pytest.mark.timeout(400)  # the first run reads the types of torch
def test_a_correct_script_has_no_errors_and_a_wrong_name_is_found(cache: Path, tmp_path: Path) -> None:
    done = checked(SCRIPT, cache)
    assert done.returncode == 0, done.stdout

    text = SCRIPT.read_text(encoding="utf-8")
    mistakes = {
        "deviceIterations(4)": "deviceIteration(4)",
        "Training.gradientAccumulation(2)": "Training.gradientAcumulation(2)",
        "Precision.setPartialsType": "Precision.setPartialType",
        "poptorch.OutputMode.All": "poptorch.OutputMode.Everything",
        "randomSeed(42)": 'randomSeed("42")',
        "poptorch.__version__": "poptorch.version",
        "poptorch.identity_loss": "poptorch.identityLoss",
    }
    lines = set()
    for right, wrong in mistakes.items():
        assert right in text
        lines.add(text[: text.index(right)].count("\n") + 1)
        text = text.replace(right, wrong)
    broken = tmp_path / "broken.py"
    broken.write_text(text, encoding="utf-8")
    found = {int(line) for line in re.findall(r"broken\.py:(\d+): error", checked(broken, cache).stdout)}
    assert lines <= found
