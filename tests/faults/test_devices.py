"""Processes share the virtual IPUs of a machine: what one has, no other gets, however a process ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import poptorch
import preloaded
from poptorch.devices import attachment, sharing
from poptorch.devices.record_locks import LockFile

PROGRAM = Path(__file__).with_name("device_program.py")
SLOT = 512


class Owner:
    """Something that devices can belong to."""


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """Four IPUs that no other test uses."""
    path = tmp_path / "devices"
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
    monkeypatch.setenv("POPTORCH_DEVICES_DIR", str(path))
    return path


def run(*command: str) -> str:
    done = preloaded.run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    "program",
    [
        "killed",
        "race",
        "order",
        "other_ids",
        "overtaking",
        "interrupted",
        "quiet",
        "itself",
        "forked",
        "survived",
        "removed",
    ],
)
def test_programs(program):
    print(run(str(PROGRAM), program).splitlines()[-1])


def test_other_systems_and_other_directories_are_others(directory, monkeypatch):
    owner = Owner()
    assert attachment.acquire(4, owner).device_id == 6
    monkeypatch.setenv("POPTORCH_SYSTEM", "bow-pod16")
    assert attachment.acquire(4, owner).device_id == 24
    assert [each.device_id for each in attachment.owners()] == [24]
    monkeypatch.setenv("POPTORCH_DEVICES_DIR", str(directory / "another"))
    assert attachment.acquire(4, owner).device_id == 24


# -- state that is broken --------------------------------------------------------------------------------------------

OTHER = """
from poptorch.devices import attachment
class Owner: pass
owner = Owner()
device = attachment.acquire_id(1, owner)
print(device.device_id, flush=True)
input()
"""


@pytest.fixture
def other(directory):
    """A process that has device 1."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout.readline() == "1\n"
    yield process
    process.communicate("\n")


def test_whatever_stands_in_the_file_the_locks_count(directory, other):
    """The text in a slot is for people; the kernel knows who has it."""
    slots = [
        b"",
        b"\0" * SLOT,
        b"\xff\xfe" * 256,
        b"[" * SLOT,
        b'{"pid": 1, "command": "another", "since": 0, "device": 1}',
        b'{"pid": %d, "command": 3}' % other.pid,
        b'{"pid": %d, "command": "\\u001b[2Jx", "since": 1e300, "device": 99999999, "user": []}' % other.pid,
        b'{"pid": %d, "command": "x", "since": NaN, "device": -1}' % other.pid,
        b'{"pid": %d, "command": "x", "since": true, "device": 3}' % other.pid,
        b"1" * SLOT,
        b"null",
    ]
    # Not opened and closed here: that would give up the locks of this process.
    write = ["dd", f"of={directory / 'pod4.ipus'}", "conv=notrunc", "status=none"]
    owner = Owner()
    for content in slots:
        for padding in (b" ", b"\0"):
            subprocess.run(write, input=content.ljust(SLOT, padding) * 4, check=True, timeout=60)
            (found,) = attachment.owners()
            assert (found.pid, found.ipus) == (other.pid, range(1, 2))
            assert str(found).isprintable()
            with pytest.raises(poptorch.Error, match=f"Failed to acquire device Id 1.*process {other.pid}"):
                attachment.acquire_id(1, owner)
            attachment.acquire_id(0, owner).release()
    print(f"contents of slots: {2 * len(slots)}")


def test_a_truncated_file(directory, other):
    write = "import os, sys; os.truncate(sys.argv[1], 0)"
    subprocess.run([sys.executable, "-c", write, str(directory / "pod4.ipus")], check=True, timeout=60)
    (found,) = attachment.owners()
    assert found.pid == other.pid
    assert "python" in found.command  # as the system knows it
    with pytest.raises(poptorch.Error, match="Failed to acquire device Id 4"):
        attachment.acquire_id(4, Owner())


def test_a_lock_of_another_program_on_the_whole_file(directory):
    """It has all IPUs, and waits for none."""
    attachment.owners()
    lock = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", lock, str(directory / "pod4.ipus")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "1\n"
        with pytest.raises(poptorch.Error, match=rf"process {process.pid} .*: 4 IPU\(s\)"):
            attachment.acquire(1, Owner())
        assert attachment.wishes() == []
        process.communicate("\n")


def a_pipe(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "pod4.ipus")


