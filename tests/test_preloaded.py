"""Programs that a process with torch forks are like those that an interpreter starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded

TELL = """
import os, sys
print(__name__, sys.argv[1:], os.getcwd(), os.environ.get("WORD"), "poptorch" in sys.modules, "torch" in sys.modules)
print("error", file=sys.stderr)
"""


def test_a_program_has_its_own_arguments_folder_environment_and_output(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 3")
    program = tmp_path / "program.py"
    program.write_text(TELL + "import beside; print(beside.value, __file__, sys.orig_argv[1:])")
    (tmp_path / "elsewhere").mkdir()
    done = preloaded.run([program, "a", "b c"], cwd=tmp_path / "elsewhere", env={**os.environ, "WORD": "word"})
    assert (done.returncode, done.stderr) == (0, "error\n")
    assert done.stdout.splitlines() == [
        f"__main__ ['a', 'b c'] {tmp_path / 'elsewhere'} word False True",
        f"3 {program} {[str(program), 'a', 'b c']}",
    ]
    again = preloaded.run(["-c", TELL], cwd=tmp_path)
    assert again.stdout == f"__main__ [] {tmp_path} None False True\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import atexit; atexit.register(print, 'at the end'); 1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_it_ends_as_the_interpreter_ends_it(code: str, status: int) -> None:
    ends = [
        preloaded.run(["-c", code]),
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60),
    ]
    assert [end.returncode for end in ends] == [status, status]
    assert ends[0].stdout == ends[1].stdout
    assert ends[0].stderr.splitlines()[-1:] == ends[1].stderr.splitlines()[-1:]


def test_several_run_at_the_same_time_and_each_can_be_killed() -> None:
    started = [preloaded.start(["-c", "import time; print(1, flush=True); time.sleep(600)"]) for _ in range(3)]
    assert len({process.pid for process in started}) == 3
    with pytest.raises(subprocess.TimeoutExpired):
        started[1].communicate(timeout=0.01)
    for process in started:
        process.kill()
        process.communicate(timeout=60)
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 3
