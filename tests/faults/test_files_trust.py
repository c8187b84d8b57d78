"""Code in files: it runs if this user's own key signed it, else it is compiled again."""

from __future__ import annotations

import json
import os
import stat

import pytest
import torch
from torch import nn

import poptorch
import preloaded
from poptorch.executable import file as container
from poptorch.executable.file import File
from poptorch.host.store import cache, signing

LAYER = nn.Linear(3, 2).eval()
X = torch.ones(4, 3)
ATTACK = "raise SystemExit('code of somebody else ran')\n"


@pytest.fixture
def key(tmp_path, monkeypatch):
    """A key of this test's own."""
    path = tmp_path / "keys" / "key"
    monkeypatch.setenv("POPTORCH_KEY_FILE", str(path))
    return path


@pytest.fixture
def directory(tmp_path, monkeypatch, key):
    """A cache, and native code from the first call on."""
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    monkeypatch.setattr(cache, "local_folder", lambda: None)
    made = tmp_path / "cache"
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(made))
    return made


def run() -> tuple[torch.Tensor, int]:
    """The result of a model, and how many entries were compiled for it."""
    executor = poptorch.inferenceModel(LAYER)
    result = executor(X)
    count = executor.session.store.compiled
    executor.destroy()
    return result, count


def rewrite(path, change) -> None:
    """The file with other code in it, and valid hashes."""
    file = File(path)
    sections = {name: file.bytes(name) for name in file.names()}
    container.write(path, change(sections))


def with_attack(sections):
    """Python text that does something else."""
    name = next(name for name in sections if name.startswith("code/"))
    content = json.loads(sections[name])
    kernel = next(entry["code"] for entry in content["program"]["kernels"] if "code" in entry)
    kernel["source"] = ATTACK + kernel["source"]
    return {**sections, name: json.dumps(content)}


def with_another_library(sections):
    name = next(name for name in sections if name.startswith("blob/"))
    return {**sections, name: b"\x7fELF of another"}


def without_signatures(sections):
    return {name: data for name, data in sections.items() if not name.startswith("signature/")}


def with_swapped_signatures(sections):
    return {name: b"0" * 64 if name.startswith("signature/") else data for name, data in sections.items()}


def test_code_that_was_changed_is_compiled_again(directory, caplog):
    expected, count = run()
    assert count == 1
    assert run()[1] == 0
    (path,) = directory.iterdir()
    for change in (with_attack, with_another_library, without_signatures, with_swapped_signatures):
        rewrite(path, change)
        caplog.clear()
        result, count = run()
        assert count == 1, change.__name__
        assert torch.equal(result, expected)
        assert "was not signed by your own key" in caplog.text
        assert run()[1] == 0, "the file was not replaced"


def test_code_of_another_key_is_compiled_again_and_exported_code_too(directory, key, tmp_path, caplog, monkeypatch):
    exported = str(tmp_path / "exported.poptorch")
    executor = poptorch.inferenceModel(LAYER)
    executor.compileAndExport(exported, X, export_model=False)
    expected = executor(X)
    executor.destroy()
    monkeypatch.delenv("POPTORCH_CACHE_DIR")

    def loaded() -> int:
        executor = poptorch.inferenceModel(LAYER)
        executor.loadExecutable(exported)
        assert torch.equal(executor(X), expected)
        count = executor.session.store.compiled
        executor.destroy()
        return count

    assert loaded() == 0
    monkeypatch.setenv("POPTORCH_KEY_FILE", str(key.with_name("other")))
    assert loaded() == 1
    assert "was not signed by your own key" in caplog.text
    monkeypatch.setenv("POPTORCH_KEY_FILE", str(key))
    rewrite(exported, with_attack)
    assert loaded() == 1


OTHER_PROCESS = """
    import sys, torch, poptorch
    from poptorch.host.store import signing
    print(signing.signature("a", "text", {"b": b"c"}))
"""


def test_processes_of_one_user_share_the_key(key):
    code = "\n".join(line.strip() for line in OTHER_PROCESS.splitlines())
    others = [preloaded.start(["-c", code]) for _ in range(2)]
    signatures = {other.communicate(timeout=120)[0].strip() for other in others}
    assert signatures == {signing.signature("a", "text", {"b": b"c"})}
    assert os.listdir(key.parent) == ["key"]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


@pytest.mark.usefixtures("key")
def test_a_signature_is_for_one_key_text_and_set_of_blobs():
    given = signing.signature("a", "text", {"b": b"c"})
    assert signing.is_signed(given, "a", "text", {"b": b"c"})
    for key, text, blobs in (
        ("z", "text", {"b": b"c"}), ("a", "texts", {"b": b"c"}), ("a", "text", {}), ("a", "text", {"b": b"d"}),
    ):  # fmt: skip
        assert not signing.is_signed(given, key, text, blobs)
    assert not signing.is_signed("é", "a", "text", {})


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 33])
def test_a_key_of_another_size_is_no_key(key, content, caplog):
    key.parent.mkdir()
    key.write_bytes(content)
    key.chmod(0o600)
    given = signing.signature("a", "text", {})
    assert signing.is_signed(given, "a", "text", {})
    assert "Native code is compiled by every process" in caplog.text
    assert key.read_bytes() == content


def test_a_key_that_others_can_read_is_no_key(key, caplog):
    key.parent.mkdir()
    key.write_bytes(b"k" * 32)
    key.chmod(0o644)
    signing.signature("a", "text", {})
    assert "must be a file that its owner alone can read" in caplog.text


# ---- whose directory ------------------------------------------------------------------------------------------------


def interpreted(directory) -> poptorch.PoplarExecutor:
    executor = poptorch.inferenceModel(LAYER, poptorch.Options().enableExecutableCaching(str(directory)))
    executor(X)
    return executor


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_directory_that_others_can_write_to_is_not_used(tmp_path, caplog, mode):
    cached = tmp_path / "cache"
    cached.mkdir()
    cached.chmod(mode)
    interpreted(cached)
    assert "other users can write to it" in caplog.text
    assert not list(cached.iterdir())


def belongs_to_another(monkeypatch, path) -> None:
    """As root, make it so; else, be somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda uid=os.geteuid(): uid + 1)


def test_a_directory_of_another_user_is_not_used(tmp_path, caplog, monkeypatch):
    cached = tmp_path / "cache"
    cached.mkdir()
    belongs_to_another(monkeypatch, cached)
    interpreted(cached)
    assert "it belongs to another user" in caplog.text
    assert not list(cached.iterdir())


def test_a_file_of_another_user_is_replaced(directory, caplog, monkeypatch):
    expected, _ = run()
    (path,) = directory.iterdir()
    path.chmod(0o666)
    result, count = run()
    assert count == 1
    assert torch.equal(result, expected)
    assert "other users can write to it" in caplog.text


def test_what_we_make_is_private(directory):
    old = os.umask(0)
    try:
        run()
    finally:
        os.umask(old)
    (path,) = directory.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert run()[1] == 0
