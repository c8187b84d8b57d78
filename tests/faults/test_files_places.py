"""Where state is kept, and files that come into being as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from popdist.vipu import registry
from poptorch.data.ring import anonymous_file
from poptorch.devices import partition
from poptorch_files import create_complete, made_by_another, state_folder


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "POPTORCH_VIPU_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_state_is_where_the_system_wants_it(home, monkeypatch):
    assert state_folder() == home / ".local" / "state" / "poptorch"
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    assert state_folder() == home / "state" / "poptorch"
    assert registry.default_folder() == partition.registry_folder() == home / "state" / "poptorch" / "vipu"


def test_what_an_earlier_release_made_stays_in_use(home, monkeypatch):
    (home / ".local" / "state" / "poptorch").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    assert state_folder() == home / ".local" / "state" / "poptorch"
    (home / "state" / "poptorch").mkdir(parents=True)
    assert state_folder() == home / "state" / "poptorch"


def test_the_first_of_two_keys_stays(tmp_path):
    path = tmp_path / "key"
    assert create_complete(path, b"first")
    assert not create_complete(path, b"second")
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_what_another_program_makes_takes_its_place_when_it_is_done(tmp_path):
    path = tmp_path / "library"
    with made_by_another(path) as unfinished:
        unfinished.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"
    with pytest.raises(ZeroDivisionError), made_by_another(path) as unfinished:
        unfinished.write_text(f"{1 / 0}")
    assert path.read_text() == "half"
    assert os.listdir(tmp_path) == ["library"]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system reserves no blocks of files")
def test_files_on_a_disk_have_all_of_their_blocks():
    """A disk that is full later would end the process with SIGBUS where it touches the file."""
    descriptor = anonymous_file(1 << 20, on_disk=True)
    try:
        status = os.fstat(descriptor)
        assert status.st_size == 1 << 20
        assert status.st_blocks * 512 >= 1 << 20
    finally:
        os.close(descriptor)
