"""Locks of IPUs that other code of the process gives away, and file systems that stop to have locks."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

import poptorch
from poptorch.devices import attachment


class Owner:
    """Something that devices can belong to."""


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """Four IPUs that no other test uses."""
    path = tmp_path / "devices"
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
    monkeypatch.setenv("POPTORCH_DEVICES_DIR", str(path))
    return path


TAKE = """
import sys
from poptorch.devices import attachment
class Owner: pass
owner = Owner()
try:
    print(attachment.acquire_id(int(sys.argv[1]), owner).device_id)
except Exception as error:
    print(error)
print(*attachment.owners(), sep="; ")
"""


def another_process_takes(device: int) -> str:
    command = [sys.executable, "-c", TAKE, str(device)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="this kernel has no locks of descriptors")
def test_a_closed_copy_of_the_file_does_not_give_ipus_away(directory):
    owner = Owner()
    device = attachment.acquire_id(1, owner)
    (directory / "pod4.ipus").read_bytes()  # to copy the folder, for instance: the kernel drops all locks of a process
    answer = another_process_takes(1)
    assert "Failed to acquire device Id 1" in answer
    assert "python" in answer, "the text in the slot says who has it"
    attachment.acquire_id(0, owner).release()  # whoever takes another device renews its locks
    assert f"process {os.getpid()} " in another_process_takes(1)
    device.release()
    assert another_process_takes(1).startswith("1\n")


@pytest.mark.parametrize("later", [1, 2, 5])
def test_locks_that_fail_after_the_first_one(directory, later, monkeypatch, caplog):
    """One warning; from then on locks hold within the process."""
    calls, real = [], fcntl.fcntl

    def failing(descriptor, question, *arguments):
        if directory.exists():
            calls.append(question)
            if len(calls) > later:
                raise OSError(errno.ENOLCK, "No locks available")
        return real(descriptor, question, *arguments)

    monkeypatch.setattr(fcntl, "fcntl", failing)
    owner = Owner()
    devices = [attachment.acquire(1, owner) for _ in range(4)]
    assert sorted(device.device_id for device in devices) == [0, 1, 2, 3]
    with pytest.raises(poptorch.Error, match=r"Failed to acquire.*this process"):
        attachment.acquire(1, owner)
    attachment.owners()
    attachment.wishes()
    for device in devices:
        device.release()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "not locked for other processes" in warning
    assert "No locks available" in warning


def test_a_kernel_without_locks_of_descriptors(directory, monkeypatch):
    real = fcntl.fcntl

    def old(descriptor, question, *arguments):
        if question in (getattr(fcntl, "F_OFD_SETLK", -1), getattr(fcntl, "F_OFD_GETLK", -1)):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, question, *arguments)

    monkeypatch.setattr(fcntl, "fcntl", old)
    owner = Owner()
    device = attachment.acquire_id(1, owner)
    assert "Failed to acquire device Id 1" in another_process_takes(1)
    device.release()
