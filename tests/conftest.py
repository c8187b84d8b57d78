"""What holds for every test: one thread in operations, workers at work, no environment of the developer's."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Before poptorch is imported: the tests decide about these, not the shell that started them.
_OF_THE_PACKAGE = ("POPTORCH_", "POPLAR_", "PVTI_", "OMPI_COMM_WORLD_", "POPDIST_", "IPUOF_")
for _name in [name for name in os.environ if name.startswith(_OF_THE_PACKAGE)]:
    del os.environ[_name]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["POPTORCH_BACKGROUND"] = "0"  # tests end before a compiler does
os.environ["POPTORCH_PRODUCTS"] = "mkl"  # the same on every machine; tests of the choice say otherwise

# IPUs of their own: tests that run at the same time, and programs of the developer, use the same device ids.
_devices = tempfile.TemporaryDirectory(prefix="poptorch-test-devices-")
os.environ["POPTORCH_DEVICES_DIR"] = _devices.name

# Hundreds of interpreters import the package: without files of byte code, each would compile all of its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Interpreters that tests start elsewhere must find the package of this working tree, installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).resolve().parent.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Helpers that tests of several folders share lie beside this file: ``from closeness import assert_close_sums``.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from flakiness import (  # noqa: E402, F401 - two are hooks of pytest, found by their names
    check_reasons,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from sampling import keep_some  # noqa: E402


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    check_reasons(items)
    keep_some(config, items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What all tests and their libraries are made of stays: looking for garbage among it takes a second each time."""
    if len(session.items) > _MANY:
        import torch._dynamo
        import torch._inductor.compile_fx  # noqa: F401 - some of them import both, and then they are not garbage either

    gc.collect()
    gc.freeze()


_MANY = 1000
"""Tests of more than a few rooms."""


# Programs that are started in the background ignore Ctrl-C, and so do those that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, however slow the machine: a failure belongs to the change that brought it.
# HYPOTHESIS_PROFILE=explore looks for others.
_patient = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("explore", _patient)
hypothesis.settings.register_profile("repeatable", _patient, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _usual_logging() -> Iterator[None]:
    """Whatever a test does to the loggers ends with it."""
    from poptorch import _logging

    yield
    _logging.setLogLevel("WARN")
    _logging.setPopartLogLevel("WARN")
    _logging.set_repeat_limit(_logging.DEFAULT_REPEAT_LIMIT)
    _logging.forget_said()


@pytest.fixture(autouse=True)
def _programs_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass must leave a sound program."""
    monkeypatch.setenv("POPTORCH_VERIFY", "1")


@pytest.fixture(autouse=True)
def _workers_run_whatever_is_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of tests are so small that one thread would run all of their tasks."""
    from poptorch.host import width

    monkeypatch.setattr(width, "WORTH_A_THREAD_SECONDS", 0.0)
