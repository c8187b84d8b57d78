"""Files with valid hashes and wrong content: always ``poptorch.Error`` with the names of file and section."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executable import file as container
from poptorch.executable.file import LAYOUT, MAGIC, File

HUGE = 10**15
DEEP = b"[" * 100_000 + b"]" * 100_000


class Sum(nn.Module):
    def forward(self, x, y=None):
        return x.sum() if y is None else (x + y).sum()


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    """The sections of a sound file."""
    path = tmp_path_factory.mktemp("sound") / "sound.poptorch"
    poptorch.inferenceModel(Sum()).compileAndExport(str(path), torch.ones(3))
    file = File(path)
    return {name: file.bytes(name) for name in file.names()}


def with_values(data, **values):
    return json.dumps({**json.loads(data), **values}).encode()


def without(data, name):
    return json.dumps({key: value for key, value in json.loads(data).items() if key != name}).encode()


def tensors(listing, elements=b"\0" * 12):
    text = json.dumps(listing).encode()
    return struct.pack("<Q", len(text)) + text + elements


NOT_JSON = [b"", b"\xff\xfe", b"{", DEEP, b'{"a":' * 50_000, b"1" * 10_000, b"null", b"[]", b'"text"', b"7"]
ANYTHING = [None, 7, -HUGE, "text", [], {}, [[]], {"a": 1}, [None, HUGE]]

CRAFTED = [
    *[("metadata", lambda data, bad=bad: bad) for bad in NOT_JSON],
    *[("inputs", lambda data, bad=bad: bad) for bad in NOT_JSON],
    *[("metadata", lambda data, n=n: without(data, n)) for n in ("training", "identity", "custom_ops", "exported")],
    *[
        ("metadata", lambda data, n=n, v=v: with_values(data, **{n: v}))
        for n in ("identity", "custom_ops", "training", "exported")
        for v in (None, 7, "text", [None], [{}], [{"domain": 1, "name": 2, "version": "x", "library": 3}])
    ],
    *[("inputs", lambda data, n=n: without(data, n)) for n in ("call", "names", "defaulted", "by_name", "left_out")],
    *[
        ("inputs", lambda data, n=n, v=v: with_values(data, **{n: v}))
        for n in ("call", "names", "defaulted", "by_name", "left_out")
        for v in ANYTHING
        if not (v == [] and n != "names" and n != "call")
    ],
    *[
        ("inputs", lambda data, v=v: with_values(data, call={"tuple": [{"tuple": [v]}, {"dict": []}]}))
        for v in (
            {"tensor": 5}, {"tensor": -7}, {"tensor": "x"}, {"tensor": None}, {"nope": 1}, {"a": 1, "b": 2},
            {"operator": "load_library.x"}, {"operator": "aten"}, {"operator": ""}, {"operator": 3}, {"node": 0},
            {"builtin": "methodcaller"}, {"builtin": "call"}, {"builtin": "__loader__"}, {"builtin": 1},
            {"dtype": "load"}, {"dtype": "nn"}, {"layout": "float32"}, {"float": "x"}, {"float": []},
            {"slice": []}, {"slice": [1, 2, 3, 4]}, {"size": ["x"]}, {"size": [HUGE]}, {"complex": [1]},
            {"device": "nowhere"}, {"dict": [[{"dict": []}, 1]]}, {"dict": [1]}, {"tuple": 1}, "text", None,
        )
    ],
    *[
        ("input tensors", lambda data, bad=bad: bad)
        for bad in (
            b"", b"\0" * 7, struct.pack("<Q", HUGE), struct.pack("<Q", 2**64 - 1), struct.pack("<Q", 3) + b"\xff" * 3,
            tensors([]), tensors({}), tensors(7), tensors([["float32"]]), tensors([["load", [3]]]),
            tensors([["float32", [HUGE]]]), tensors([["float32", [-HUGE]]]), tensors([["float32", [-1]]]),
            tensors([["float32", [HUGE, HUGE, HUGE]]]), tensors([["float32", [2**62, 2**62, 0]], ["float32", [3]]]),
            tensors([["float32", ["3"]]]), tensors([["float32", [3.0]]]), tensors([["float32", None]]),
            tensors([["float32", [3]]], b"\0" * 11), tensors([["float32", [3]]], b"\0" * 13),
            tensors([["float32", [True, 3]]]),
        )
    ],
]  # fmt: skip


def test_crafted_sections(sections, tmp_path, capsys):
    path = tmp_path / "crafted.poptorch"
    surprises = []
    for number, (name, change) in enumerate(CRAFTED):
        changed = change(sections[name])
        container.write(path, {**sections, name: changed})
        try:
            poptorch.inferenceModel(Sum()).loadExecutable(str(path))
            surprises.append((number, name, changed[:200], "accepted"))
        except poptorch.Error as error:
            if str(path) not in str(error):
                surprises.append((number, name, changed[:200], str(error)))
        except BaseException as error:  # noqa: BLE001 - the error is the subject
            surprises.append((number, name, changed[:200], repr(error)))
    with capsys.disabled():
        print(f" {len(CRAFTED)} crafted sections", end="")
    assert not surprises, "\n" + "\n".join(map(str, surprises))


@pytest.mark.parametrize("state", [*ANYTHING, [HUGE**3], ["1"], [None]])
def test_crafted_random_state(sections, tmp_path, state):
    path = str(tmp_path / "crafted.poptorch")
    container.write(path, {**sections, "rng": {"state": state}})
    with pytest.raises(poptorch.Error, match=r"crafted.poptorch.*'rng'"):
        poptorch.load(path)


@pytest.mark.parametrize("pickled", [b"", b"not a pickle", DEEP, b"\x80\x04N."])
def test_crafted_model(sections, tmp_path, pickled):
    path = str(tmp_path / "crafted.poptorch")
    container.write(path, {**sections, "model": pickled})
    with pytest.raises(poptorch.Error, match="crafted"):
        poptorch.load(path)


def crafted_list(path: Path, listing: bytes, size: int | None = None, rest: bytes = b"") -> None:
    head = struct.pack("<IQ32s", LAYOUT, len(listing) if size is None else size, hashlib.sha256(listing).digest())
    path.write_bytes(MAGIC + head + listing + rest)


def entry(**changes) -> dict:
    return {"name": "metadata", "offset": 0, "size": 2, "sha256": hashlib.sha256(b"{}").hexdigest(), **changes}


@pytest.mark.parametrize(
    "listing",
    [
        b"", b"\xff", b"null", b"7", b"{}", DEEP, b'["metadata"]', b"[{}]",
        *[
            json.dumps([entry(**changes)]).encode()
            for changes in (
                {"size": HUGE}, {"size": -HUGE}, {"size": None}, {"size": "2"}, {"size": 2.0}, {"offset": HUGE},
                {"offset": -HUGE}, {"offset": 1}, {"name": None}, {"name": ["metadata"]}, {"sha256": None},
            )
        ],
        json.dumps([entry(size=HUGE), entry(name="other", size=2 - HUGE, offset=HUGE)]).encode(),
        json.dumps([entry(size=0), entry()]).encode(),
    ],
)  # fmt: skip
def test_crafted_lists_of_sections(tmp_path, listing):
    path = tmp_path / "crafted.poptorch"
    crafted_list(path, listing, rest=b"{}")
    with pytest.raises(poptorch.Error, match="crafted"):
        poptorch.inferenceModel(Sum()).loadExecutable(str(path))


@pytest.mark.parametrize("size", [HUGE, 2**63, 2**64 - 1, 1 << 25])
def test_the_size_of_the_list_is_compared_with_the_file_before_it_is_read(tmp_path, size, monkeypatch):
    path = tmp_path / "crafted.poptorch"
    crafted_list(path, b"[]", size)
    asked = []
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: asked.append(size) or read(fd, size, offset))
    with pytest.raises(poptorch.Error, match="crafted"):
        File(path)
    assert max(asked) < 100


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "loop", ".", "a\0b"):
        with pytest.raises(poptorch.Error, match="Cannot open"):
            File(os.path.join(tmp_path, name))
