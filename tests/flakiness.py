"""Tests that may fail for reasons outside of the package carry ``@pytest.mark.flaky(reason)``.

A run that sets ``TEST_FAILURES`` to the name of a file finds there a line for each test that failed: ``flaky`` or
``steady``, and its name. ``.ci/run`` runs failed tests once more only if all of them are flaky. The file stays empty
when pytest did not run to its end.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

# Taken out of the environment: workers, and runs of pytest that tests start, must not write to the file.
_failures_file = os.environ.pop("TEST_FAILURES", None)


def check_reasons(items: list[pytest.Item]) -> None:
    """Refuse the mark without a reason."""
    for item in items:
        for mark in item.iter_markers("flaky"):
            reason = mark.args[0] if len(mark.args) == 1 and not mark.kwargs else mark.kwargs.get("reason")
            if not isinstance(reason, str) or not reason.strip():
                raise pytest.UsageError(f"{item.nodeid}: say why it is flaky: @pytest.mark.flaky('...')")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let reports know of the mark, also those that come from other processes."""
    report = yield
    report.flaky = item.get_closest_marker("flaky") is not None
    return report


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    """Write the file."""
    if _failures_file is None or exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    with open(_failures_file, "w", encoding="utf-8") as file:
        for report in failed:
            file.write(f"{'flaky' if getattr(report, 'flaky', False) else 'steady'} {report.nodeid}\n")
