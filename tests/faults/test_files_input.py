"""Input that is not what it should be: registries, host files, reports, names, environment, host operations."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import poptorch
from popdist.poprun.main import main as poprun
from popdist.vipu.command import main as vipu
from popdist.vipu.registry import Registry, RegistryError, Spec
from poptorch.devices import partition
from poptorch.distributed.peers import Peer
from poptorch.executable import file as container
from poptorch.options.connection_files import connection_files
from poptorch.report import files
from poptorch.report.checking import check_sizes, column

# -- partitions --------------------------------------------------------------------------------------------------------

GARBAGE = [
    b"", b"\xff\xfe", b"{", b"[" * 100_000, b"null", b"[]", b'"text"', b"7", b'{"gcds": []}', b"1" * 10_000,
    b'{"gcds": [], "spec": 3, "name": "x", "first": 0, "state": "A", "resets": 0}',
    b'{"gcds": [], "spec": {"size": "4"}, "name": "broken", "first": 0, "state": "A", "resets": 0}',
    b'{"gcds": [], "spec": {"size": 4}, "name": "broken", "first": -1, "state": "A", "resets": 0}',
    b'{"gcds": [], "spec": {"size": 1e99}, "name": "broken", "first": 0, "state": "A", "resets": 0}',
    b'{"gcds": [], "spec": {"size": 4}, "name": "another", "first": 0, "state": "A", "resets": 0}',
]  # fmt: skip


@pytest.fixture
def registry(tmp_path, monkeypatch) -> Registry:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POPTORCH_VIPU_DIR", str(tmp_path / "vipu"))
    found = Registry()
    found.create("sound", Spec(4), 64)
    return found


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage_in_the_registry_is_named_and_the_other_partitions_are_listed(content, registry, tmp_path, capsys):
    path = tmp_path / "vipu" / "broken.json"
    path.write_bytes(content)
    assert vipu(["list", "partitions"]) == 0
    shown = capsys.readouterr()
    assert " sound " in shown.out
    assert str(path) in shown.err
    assert list(registry.partitions()) == ["sound"]
    for command in (["get", "partition", "broken"], ["reset", "partition", "broken"]):
        assert vipu(command) == 1
        assert str(path) in capsys.readouterr().err
    with pytest.raises(RegistryError, match=str(path)):
        registry.create("more", Spec(4), 64)
    assert vipu(["remove", "partition", "broken"]) == 0
    registry.create("more", Spec(4), 64)


@pytest.mark.parametrize("content", [*GARBAGE[:8], b'{"devices": [], "attributes": {}}', b'{"devices": [1]' * 2])
def test_garbage_in_connection_files(content, registry, tmp_path, monkeypatch):
    path = tmp_path / "mine.conf"
    path.write_bytes(content)
    monkeypatch.setenv("IPUOF_CONFIG_PATH", str(path))
    with pytest.raises(poptorch.Error, match=r"mine\.conf cannot be used"):
        partition.visible()
    monkeypatch.delenv("IPUOF_CONFIG_PATH")
    (tmp_path / "vipu" / "broken.json").write_bytes(content)
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "broken")
    with pytest.raises(poptorch.Error, match=r"broken\.json cannot be used"):
        partition.visible()
    if content != b'{"devices": [], "attributes": {}}':
        with pytest.raises(poptorch.Error, match=r"mine\.conf cannot be used"):
            connection_files(str(path))


# -- PopRun ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["--hostfile", "/dev/zero"], "it is larger than"),
        (["--import-config", "/dev/zero"], "it is larger than"),
        (["--host", "h[0-99999999]"], "too many hosts"),
        (["--host", "h[0-9][0-9][0-9][0-9][0-9]"], "too many hosts"),
        (["--host", "h[0-9999]," * 9 + "x"], "too many hosts"),
        (["--host", f"h[0-{'9' * 5000}]"], "cannot be read"),
        (["--host", "h[²-³]"], "cannot be read"),
        (["--host", "h[" + "1" * 100_000], "without its partner"),
        (["--num-replicas", "99999999", "--num-instances", "99999999"], "more than PopRun can start"),
        (["--num-replicas", "x" * 2_000_000], "must be a whole number"),
        (["--instance-mpi-local-args", "²:-x A"], "must be the number of an instance"),
        (["--hostfile", "/"], "cannot be read"),
        (["--export-config", "a\0b"], "has a character NUL"),
        (["--mpi-local-args=-x A=\0"], "has a character NUL"),
        (["--hostfile", "a\0b"], "has a character NUL"),
    ],
)
def test_poprun_ends_at_once(arguments, phrase, capsys):
    began = time.monotonic()
    assert poprun([*arguments, "true"]) == 1
    assert time.monotonic() - began < 5
    shown = capsys.readouterr().err
    assert phrase in shown
    assert len(shown) < 2000


def test_hosts_may_come_from_a_pipe(capfd):
    read, write = os.pipe()
    os.write(write, b"localhost\n127.0.0.1\n")
    os.close(write)
    assert poprun(["--hostfile", f"/dev/fd/{read}", "--num-instances", "3", "--num-replicas", "3", "true"]) == 1
    os.close(read)
    assert "between 2 hosts (localhost, 127.0.0.1)" in capfd.readouterr().err


# -- reports -----------------------------------------------------------------------------------------------------------


def archive(path: Path, document: bytes, **columns: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("profile.json", document)
        for name, content in columns.items():
            opened.writestr(f"tables/{name}.npy", content)
    return path


HEADER = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (8589934592,), }"
DOCUMENT = b'{"format": "poptorch profile", "version": 1, "tables": ["t"]}'


@pytest.mark.parametrize(
    ("document", "columns", "phrase"),
    [
        (b"[" * 100_000, {}, "nested too deeply"),
        (b"null", {}, "TypeError"),
        (b'{"format": "poptorch profile", "version": "x"}', {}, "TypeError"),
        (DOCUMENT, {"t/c": HEADER.ljust(128)}, "8589934592 values"),
        (DOCUMENT, {"t/c": b"\x93NUMPY\x03\x00\xff\xff\xff\xff" + b" " * 100}, "header of"),
        (DOCUMENT, {"t/c": b"\x93NUMPY\x01\x00\x03\x00{{{"}, "SyntaxError"),
        (DOCUMENT, {}, "the document has no 'model'"),
    ],
)
def test_profiles_that_are_none(document, columns, phrase, tmp_path):
    path = archive(tmp_path / "profile.pop", document, **columns)
    with pytest.raises(poptorch.Error, match=r"profile\.pop is no profile") as caught:
        poptorch.report.openReport(path)
    assert phrase in str(caught.value)


@pytest.mark.parametrize(("packed", "claimed"), [(100, 1 << 20), (1 << 30, 3 << 30), (-1, 64 << 30)])
def test_sizes_are_checked_before_anything_is_unpacked(packed, claimed):
    member = zipfile.ZipInfo("tables/t/c.npy")
    member.compress_size, member.file_size = packed, claimed
    with pytest.raises(ValueError, match="claims"):
        check_sizes([member])
    with pytest.raises(ValueError, match="twice"):
        check_sizes([zipfile.ZipInfo("a"), zipfile.ZipInfo("a")])


def test_a_profile_that_claims_64_gib_takes_no_memory(tmp_path):
    path = archive(tmp_path / "profile.pop", DOCUMENT, **{"t/c": HEADER.ljust(128)})
    code = (
        "import resource, sys, poptorch\nfrom poptorch.report import openReport\n"
        "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n"
        "try: openReport(sys.argv[1])\nexcept poptorch.Error as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=100)
    assert "8589934592 values" in done.stdout, done.stderr


def test_a_report_with_endless_loops(tmp_path):
    train_with_name("bert", tmp_path)
    profile = files.load(tmp_path / "bert")
    profile.tables["programs"]["repeat"][:] = 2**40
    files.save(tmp_path, profile)
    report = poptorch.report.openReport(tmp_path)
    with pytest.raises(poptorch.Error, match="steps"):
        _ = report.execution.steps
    str(report)


def train_with_name(name: str, folder: Path, **variables: str) -> None:
    options = poptorch.Options().enableProfiling(str(folder)).modelName(name)
    poptorch.inferenceModel(torch.nn.Linear(2, 2), options)(torch.ones(1, 2))


@pytest.mark.parametrize(
    ("name", "made"),
    [("a\0b", "a_b"), ("a\udc80b", "a?b"), ("../outside", ".._outside"), ("..", "_"), ("a/b", "a_b"), ("/etc", "_etc"),
     ("x" * 1000, "x" * 200), ("bert", "bert")],
)  # fmt: skip
def test_names_of_models_are_names_of_folders(name, made, tmp_path):
    folder = tmp_path / "reports"
    train_with_name(name, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]
    assert [path.name for path in folder.iterdir()] == [made]
    assert (folder / made / "profile.pop").exists()


def test_a_folder_for_reports_that_cannot_be(tmp_path, caplog):
    train_with_name("bert", Path("a\0b"))
    assert "The report cannot be written" in caplog.text


# -- peers, environment, saving, host operations -----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "null", "{", '{"process_id": "x"}'])
def test_a_peer_that_says_nonsense_is_the_one_that_is_named(text):
    with pytest.raises(poptorch.Error, match="Process 1 says about itself what makes no sense"):
        Peer.said("here/1", text.encode())


@pytest.mark.parametrize("text", ["", "  ", "{", "[" * 100_000, "1" * 10_000])
def test_default_options_that_are_no_json_are_our_error(text, monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    with pytest.raises(poptorch.Error, match="POPTORCH_DEFAULT_OPTIONS") as caught:
        poptorch.Options()
    assert isinstance(caught.value, json.JSONDecodeError)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text", ["ipu_reset:" + "x" * 2_000_000, "y" * 2_000_000, "ipu_reset;" * 100_000 + "z\n\x1b[2J"]
)
def test_long_fault_texts_are_quoted_in_one_line(text, monkeypatch):
    monkeypatch.setenv("POPTORCH_FAULTS", text)
    with pytest.raises(poptorch.Error, match="POPTORCH_FAULTS is not understood") as caught:
        poptorch.inferenceModel(torch.nn.ReLU())(torch.ones(1))
    message = str(caught.value)
    assert len(message) < 600
    assert "\x1b" not in message
    line, mark = message.removesuffix(" [PT9000]").splitlines()[1:3]
    assert len(mark) <= len(line) + 1


def test_a_save_without_memory_is_our_error(tmp_path, monkeypatch):
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2))

    def no_memory(*unused):
        raise MemoryError

    for module, name in ((container, "bytes_of"), (torch, "save")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, no_memory)
            with pytest.raises(poptorch.Error, match="not enough memory"):
                model.save(str(tmp_path / "file"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "phrase"), [("a\0b", "no name of a file"), ("x" * 300, "too long")])
def test_names_that_no_file_can_have(name, phrase, tmp_path):
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2))
    with pytest.raises(poptorch.Error, match=phrase):
        model.save(str(tmp_path / name))


def test_a_full_or_read_only_file_system(tmp_path):
    """The file that is there stays as it is, and nothing else is left."""
    model = poptorch.inferenceModel(torch.nn.Linear(200, 200))
    model(torch.ones(1, 200))
    path = tmp_path / "file"
    model.save(str(path))
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(poptorch.Error, match=r"Cannot save to .*is as it was"):
            model.save(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    with pytest.raises(poptorch.Error, match="Cannot save to /proc/"):
        model.save("/proc/no-such-file")


@pytest.mark.parametrize(
    ("made", "phrase"),
    [(lambda x: torch.empty_like(x, device="meta"), "on the meta device"), (lambda x: x.to_sparse(), "sparse")],
)
def test_host_operations_return_dense_tensors_of_the_cpu(made, phrase):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = poptorch.CPU(made, f"made {phrase}")

        def forward(self, x):
            return self.calls(x) + 1

    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.inferenceModel(Model())(torch.ones(2))


def test_a_host_operation_that_changes_its_mind():
    """Values when the model is compiled, and none when it runs."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            calls = []
            self.calls = poptorch.CPU(lambda x: calls.append(1) or x.to("meta" if len(calls) > 1 else "cpu"), "changes")

        def forward(self, x):
            return self.calls(x) + 1

    with pytest.raises(poptorch.Error, match="on the meta device"):
        poptorch.inferenceModel(Model())(torch.ones(2))


