"""Native code that is compiled beside the program, or was left by an earlier one. No compiler is needed to see how."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executor import background, level_change
from poptorch.host import levels
from poptorch.host.store import cache
from poptorch.host.store.code_store import CodeStore, NotStored, StoredCode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

MADE = {"key": StoredCode("null", {"library": b"code"})}
X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def _auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "auto")
    monkeypatch.setenv("POPTORCH_BACKGROUND", "1")
    monkeypatch.setattr(levels, "compiler_exists", lambda: True)
    monkeypatch.setattr(levels, "calls_before_switch", lambda *_: 4)
    monkeypatch.setattr(level_change, "native_code", compiled)
    monkeypatch.setattr(level_change, "BEGIN_AFTER_SECONDS", 1e9)
    monkeypatch.setattr(cache, "local_folder", lambda: None)  # nothing is left for other tests


def compiled(device: Any, code: Any, store: CodeStore, progress: Any, dump: Any = None) -> Any:
    """Stands for a compiler: asks for one piece of code, which it "makes" if it is nowhere."""
    progress.extend(1)
    progress.begin("C++")
    store.obtain("key", None, lambda: None)
    store.finish()
    return dataclasses.replace(code, native_after=None)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def is_native(executor: Any) -> bool:
    return executor.executable.code.native_after is None


def test_the_process_hands_over_what_it_made(monkeypatch):
    def made(device: Any, code: Any, store: CodeStore, progress: Any) -> None:
        assert (device, code) == ("device", "code")
        assert os.nice(0) > 0, "at low priority"
        assert torch.get_num_threads() == 3, "compiled for the threads of the program"
        progress.extend(2)
        progress.begin("step")
        store.known.update(MADE)

    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(background, "native_code", made)
    compiling = background.begin("device", "code")
    assert compiling.take() == MADE
    assert compiling.at == "step (0 of 2 done)"
    assert compiling.is_over


def test_the_process_keeps_nothing_open_that_the_program_closes(monkeypatch):
    monkeypatch.setattr(background, "native_code", lambda *_: time.sleep(60))
    heard, said = os.pipe()
    compiling = background.begin(None, None)
    os.close(said)
    assert os.read(heard, 1) == b""  # the end, while the other process still works
    assert not compiling.is_over
    compiling.close()
    os.close(heard)


@pytest.mark.parametrize("end", [lambda *_: 1 / 0, lambda *_: os.kill(os.getpid(), signal.SIGKILL)])
def test_a_process_that_fails_hands_over_nothing(monkeypatch, end):
    monkeypatch.setattr(background, "native_code", end)
    assert background.begin(None, None).take() is None


def test_a_process_without_a_word_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(background, "native_code", lambda *_: time.sleep(60))
    monkeypatch.setattr(background, "LONGEST_WAIT", 0.0)
    compiling = background.begin(None, None)
    assert compiling.take() is None
    assert not compiling._process.is_alive() if compiling._process._popen else True


def test_native_code_joins_at_the_call_that_the_program_fixes(monkeypatch, caplog):
    """Whenever the process is done; and what it made is found instead of compiled."""
    begun = []
    real = background.begin

    def begin(*arguments: Any) -> Any:
        begun.append(executor._session._level._calls)
        return real(*arguments)

    monkeypatch.setattr(background, "begin", begin)
    monkeypatch.setattr(background, "native_code", lambda d, c, store, p: store.known.update(MADE))
    executor = poptorch.inferenceModel(model())
    expected = model()(X)
    natives = []
    for _ in range(6):
        torch.testing.assert_close(executor(X), expected)
        natives.append(is_native(executor))
    assert natives == [False, False, False, False, True, True]
    assert begun == [2], "a quarter of the calls before"
    store = executor._session.store
    assert store.compiled == 0
    assert store.known == MADE
    said = [record.message for record in caplog.records if "Native code runs" in record.message]
    assert len(said) == 1
    assert said[0].startswith("Native code runs from call 5 on. It was compiled beside the program for ")


def test_what_was_not_made_beside_the_program_is_compiled_in_it(monkeypatch):
    monkeypatch.setattr(background, "native_code", lambda *_: 1 / 0)
    executor = poptorch.inferenceModel(model())
    for _ in range(5):
        executor(X)
    assert is_native(executor)
    assert executor._session.store.compiled == 1


def test_what_an_earlier_process_left_runs_from_the_first_call(monkeypatch):
    real = CodeStore.__init__
    monkeypatch.setattr(CodeStore, "__init__", lambda self, stores=(): real(self, [background.Handed(MADE), *stores]))
    monkeypatch.setattr(background, "begin", lambda *_: pytest.fail("there is nothing to compile"))
    executor = poptorch.inferenceModel(model())
    executor(X)
    assert is_native(executor)
    assert executor._session.store.compiled == 0


def test_a_store_can_be_asked_without_compiling():
    store = CodeStore()
    with store.as_it_is(), pytest.raises(NotStored):
        store.obtain("key", None, lambda: pytest.fail("compiled"))
    assert store.obtain("key", None, lambda: None) is None


def test_a_program_that_ends_takes_its_process_with_it(monkeypatch):
    monkeypatch.setattr(background, "native_code", lambda *_: time.sleep(60))
    executor = poptorch.inferenceModel(model())
    for _ in range(3):
        executor(X)
    compiling = executor._session._level._background
    executor.destroy()
    assert compiling._process.exitcode == -signal.SIGKILL


def test_without_it_the_program_compiles_itself(monkeypatch):
    monkeypatch.setenv("POPTORCH_BACKGROUND", "0")
    monkeypatch.setattr(background, "begin", lambda *_: pytest.fail("nothing beside the program"))
    executor = poptorch.inferenceModel(model())
    for _ in range(5):
        executor(X)
    assert is_native(executor)