def a_folder(path: Path) -> None:
    (path / "pod4.ipus").mkdir(parents=True)


def a_link(path: Path) -> None:
    path.mkdir()
    (path / "pod4.ipus").symlink_to("/etc/passwd")


def a_file(path: Path) -> None:
    path.write_text("not a directory")


def below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("not a directory")


@pytest.mark.parametrize("broken", [a_pipe, a_folder, a_link, a_file, below_a_file])
def test_a_directory_that_cannot_be_used(broken, tmp_path, monkeypatch, caplog):
    """One warning; then locks hold within the process."""
    path = tmp_path / "inner" / "devices"
    path.parent.mkdir()
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
    monkeypatch.setenv("POPTORCH_DEVICES_DIR", str(path))
    broken(path)
    owner = Owner()
    devices = [attachment.acquire(1, owner) for _ in range(4)]
    with pytest.raises(poptorch.Error, match=r"Failed to acquire.*this process"):
        attachment.acquire(1, owner)
    assert len(attachment.owners()) == 4
    assert attachment.wishes() == []
    devices[2].release()
    assert attachment.acquire(1, owner).device_id == 2
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "not locked for other processes" in warning
    assert str(path) in warning
    assert "POPTORCH_DEVICES_DIR" in warning


def test_a_directory_that_breaks_later(directory, caplog):
    owner = Owner()
    first = attachment.acquire_id(0, owner)
    (directory / "pod4.ipus").unlink()
    directory.rmdir()
    directory.write_text("not a directory")
    second = attachment.acquire_id(1, owner)
    with pytest.raises(poptorch.Error, match="this process"):
        attachment.acquire_id(0, owner)
    first.release()
    second.release()
    assert "not locked for other processes" in caplog.text


@pytest.mark.parametrize(
    ("mode", "problem"), [(0o777, "other users can write to it"), (0o770, "other users can write")]
)
def test_the_usual_directory_must_be_the_users_own(mode, problem, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("POPTORCH_DEVICES_DIR")
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = Path(sharing.directory())
    assert path.parent == tmp_path
    path.mkdir()
    path.chmod(mode)
    attachment.acquire(1, Owner())
    assert problem in caplog.text


def test_the_usual_directory_of_another_user(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("POPTORCH_DEVICES_DIR")
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    Path(sharing.directory()).mkdir()
    attachment.acquire(1, Owner())
    assert "it belongs to another user" in caplog.text


@pytest.mark.parametrize(("directory_mode", "file_mode"), [(0o700, 0o600), (0o770, 0o660), (0o777, 0o666)])
def test_files_have_the_permissions_of_a_chosen_directory(directory, directory_mode, file_mode):
    directory.mkdir()
    directory.chmod(directory_mode)
    before = os.umask(0o077)
    try:
        attachment.acquire(1, Owner())
    finally:
        os.umask(before)
    assert (directory / "pod4.ipus").stat().st_mode & 0o777 == file_mode


def test_a_full_disk_costs_the_names_only(directory, monkeypatch, caplog):
    def full(self, start, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LockFile, "write", full)
    assert attachment.acquire(1, Owner()).device_id == 0
    assert "cannot see who has which IPUs" in caplog.text


def test_executors_of_two_processes(directory):
    """The whole way: models in two processes want one device."""
    source = """
        import os, subprocess, sys
        import poptorch, torch

        def model():
            return poptorch.inferenceModel(torch.nn.ReLU(), poptorch.Options().useIpuId(2))

        first = model()
        if sys.argv[1:]:
            try:
                first(torch.ones(1))
            except poptorch.Error as error:
                print(error)
            sys.exit()
        first(torch.ones(1))
        command = [sys.executable, sys.argv[0], "again"]
        refused = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "Failed to acquire device Id 2" in refused, refused
        assert f"process {os.getpid()} (" in refused, refused
        first.detachFromDevice()
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""
        assert first(torch.ones(1)).item() == 1
        os.environ["POPTORCH_WAIT_FOR_IPU"] = "1"
        second = model()
        try:
            second(torch.ones(1))
        except poptorch.Error as error:
            assert "this process would wait for itself" in str(error), error
        first.detachFromDevice()
        assert second(torch.ones(1)).item() == 1
    """
    path = directory.parent / "program.py"
    path.write_text(textwrap.dedent(source))
    run(str(path))