def test_columns_of_reports_come_back(tmp_path):
    arrays = [np.array([1.5, np.pi]), np.arange(3), np.array(["a", "longer"]), np.array([True]), np.zeros(0, "U1")]
    for array in arrays:
        file = io.BytesIO()
        np.lib.format.write_array(file, array)
        assert column(file.getvalue()).tolist() == array.tolist()


def test_a_pipe_in_place_of_a_connection_file_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "pipe.conf"
    os.mkfifo(path)
    monkeypatch.setenv("IPUOF_CONFIG_PATH", str(path))
    began = time.monotonic()
    with pytest.raises(poptorch.Error, match="it is not a regular file"):
        partition.visible()
    with pytest.raises(poptorch.Error, match="it is not a regular file"):
        connection_files(str(path))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["p" * 300, "--size", "4"], "is no name for a partition"),
        (["p", "--size", "9" * 5000], "invalid int value"),
        (["p", "--size", "4", "--num-ilds", "9" * 100], "link domains"),
        (["p", "--size", "4", "--num-ilds", "0"], "link domains"),
    ],
)
def test_partitions_that_cannot_be(arguments, phrase, registry, capsys):
    assert vipu(["create", "partition", *arguments]) == 1
    said = capsys.readouterr().err
    assert phrase in said
    assert len(said) < 1100
    assert list(registry.partitions()) == ["sound"]
