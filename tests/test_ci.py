"""``.ci/run``: failed tests run once more only if each of them carries the mark ``flaky`` with a reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

HOOKS = """\
from flakiness import check_reasons, pytest_runtest_makereport, pytest_terminal_summary

def pytest_collection_modifyitems(items):
    check_reasons(items)
"""
TESTS = """
import pytest

def test_good(): pass

@pytest.mark.flaky("the weather")
def test_moody(): assert {moody}

def test_steady(): assert {steady}
"""


def pytest_in(folder: Path, tests: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    (folder / "conftest.py").write_text(HOOKS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    flaky: why\n")
    (folder / "test_it.py").write_text(tests)
    report = folder / "failures"
    report.touch()
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "TEST_FAILURES": str(report)}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading the others takes longer than all this
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist.plugin", *arguments]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60)
    return done, report.read_text().splitlines()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_report_tells_flaky_failures_from_others(tmp_path: Path, workers: str) -> None:
    _, failed = pytest_in(tmp_path, TESTS.format(moody=False, steady=False), "-n", workers)
    assert sorted(failed) == ["flaky test_it.py::test_moody", "steady test_it.py::test_steady"]


def test_nothing_is_reported_without_failures(tmp_path: Path) -> None:
    done, failed = pytest_in(tmp_path, TESTS.format(moody=True, steady=True))
    assert (done.returncode, failed) == (0, [])


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ("import no_such_module\n", []),  # pytest gives up before it runs anything
        ("import pytest\n@pytest.fixture\ndef bad(): raise OSError\ndef test_it(bad): pass\n", ["steady"]),
    ],
)
def test_errors_are_never_flaky(tmp_path: Path, tests: str, expected: list[str]) -> None:
    done, failed = pytest_in(tmp_path, tests)
    assert done.returncode != 0
    assert [line.split()[0] for line in failed] == expected


@pytest.mark.parametrize("mark", ["flaky", "flaky()", "flaky('')", "flaky(' ')", "flaky(reason='')", "flaky(3)"])
def test_the_mark_needs_a_reason(tmp_path: Path, mark: str) -> None:
    done, _ = pytest_in(tmp_path, f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "say why it is flaky" in done.stdout + done.stderr


MAKE = """#!/usr/bin/env bash
echo "make $*" >>"$PWD/calls"
case "$*" in
    lint) ;;
    test) printf "$FAILURES" >"$TEST_FAILURES"; echo "FAILED tests/a"; echo "1 failed"; exit 2 ;;
    *) echo "1 passed"; exit "$SECOND" ;;
esac
"""


def run_script(folder: Path, failures: str, second: int = 0) -> tuple[int, list[str]]:
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "bin").mkdir()
    (folder / "bin" / "make").write_text(MAKE)
    installed = ("mpirun", "chromium", "chromedriver")  # there already: nothing is to be installed
    for program in installed:
        (folder / "bin" / program).write_text("#!/bin/sh\n")
    for program in ("make", *installed):
        (folder / "bin" / program).chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "FAILURES": failures, "SECOND": str(second)}
    done = subprocess.run([folder / ".ci" / "run"], env=variables, capture_output=True, text=True, timeout=60)
    assert "FAILED tests/a" in done.stdout.splitlines()[-2:]
    return done.returncode, (folder / "calls").read_text().splitlines()


ALONE = "make test WORKERS=0 ARGS=--last-failed --last-failed-no-failures none"


@pytest.mark.parametrize("second", [0, 2])
def test_flaky_failures_alone_get_a_second_run_that_decides(tmp_path: Path, second: int) -> None:
    status, calls = run_script(tmp_path, "flaky tests/a\\nflaky tests/b\\n", second)
    assert (status, calls) == (second, ["make lint", "make test", ALONE])


@pytest.mark.parametrize("failures", ["steady tests/a\\n", "flaky tests/b\\nsteady tests/a\\n", ""])
def test_other_failures_stay_failures(tmp_path: Path, failures: str) -> None:
    status, calls = run_script(tmp_path, failures)
    assert status != 0
    assert calls == ["make lint", "make test"]
