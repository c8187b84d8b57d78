"""Loggers: levels, line formats, destinations, repeated lines and uncaught exceptions."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import poptorch
import preloaded
from poptorch import _logging, startup

LINE = r"\[\d\d:\d\d:\d\d\.\d{3}\] \[%s\] \[%s\] %s"


def run_python(code: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A fresh process, for what happens at import and at exit."""
    return preloaded.run(["-c", code], cwd=cwd, env={**os.environ, **variables})


# --- levels ---


@pytest.mark.parametrize(
    ("level", "python", "backend"),
    [
        ("TRACE", logging.DEBUG, _logging.TRACE),
        ("TRACE_ALL", logging.DEBUG, _logging.TRACE),
        ("DEBUG", logging.DEBUG, logging.DEBUG),
        ("DEBUG_IR", logging.DEBUG, logging.DEBUG),
        ("INFO", logging.INFO, logging.INFO),
        ("WARN", logging.WARNING, logging.WARNING),
        ("ERR", logging.ERROR, logging.ERROR),
        (0, logging.DEBUG, _logging.TRACE),
        (1, logging.DEBUG, logging.DEBUG),
        (2, logging.INFO, logging.INFO),
        (3, logging.WARNING, logging.WARNING),
        (4, logging.ERROR, logging.ERROR),
    ],
)
def test_levels(level: str | int, python: int, backend: int) -> None:
    poptorch.setLogLevel(level)
    assert (poptorch.logger.level, _logging.backend.level) == (python, backend)


@pytest.mark.parametrize("level", ["OFF", 6])
def test_off_silences_all_but_uncaught_exceptions(level: str | int, capfd) -> None:
    poptorch.setLogLevel(level)
    poptorch.logger.error("x")
    _logging.backend.critical("x")
    assert capfd.readouterr().err == ""
    poptorch.logger.critical("kept")
    assert "kept" in capfd.readouterr().err


@pytest.mark.parametrize("level", ["wibble", "info", "", None, True])
def test_unknown_levels(level: object) -> None:
    with pytest.raises(ValueError) as caught:
        poptorch.setLogLevel(level)
    expected = f"Unknown log level: {level}. Valid values are DEBUG, ERR, INFO, OFF, TRACE and WARN"
    assert str(caught.value) == expected


@pytest.mark.parametrize("level", [5, 7, -1])
def test_unknown_numbers(level: int) -> None:
    with pytest.raises(ValueError, match="Invalid log level integer"):
        poptorch.setLogLevel(level)


def test_a_refused_level_changes_nothing() -> None:
    poptorch.setLogLevel("INFO")
    with pytest.raises(ValueError, match="Unknown log level"):
        poptorch.setLogLevel("wibble")
    assert (poptorch.logger.level, _logging.backend.level) == (logging.INFO, logging.INFO)


def test_the_backend_can_keep_its_level() -> None:
    poptorch.setLogLevel("DEBUG", update_cpp=False)
    assert (poptorch.logger.level, _logging.backend.level) == (logging.DEBUG, logging.WARNING)


@pytest.mark.parametrize("level", [0, "FOO", None])
def test_the_compiler_level_takes_names_only(level: object) -> None:
    with pytest.raises(ValueError, match="Level must be one of"):
        _logging.setPopartLogLevel(level)


def test_the_compiler_level_is_its_own(capfd) -> None:
    _logging.setPopartLogLevel("TRACE")
    _logging.compiler.trace("pass %s", "fuse")
    _logging.setPopartLogLevel("WARN")
    _logging.compiler.trace("hidden")
    err = capfd.readouterr().err
    assert "pass fuse" in err
    assert "hidden" not in err


# --- lines ---


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
def test_python_lines(level: str, capfd) -> None:
    poptorch.setLogLevel("TRACE")
    getattr(poptorch.logger, level)("value %d", 3)
    assert re.fullmatch(LINE % ("poptorch::python", level, "value 3\n"), capfd.readouterr().err)


@pytest.mark.parametrize("level", ["trace", "debug", "info", "warning", "error"])
def test_backend_lines(level: str, capfd) -> None:
    poptorch.setLogLevel("TRACE")
    getattr(_logging.backend, level)("value %d", 3)
    out, err = capfd.readouterr()
    assert re.fullmatch(LINE % ("poptorch:cpp", level, "value 3\n"), err)
    assert out == ""


