"""Saving: readers see one whole file, killed processes leave nothing, permissions stay."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading

import pytest

import poptorch
from open_files import open_files
from poptorch.executable import file as container
from poptorch.executable.file import File


def written(number: int) -> dict[str, bytes]:
    """The sections of one version of a file; each version has other sizes, and says in each section which it is."""
    return {name: f"{number} ".encode() * (number % 50 + 1) for name in ("a", "b", "c")}


def test_readers_while_somebody_saves(tmp_path, capsys):
    path, stop = tmp_path / "file.poptorch", threading.Event()
    container.write(path, written(0))

    def save() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            container.write(path, written(number))

    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _ in range(2000):
            file = File(path)
            versions = {word for name in file.names() for word in file.bytes(name).split()}
            assert len(versions) == 1
    finally:
        stop.set()
        writer.join()
    with capsys.disabled():
        print(" 2000 reads", end="")


def test_a_file_that_was_replaced_is_read_to_its_end(tmp_path):
    path = tmp_path / "file.poptorch"
    container.write(path, written(1))
    file = File(path)
    container.write(path, written(2))
    assert file.bytes("c") == written(1)["c"]
    path.unlink()
    assert file.bytes("b") == written(1)["b"]


def test_descriptors_are_given_back(tmp_path):
    path = tmp_path / "file.poptorch"
    container.write(path, written(1))
    (tmp_path / "foreign").write_bytes(b"other")
    File(path)
    for _ in range(20):
        File(path).bytes("a")
        with pytest.raises(poptorch.Error):
            File(tmp_path / "foreign")
    assert not open_files(tmp_path)


KILLED = """
    import os, sys
    from poptorch.executable import file as container
    os.fsync = lambda descriptor: (print("written", flush=True), sys.stdin.read())
    container.write(sys.argv[1], {"a": b"text"})
"""


def saving(path) -> subprocess.Popen[str]:
    """A process that has written everything and not given the file its name."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "written\n"
    return process


def test_the_next_save_removes_what_a_killed_one_left(tmp_path):
    killed, slow = saving(tmp_path / "killed"), saving(tmp_path / "slow")
    assert len(os.listdir(tmp_path)) == 2
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (tmp_path / ".mine").write_text("other files stay")
    container.write(tmp_path / "other", {"a": b"text"})
    assert len(os.listdir(tmp_path)) == 3, "one is being written still"
    slow.communicate(input="")
    assert slow.returncode == 0
    assert sorted(os.listdir(tmp_path)) == [".mine", "other", "slow"]
    assert File(tmp_path / "slow").bytes("a") == b"text"


def test_many_threads_save_in_one_folder(tmp_path):
    """None takes the unfinished file of another for one that was left."""
    failures = []

    def save(number: int) -> None:
        try:
            for version in range(30):
                container.write(tmp_path / f"{number % 2}", written(version))
        except BaseException as error:  # noqa: BLE001 - for the main thread
            failures.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_file_that_is_saved_again_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "file.poptorch"
    container.write(path, written(1))
    path.chmod(mode)
    container.write(path, written(2))
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert File(path).bytes("a") == written(2)["a"]


def test_new_files_have_the_usual_mode_and_private_ones_their_own(tmp_path):
    old = os.umask(0o027)
    try:
        container.write(tmp_path / "usual", {})
        container.write(tmp_path / "private", {}, private=True)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "usual").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
