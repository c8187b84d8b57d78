"""The wheel and the source distribution, as users get them: installed where no checkout is."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

import poptorch

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def ran(command: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, env=variables)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both files, built from what git knows: nothing that lies around gets in."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        original, copy = ROOT / name, source / name
        if original.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(original.read_bytes())
    ran([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)], source)
    return target


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel. It sees torch and the rest beside these tests, but no checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (wheel,) = built.glob("*.whl")
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    ran([*command, "--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check", str(wheel)], folder)
    return folder / "bin"


def test_the_package_comes_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import poptorch, popdist, popart; print(poptorch.__file__, popdist.__file__, popart.__file__)"
    files = ran([str(installed / "python"), "-c", code], tmp_path).stdout.split()
    assert all(file.startswith(str(installed.parent)) for file in files)


def test_the_example_of_the_readme_runs(installed: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (output,) = re.findall(r'```text title="Output"\n(.*?)```', text, re.DOTALL)
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    shown = ran([str(installed / "python"), "example.py"], tmp_path, POPTORCH_CODEGEN="interpret").stdout
    assert shown == output


def test_every_command_runs(installed: Path, tmp_path: Path) -> None:
    scripts = importlib.metadata.distribution("poptorch").entry_points.select(group="console_scripts")
    for script in scripts:
        ran([str(installed / script.name), "--help"], tmp_path)
    for name in ("poptorch", "poprun", "vipu"):
        assert ran([str(installed / name), "--version"], tmp_path).stdout == f"{name} {poptorch.__version__}\n"
    ran([str(installed / "poptorch"), "doctor"], tmp_path)
    assert ran([str(installed / "gc-info"), "--ipu-count"], tmp_path, POPTORCH_SYSTEM="pod4").stdout == "4\n"
    script = tmp_path / "hello.py"
    script.write_text("import popdist; print(popdist.getInstanceIndex())", encoding="utf-8")
    command = [str(installed / "poprun"), "--num-instances", "2", "--num-replicas", "2"]
    printed = ran([*command, str(installed / "python"), str(script)], tmp_path, POPTORCH_SYSTEM="pod4").stdout
    assert {line[-2:] for line in printed.splitlines()} == {":0", ":1"}


def test_reports_have_their_pages(installed: Path, tmp_path: Path) -> None:
    """Templates, styles and scripts are data of the package: a wheel can forget them."""
    (tmp_path / "made.py").write_text(
        "import poptorch, torch\n"
        "options = poptorch.Options().enableProfiling('.')\n"
        "poptorch.inferenceModel(torch.nn.Linear(2, 2), options)(torch.ones(1, 2))\n",
        encoding="utf-8",
    )
    ran([str(installed / "python"), "made.py"], tmp_path, POPTORCH_CODEGEN="interpret")
    assert "Page for browsers" in ran([str(installed / "poptorch"), "report", "."], tmp_path).stdout
    assert list(tmp_path.rglob("*.html"))


def test_the_source_distribution_has_all_tests(built: Path) -> None:
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    assert wanted - names == set()


def test_what_the_wheel_says_about_itself(installed: Path) -> None:
    (folder,) = installed.parent.glob("lib/python*/site-packages/poptorch-*.dist-info")
    about = importlib.metadata.PathDistribution(folder).metadata
    assert "Programming Language :: Python :: 3.11" in about.get_all("Classifier", [])
    assert about["Keywords"]
    assert about["License-Expression"] == "MIT"
