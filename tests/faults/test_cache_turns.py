"""The process that compiles for all is halted: the others compile themselves, and say why."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from pathlib import Path

import pytest

import preloaded
from poptorch import launchers
from poptorch.host.store import cache, turn

PATIENCE = 100.0

HOLDER = """
import os, pathlib, signal, sys
from poptorch.host.store import cache
with cache.one_at_a_time(sys.argv[1], "a model", 3):
    print("locked", flush=True)
    pathlib.Path(sys.argv[1], "mark").touch()
    signal.pause()
"""


@pytest.fixture
def holder(tmp_path: Path):
    """A process that has the lock."""
    process = preloaded.start(["-c", textwrap.dedent(HOLDER), str(tmp_path)])
    try:
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "mark").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_one_that_compiles_is_stopped(holder, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(turn, "STOPPED_SECONDS", 0.3)
    os.kill(holder.pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    while launchers.state_of(holder.pid) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with cache.one_at_a_time(str(tmp_path), "a model", 3):
        pass
    assert f"This process compiles the model itself: process {holder.pid}" in caplog.text
    assert "is stopped" in caplog.text


def test_the_one_that_compiles_takes_too_long(holder, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("POPTORCH_DISTRIBUTED_TIMEOUT", "1")
    with cache.one_at_a_time(str(tmp_path), "a model", 3):
        pass
    assert f"process {holder.pid} has kept" in caplog.text
    assert "POPTORCH_DISTRIBUTED_TIMEOUT" in caplog.text


def test_the_one_that_compiles_is_killed(holder, tmp_path, caplog) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    with cache.one_at_a_time(str(tmp_path), "a model", 3):
        pass
    assert "itself" not in caplog.text
