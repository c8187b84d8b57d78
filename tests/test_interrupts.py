"""Ctrl-C is never lost, and ends programs without an abort and without loss of what they wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import poptorch  # noqa: F401 - the programs below import it: fail here if that does not work

LOST = """
import os, signal, time, weakref
import poptorch

class Watched:
    pass

class Closing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))

def interrupt(_):
    os.kill(os.getpid(), signal.SIGINT)
    sum(range(1000))

caught = 0
for attempt in range(40):
    try:
        if attempt % 2:
            thing = Closing()
        else:
            thing = Watched()
            reference = weakref.ref(thing, interrupt)
        del thing
        time.sleep(60)
    except KeyboardInterrupt:
        caught += 1
print(caught)
"""


def run(program: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=cwd)


def test_an_interrupt_that_python_drops_is_raised_again() -> None:
    done = run(LOST)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "40\n"
    assert "Exception ignored" not in done.stderr
    print("40 interrupts in places where Python drops exceptions")


def test_other_dropped_exceptions_are_still_shown() -> None:
    done = run("import poptorch\nclass A:\n    def __del__(self): 1 / 0\nA()\n")
    assert "Exception ignored in" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "raise SystemExit(3)", "pass"])
def test_files_that_are_open_at_the_end_are_written(end: str, tmp_path: Path) -> None:
    """Also those that only cyclic garbage holds."""
    program = f"""
import poptorch

class Log:
    def __init__(self):
        self.me, self.file = self, open("log.txt", "w")

log = Log()
log.file.write("last words")
class Final:
    def __init__(self): self.me = self
    def __del__(self): print("finalised", flush=True)
final = Final()
{end}
"""
    done = run(program, cwd=tmp_path)
    assert done.returncode == {"raise KeyboardInterrupt": -2, "raise SystemExit(3)": 3, "pass": 0}[end], done.stderr
    assert (tmp_path / "log.txt").read_text() == "last words"
    assert (done.stdout == "finalised\n") == (end != "raise KeyboardInterrupt")
