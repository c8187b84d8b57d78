"""Whatever is in the way of a cache, the program goes on, with a warning."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executable import file as container
from poptorch.host.store import cache

LAYER = nn.Linear(3, 2).eval()
X = torch.ones(4, 3)


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = cache.Folder(tmp_path / "folder")
    monkeypatch.setattr(cache, "local_folder", lambda: made)
    return tmp_path / "folder"


def run(directory, processes: int = 1) -> torch.Tensor:
    options = poptorch.Options().enableExecutableCaching(str(directory))
    if processes > 1:
        options.Distributed.configureProcessId(0, processes)
    executor = poptorch.inferenceModel(LAYER, options)
    result = executor(X)
    executor.destroy()
    return result


def garbage(path) -> list:
    """Functions that put something else in the place of a file."""
    sound = path.read_bytes()

    def pipe() -> None:
        os.mkfifo(path)

    def folder() -> None:
        path.mkdir()
        (path / "file").write_text("")

    return [
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(b"\xff" * 5000),
        lambda: path.write_bytes(sound[: len(sound) // 2]),
        lambda: container.write(path, {}),
        lambda: container.write(path, {"metadata": b"\xff"}),
        lambda: container.write(path, {"metadata": b"[" * 100_000}),
        lambda: container.write(path, {"metadata": {"poptorch": 1}}),
        lambda: path.symlink_to("nowhere"),
        lambda: path.symlink_to(path.name),
        pipe,
        folder,
    ]


def remove(path) -> None:
    if path.is_dir() and not path.is_symlink():
        (path / "file").unlink()
        path.rmdir()
    else:
        path.unlink()


def test_garbage_in_the_executable_cache(tmp_path, folder, caplog):
    expected = run(tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    for put in garbage(path):
        remove(path)
        put()
        caplog.clear()
        assert torch.equal(run(tmp_path / "cache"), expected)
        assert "The cached executable is made anew" in caplog.text


@pytest.mark.usefixtures("native")
def test_garbage_in_the_code_folder(folder, caplog, monkeypatch):
    def result() -> torch.Tensor:
        executor = poptorch.inferenceModel(LAYER)
        made = executor(X)
        executor.destroy()
        return made

    expected = result()
    (path,) = (file for file in folder.rglob("*") if file.is_file())
    for put in (garbage(path)[i] for i in (1, 2, 9, 10)):
        remove(path)
        put()
        caplog.clear()
        assert torch.equal(result(), expected)
        assert "cannot be used and is compiled again" in caplog.text


@pytest.mark.parametrize("content", ["text", "", "-5", "9" * 30, "pipe", "folder", "link"])
def test_garbage_in_the_place_of_the_lock(tmp_path, folder, caplog, content):
    expected = run(tmp_path / "cache", 2)
    (lock,) = (tmp_path / "cache").glob("*.lock")
    lock.unlink()
    if content == "pipe":
        os.mkfifo(lock)
    elif content == "folder":
        lock.mkdir()
    elif content == "link":
        (tmp_path / "victim").write_text("mine")
        lock.symlink_to(tmp_path / "victim")
    else:
        lock.write_text(content)
    assert torch.equal(run(tmp_path / "cache", 2), expected)
    if content in ("pipe", "folder", "link"):
        assert "cannot be locked" in caplog.text
    if content == "link":
        assert (tmp_path / "victim").read_text() == "mine"


def test_a_directory_that_is_read_only(tmp_path, folder, caplog, monkeypatch):
    expected = run(tmp_path / "cache")
    before = os.listdir(tmp_path / "cache")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to any directory

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(container, "write", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    caplog.set_level("INFO", logger="poptorch::python")
    assert torch.equal(run(tmp_path / "cache"), expected)
    assert "is not writable" in caplog.text
    assert "Executable found in the cache" in caplog.text, "reading is possible"
    executor = poptorch.inferenceModel(LAYER, poptorch.Options().enableExecutableCaching(str(tmp_path / "cache")))
    executor(X[:2])
    assert "Native code could not be kept" in caplog.text
    assert os.listdir(tmp_path / "cache") == before


@pytest.mark.parametrize("name", ["/proc/nothing/here", "/dev/null", "a\0b"])
def test_a_directory_that_cannot_be(name, folder, caplog):
    run(name)
    assert "Nothing is cached" in caplog.text
