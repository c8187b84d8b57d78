"""Workers whose failures cannot travel, and workers that are halted: the consumer hears of both."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch

import poptorch
from poptorch import launchers
from poptorch.data import workers

# torch raises errors about workers where the signal of their end arrives, be it a callback of gc or its own __del__.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ASYNC = {"mode": poptorch.DataLoaderMode.Async, "async_options": {"sharing_strategy": poptorch.SharingStrategy.Fork}}


class Fails(torch.utils.data.Dataset[torch.Tensor]):
    """Raises an exception whose class no other process can have."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        class OwnError(Exception):
            pass

        if index >= 4:
            raise OwnError("the file is missing")
        return torch.tensor(index)


class Stops(torch.utils.data.Dataset[torch.Tensor]):
    """Halts the process that loads it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.tensor(index)


def load(dataset: Any, **arguments: Any) -> None:
    with poptorch.DataLoader(poptorch.Options(), dataset, batch_size=2, **arguments) as loader:
        for _ in loader:
            pass


@pytest.mark.parametrize("mode", [{}, ASYNC], ids=["sync", "async"])
def test_an_exception_whose_class_cannot_travel_arrives(mode: dict[str, Any]) -> None:
    with pytest.raises((RuntimeError, AssertionError), match="the file is missing") as error:
        load(Fails(), num_workers=1, **mode)
    assert "OwnError" in str(error.value)


def test_the_users_own_function_is_called_first_as_before(tmp_path: Any) -> None:
    load([torch.ones(1)] * 4, num_workers=2, worker_init_fn=lambda number: (tmp_path / str(number)).touch())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("how", [{"num_workers": 1}, ASYNC, {"num_workers": 1, **ASYNC}], ids=["sync", "async", "both"])
def test_a_worker_that_is_halted(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STOPPED_S", 0.5)
    monkeypatch.setattr(workers, "LOOK_S", 0.3)
    with pytest.raises((RuntimeError, AssertionError), match=r"No data has come .*: process \d+ is stopped"):
        load(Stops(), **how)


def test_the_state_is_in_the_error_of_a_time_limit() -> None:
    with pytest.raises(RuntimeError, match=r"(after 3 seconds|more than 3 s): process \d+ is stopped"):
        load(Stops(), num_workers=1, timeout=3)


def test_a_worker_that_goes_on_is_no_problem(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(workers, "STOPPED_S", 0.3)
    watch, pid = workers.StoppedWatch(), os.fork()
    if pid == 0:
        while True:
            signal.pause()
    try:
        for _ in range(2):
            os.kill(pid, signal.SIGSTOP)
            until_state(pid, "T")
            assert not watch.problem([pid])
            os.kill(pid, signal.SIGCONT)
            until_state(pid, "SR")
            time.sleep(0.2)
            assert not watch.problem([pid])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert caplog.text.count(f"process {pid} is stopped") == 2


def until_state(pid: int, states: str) -> None:
    deadline = time.monotonic() + 30
    while launchers.state_of(pid) not in states:
        assert time.monotonic() < deadline
        time.sleep(0.01)
