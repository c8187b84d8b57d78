"""Partitions through the command-line tool of the controller; a script stands in for the tool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poptorch.distributed import Partition, VirtualIpuManager

TOOL = """#!{python}
import json, pathlib, sys
assert sys.argv[1:3] == ["-a", "--showjson"]
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[3:]) + "\\n")
answers = json.loads(pathlib.Path({answers!r}).read_text())
words = " ".join(sys.argv[3:5])
if "missing" in sys.argv:
    sys.exit("no such partition")
if words in answers:
    print(json.dumps(answers[words]))
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs the tool; returns what it was called with, and a function that sets its answers."""
    log, answers = tmp_path / "log", tmp_path / "answers"
    log.touch()
    answers.write_text("{}")
    script = tmp_path / "vipu-cli"
    script.write_text(TOOL.format(python=sys.executable, log=str(log), answers=str(answers)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    class Tool:
        def calls(self) -> list[list[str]]:
            return [json.loads(line) for line in log.read_text().splitlines()]

        def answer(self, **given: Any) -> None:
            answers.write_text(json.dumps({words.replace("_", " "): value for words, value in given.items()}))

    return Tool()


def test_a_partition_is_a_value() -> None:
    assert Partition(4) == Partition(4, 1, 1) != Partition(4, 2)
    assert str(Partition(4, 2, 4)) == "{'num_ipus': 4, 'num_gcds': 2, 'num_sync_replicas': 4}"


def test_without_the_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert VirtualIpuManager.isAvailable() is False
    with pytest.raises(FileNotFoundError, match="vipu-cli"):
        VirtualIpuManager.listPartitions()


def test_partitions_are_listed(tool: Any) -> None:
    spec = {"ipus": [{}, {}, {}, {}], "num_gcds": 2, "num_replicas": 4}
    tool.answer(list_partition=[{"partition": {"id": "p", "spec": spec}}])
    assert VirtualIpuManager.isAvailable() is True
    assert VirtualIpuManager.listPartitions() == {"p": Partition(4, 2, 4)}
    assert tool.calls() == [["--version"], ["list", "partition"]]


def test_partitions_are_made_and_removed(tool: Any) -> None:
    VirtualIpuManager.createPartition("p", Partition(4, 2, 4))
    VirtualIpuManager.resetPartition("p")
    VirtualIpuManager.deletePartition("p")
    assert tool.calls() == [
        ["create", "partition", "p", "--size", "4", "--num-gcds", "2", "--gcd-sync-replicas", "4"],
        ["reset", "partition", "p"],
        ["delete", "partition", "p"],
    ]
    with pytest.raises(AssertionError, match="Expected a Partition"):
        VirtualIpuManager.createPartition("p", 4)  # type: ignore[arg-type]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        VirtualIpuManager.deletePartition("missing")
    assert "no such partition" in caught.value.stderr


def test_ipus_of_one_cluster(tool: Any) -> None:
    domain = {"ipus": [{}] * 16}
    tool.answer(list_cluster=[{"spec": {"ipu_link_domains": [domain]}}])
    assert VirtualIpuManager.numIpus() == 16
    tool.answer(list_cluster=[{"spec": {"ipu_link_domains": [domain, domain]}}])
    with pytest.raises(AssertionError, match="one link domain"):
        VirtualIpuManager.numIpus()
    tool.answer(list_cluster=[])
    with pytest.raises(AssertionError, match="one cluster"):
        VirtualIpuManager.numIpus()


def test_with_the_tool_of_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "vipu-cli"
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom popdist.vipu.command import main\nsys.exit(main())\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POPTORCH_VIPU_DIR", str(tmp_path / "vipu"))
    assert VirtualIpuManager.isAvailable()
    assert VirtualIpuManager.numIpus() == 64
    VirtualIpuManager.createPartition("p", Partition(4, 2, 4))
    assert VirtualIpuManager.listPartitions() == {"p": Partition(4, 2, 4)}
    VirtualIpuManager.resetPartition("p")
    VirtualIpuManager.deletePartition("p")
    assert VirtualIpuManager.listPartitions() == {}
    with pytest.raises(subprocess.CalledProcessError) as caught:
        VirtualIpuManager.resetPartition("p")
    assert "there is no partition 'p'" in caught.value.stderr
