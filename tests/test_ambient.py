"""Whether code runs under capture, and interrupting one."""

from __future__ import annotations

import threading

import poptorch
from poptorch import ambient


def test_only_the_capturing_thread_runs_on_the_ipu() -> None:
    seen: list[bool] = []
    with ambient.capturing(ambient.CaptureContext()):
        assert poptorch.isRunningOnIpu()
        other = threading.Thread(target=lambda: seen.append(poptorch.isRunningOnIpu()))
        other.start()
        other.join(timeout=10)
    assert seen == [False]
    assert not poptorch.isRunningOnIpu()


def test_host_code_inside_a_capture_is_not_on_the_ipu() -> None:
    with ambient.capturing(ambient.CaptureContext()) as context:
        with ambient.capturing(None):
            assert not poptorch.isRunningOnIpu()
        assert ambient.current() is context