def test_the_python_logger_is_an_ordinary_one() -> None:
    assert poptorch.logger is logging.getLogger("poptorch::python")
    assert poptorch.logger.propagate
    (handler,) = poptorch.logger.handlers
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr


def test_lines_follow_a_replaced_stderr(monkeypatch) -> None:
    replaced = io.StringIO()
    monkeypatch.setattr(sys, "stderr", replaced)
    poptorch.logger.warning("one")
    _logging.backend.warning("two")
    assert [line.split()[-1] for line in replaced.getvalue().splitlines()] == ["one", "two"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("level", "colour"),
    [("trace", "90"), ("debug", "36"), ("warning", "33;1"), ("error", "31;1"), ("critical", "31;1")],
)
def test_colours_on_terminals(level: str, colour: str, monkeypatch) -> None:
    poptorch.setLogLevel("TRACE")
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    getattr(_logging.backend, level)("text")
    assert f"\x1b[{colour}m{level}\x1b[0m" in sys.stderr.getvalue()


def test_info_has_no_colour(monkeypatch) -> None:
    poptorch.setLogLevel("INFO")
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    poptorch.logger.info("text")
    assert "[info] text" in sys.stderr.getvalue()


def test_no_colour_unless_both_streams_are_terminals(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", Terminal())
    poptorch.logger.warning("text")
    assert "[warning] text" in sys.stderr.getvalue()


# --- repeated lines ---


def repeated(times: int, capfd) -> list[str]:
    for _ in range(times):
        _logging.backend.warning("again")
    return [line.split("[warning] ")[1] for line in capfd.readouterr().err.splitlines()]


def test_a_backend_line_repeats_four_times_by_default(capfd) -> None:
    assert repeated(9, capfd) == ["again"] * 4 + ["[repeated messages suppressed]"]


def test_another_line_starts_the_count_anew(capfd) -> None:
    repeated(9, capfd)
    _logging.backend.warning("other")
    assert repeated(2, capfd) == ["other", "again", "again"]


def test_no_limit(capfd) -> None:
    _logging.set_repeat_limit(None)
    assert repeated(9, capfd) == ["again"] * 9


def test_a_chosen_limit(capfd) -> None:
    _logging.set_repeat_limit(1)
    assert repeated(3, capfd) == ["again", "[repeated messages suppressed]"]


def test_python_lines_are_never_suppressed(capfd) -> None:
    for _ in range(9):
        poptorch.logger.warning("again")
    assert capfd.readouterr().err.count("again") == 9


def test_warn_once(capfd) -> None:
    for _ in range(3):
        _logging.warn_once("key", "100% sure")
        _logging.warn_once("other", "different")
    err = capfd.readouterr().err
    assert (err.count("100% sure"), err.count("different")) == (1, 1)


# --- environment ---


@pytest.mark.parametrize("text", ["", "information", "3", "LOUD"])
def test_a_bad_level_in_the_environment_fails_the_import(text: str, tmp_path: Path) -> None:
    done = run_python("import poptorch", tmp_path, POPTORCH_LOG_LEVEL=text)
    assert done.returncode != 0
    assert f"ValueError: Unknown log level: {text}. Valid values are DEBUG, ERR, INFO" in done.stderr


def test_the_environment_sets_the_level_and_the_default_is_warn(tmp_path: Path) -> None:
    code = "import poptorch; print(poptorch.logger.level, poptorch._logging.backend.level)"
    assert run_python(code, tmp_path).stdout == "30 30\n"
    assert run_python(code, tmp_path, POPTORCH_LOG_LEVEL="TRACE").stdout == "10 5\n"


def test_contexts_are_traced_on_request(tmp_path: Path) -> None:
    code = "from poptorch.errors import error_context\nwith error_context('lowering'): pass"
    done = run_python(code, tmp_path, POPTORCH_LOG_LEVEL="TRACE_ALL")
    assert [line.split("[trace] ")[1] for line in done.stderr.splitlines()] == [
        "Enter lowering",
        "Leave lowering",
    ]
    assert run_python(code, tmp_path, POPTORCH_LOG_LEVEL="TRACE").stderr == ""


SPEAK = "import poptorch; poptorch.logger.warning('python'); poptorch._logging.backend.warning('backend')"


def test_backend_lines_to_stdout(tmp_path: Path) -> None:
    done = run_python(SPEAK, tmp_path, POPTORCH_LOG_DEST="stdout")
    assert done.returncode == 0
    assert "backend" in done.stdout
    assert "backend" not in done.stderr
    assert "[warning] python" in done.stderr


def test_backend_lines_to_a_file_that_is_truncated(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("old\n")
    done = run_python(SPEAK, tmp_path, POPTORCH_LOG_DEST="a.log")
    assert "backend" not in done.stdout + done.stderr
    assert re.fullmatch(LINE % ("poptorch:cpp", "warning", "backend\n"), (tmp_path / "a.log").read_text())


def test_a_log_file_that_cannot_be_opened_is_fatal(tmp_path: Path) -> None:
    done = run_python(SPEAK, tmp_path, POPTORCH_LOG_DEST="no/such/dir/a.log")
    assert done.returncode != 0
    assert "POPTORCH_LOG_DEST names a log file that cannot be opened" in done.stderr
    assert "no/such/dir/a.log" in done.stderr


# --- uncaught exceptions ---


def test_an_uncaught_exception_is_one_critical_record(tmp_path: Path) -> None:
    done = run_python("import poptorch; poptorch.setLogLevel('OFF'); 1 / 0", tmp_path)
    first, second, *rest = done.stderr.splitlines()
    assert re.fullmatch(LINE % ("poptorch::python", "critical", "ZeroDivisionError: division by zero"), first)
    assert second == "Traceback (most recent call last):"
    assert rest[-1] == "ZeroDivisionError: division by zero"
    assert done.returncode == 1


def test_the_output_of_a_failed_child_is_appended(tmp_path: Path) -> None:
    child = "import sys; print('why it failed', file=sys.stderr); sys.exit(3)"
    call = f"subprocess.run([sys.executable, '-c', {child!r}], check=True, stderr=subprocess.PIPE)"
    code = f"import poptorch, subprocess, sys; {call}"
    assert run_python(code, tmp_path).stderr.endswith("why it failed\n")


def test_a_closed_stream_falls_back_to_plain_stderr(tmp_path: Path) -> None:
    code = (
        "import io, poptorch\n"
        "stream = io.StringIO(); poptorch.logger.handlers[0].setStream(stream); stream.close()\n"
        "raise RuntimeError('seen')"
    )
    assert "RuntimeError: seen" in run_python(code, tmp_path).stderr


def test_an_earlier_hook_is_still_called() -> None:
    called = []
    hook = sys.excepthook
    try:
        sys.excepthook = lambda *args: called.append(args)
        startup.prepare_process()
        error = RuntimeError("x")
        startup.log_uncaught(RuntimeError, error, None)
    finally:
        sys.excepthook = sys.__excepthook__
        startup.prepare_process()
        sys.excepthook = hook
    assert called == [(RuntimeError, error, None)]


def test_a_level_in_any_case_is_understood(tmp_path: Path) -> None:
    code = "from poptorch import logger; print(logger.level)"
    assert run_python(code, tmp_path, POPTORCH_LOG_LEVEL="debug").stdout.strip() == "10"


def test_the_logger_of_the_package_reaches_all_of_ours(tmp_path: Path) -> None:
    code = """
import logging
import poptorch
from poptorch._logging import backend

logging.getLogger("poptorch").setLevel(logging.ERROR)
poptorch.logger.warning("one")
backend.warning("two")
poptorch.logger.error("three")
logging.getLogger("poptorch").setLevel(logging.NOTSET)
logging.getLogger("poptorch").addFilter(lambda record: "four" not in record.getMessage())
poptorch.logger.warning("four")
backend.warning("five")
"""
    lines = run_python(code, tmp_path).stderr.splitlines()
    assert [line.split()[-1] for line in lines] == ["three", "five"]


def test_earlier_names_warn_at_the_line_of_the_user(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import poptorch\n\noptions = poptorch.Options()\noptions.anchorMode(poptorch.AnchorMode.All)\n")
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", str(script)], capture_output=True, text=True, timeout=100
    )
    assert f"{script}:4: DeprecationWarning: Options.anchorMode comes from an earlier release" in done.stderr
    assert f"{script}:4: DeprecationWarning: poptorch.AnchorMode comes from an earlier release" in done.stderr


def test_no_color_keeps_terminals_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    logging.getLogger("poptorch::python").error("plain")
    assert "\x1b" not in sys.stderr.getvalue()
    monkeypatch.delenv("NO_COLOR")
    logging.getLogger("poptorch::python").error("coloured")
    assert "\x1b[31;1m" in sys.stderr.getvalue()
