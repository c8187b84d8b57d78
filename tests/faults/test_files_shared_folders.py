"""Folders that others write to as well: other programs of the user, other hosts, other users."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from poptorch.errors import ERROR_LOG, createPoptorchError
from poptorch.executable import file as container
from poptorch.executable.file import File
from poptorch.profiling.trace_file import TraceFile
from poptorch.report import files, page
from poptorch.report.files import Profile
from poptorch_files import writing

FOREIGN = ".0123456789ab-1-2-0123456789abcdef.poptorch-saving"
"""What a process of another host is writing."""


@pytest.fixture
def locks_without_effect(monkeypatch):
    """A network file system that grants every lock, and knows of none."""
    monkeypatch.setattr(fcntl, "flock", lambda *unused: None)


@pytest.mark.usefixtures("locks_without_effect")
def test_savers_in_one_folder_do_not_remove_what_the_other_is_writing(tmp_path, monkeypatch):
    seen = []

    def another_saves(descriptor: int) -> None:
        monkeypatch.undo()  # in the middle of the first save comes a whole other one
        monkeypatch.setattr(fcntl, "flock", lambda *unused: None)
        container.write(tmp_path / "second", {"a": b"2"})
        seen.append(sorted(os.listdir(tmp_path)))

    monkeypatch.setattr(os, "fsync", another_saves)
    container.write(tmp_path / "first", {"a": b"1"})
    assert len(seen[0]) == 2
    assert sorted(os.listdir(tmp_path)) == ["first", "second"]
    assert File(tmp_path / "first").bytes("a") == b"1"


@pytest.mark.usefixtures("locks_without_effect")
def test_another_host_may_be_writing_for_a_day(tmp_path):
    path = tmp_path / FOREIGN
    path.write_text("half of a file")
    container.write(tmp_path / "mine", {})
    assert path.exists()
    yesterday = time.time() - 90_000
    os.utime(path, (yesterday, yesterday))
    container.write(tmp_path / "mine", {})
    assert not path.exists()


def test_a_process_of_another_user_may_be_hidden(tmp_path, monkeypatch):
    """Some systems show each user their own processes only: then a file of a stranger is left alone for a day."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with writing.atomic(tmp_path / "a") as file:
        (name,) = os.listdir(tmp_path)
        file.write(b"text")
    stranger = tmp_path / name.replace(f"-{os.getpid()}-", "-999999999-")
    stranger.write_text("half of a file")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert writing.remove_unfinished(tmp_path) == 0
    monkeypatch.setattr(os, "geteuid", lambda: me)
    assert writing.remove_unfinished(tmp_path) == 1


def test_a_save_whose_unfinished_file_is_removed_begins_anew(tmp_path, monkeypatch):
    """By another host whose clock has jumped, or by somebody who tidies up."""
    removed = []

    def tidied_up(descriptor: int) -> None:
        for path in tmp_path.glob(".*"):
            path.unlink()
            removed.append(path)
        if len(removed) == 2:
            monkeypatch.undo()

    monkeypatch.setattr(os, "fsync", tidied_up)
    container.write(tmp_path / "file", {"a": b"text"})
    assert len(removed) == 2
    assert File(tmp_path / "file").bytes("a") == b"text"
    assert os.listdir(tmp_path) == ["file"]


# -- links that another user prepared ----------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path) -> Path:
    """A file that no link may lead to."""
    path = tmp_path / "private"
    path.write_text("private")
    return path


def test_reports_follow_no_prepared_link(tmp_path, victim):
    folder = tmp_path / "shared" / "training"
    folder.mkdir(parents=True)
    for name in ("profile.json", "profile.pop", "report.html"):
        (folder / name).symlink_to(victim)
        (folder / f".{name}.{os.getpid()}").symlink_to(victim)
    profile = Profile({"format": files.FORMAT, "version": files.VERSION}, {"t": {"n": np.arange(3)}})
    files.save(folder, profile)
    page.write(folder / page.PAGE, "title", [])
    assert victim.read_text() == "private"
    assert not (folder / "profile.pop").is_symlink()
    assert json.loads((folder / "profile.json").read_text())["format"] == files.FORMAT


def test_a_link_does_not_open_a_new_file_to_all(tmp_path, victim):
    victim.chmod(0o666)
    (tmp_path / "saved").symlink_to(victim)
    container.write(tmp_path / "saved", {}, private=True)
    assert (tmp_path / "saved").lstat().st_mode & 0o777 == 0o600


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5)


def entry(label: str) -> tuple:
    return "mine", 1, "point", 0.0, 1.0, 0, 0, 0, 0, label


def test_traces_follow_no_prepared_link(tmp_path, victim, monkeypatch):
    monkeypatch.setattr(datetime, "datetime", Clock)
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / f"20260102_030405_{os.getpid()}.json").symlink_to(victim)
    trace = TraceFile(folder)
    trace.add(entry("first"))
    trace.flush()
    assert victim.read_text() == "private"
    assert [event["name"] for event in json.loads(trace.path.read_text())][-1] == "mine.first"
    trace.add(entry("second"))
    trace.flush()
    assert [event["name"] for event in json.loads(trace.path.read_text())][-1] == "mine.second"


def test_a_trace_that_was_exchanged_is_left_alone(tmp_path, victim, caplog):
    trace = TraceFile(tmp_path)
    trace.add(entry("first"))
    trace.flush()
    for exchanged in (lambda: trace.path.symlink_to(victim), lambda: os.link(victim, trace.path)):
        trace.path.unlink()
        exchanged()
        trace.add(entry("second"))
        trace.flush()
        assert victim.read_text() == "private"
    assert "cannot be written" in caplog.text


def test_a_trace_on_a_full_disk_stays_complete(tmp_path):
    trace = TraceFile(tmp_path)
    trace.add(entry("first"))
    trace.flush()
    before = trace.path.read_text()
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        for number in range(10):
            trace.add(entry(f"more {number}"))
        trace.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert trace.path.read_text() == before
    assert [event["name"] for event in json.loads(before)][-1] == "mine.first"


def test_long_messages_follow_no_prepared_link(tmp_path, victim, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.chdir(shared)
    Path(ERROR_LOG).symlink_to(victim)
    assert "See poptorch_error.log" in str(createPoptorchError("line\n" * 200))
    assert victim.read_text() == "private"
    assert Path(ERROR_LOG).read_text().startswith("line\n")


def test_whoever_is_killed_while_saving_is_known_by_its_name(tmp_path):
    """Without any lock: the process that the name names is gone."""
    code = (
        "import os, signal, sys; from poptorch.executable import file as container;"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL);"
        "container.write(sys.argv[1], {'a': b'text'})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "killed")], check=False, timeout=60)
    assert done.returncode == -9
    assert len(os.listdir(tmp_path)) == 1
    container.write(tmp_path / "other", {})
    assert os.listdir(tmp_path) == ["other"]
