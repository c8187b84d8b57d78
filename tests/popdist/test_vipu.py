"""Partitions of this host: the registry, the commands, and what programs see of them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import popdist
import poptorch
from popdist.vipu.command import main, run
from popdist.vipu.registry import Partition, Registry, RegistryError, Spec
from poptorch.devices import partition as visible
from poptorch.devices.system import system


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of its own, which programs see, too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POPTORCH_VIPU_DIR", str(tmp_path / "vipu"))
    return Registry()


# --- the registry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Spec(6), "a power of two, not 6"),
        (Spec(0), "a power of two, not 0"),
        (Spec(4, 3), "IPUs between GCDs evenly: 4 by 3"),
        (Spec(4, 1, 3), "IPUs between replicas evenly: 4 by 3"),
        (Spec(4, 4, 2), "replicas between GCDs evenly: 2 by 4"),
        (Spec(4, 2, reconfigurable=True), "has one GCD"),
        (Spec(4, reconfigurable=True, sync_type="ST_POD_NATIVE_DEFAULT"), "c2-compatible, unless --index"),
        (Spec(128), "larger than this host, which has 64"),
        (Spec(32, index=2), "no block 2 of 32 IPUs among 64"),
    ],
)
def test_impossible_partitions(spec: Spec, text: str, registry: Registry) -> None:
    with pytest.raises(RegistryError, match=text):
        registry.create("p", spec, 64)
    assert registry.partitions() == {}


def test_partitions_have_ipus_of_their_own(registry: Registry) -> None:
    made = [registry.create(name, Spec(size), 16) for name, size in (("a", 4), ("b", 8), ("c", 4))]
    assert [partition.ipus() for partition in made] == [range(4), range(8, 16), range(4, 8)]
    with pytest.raises(RegistryError, match=r"no 2 IPUs are free side by side: 16 of 16 .* a, b, c"):
        registry.create("d", Spec(2), 16)
    with pytest.raises(RegistryError, match="exists already"):
        registry.create("a", Spec(1), 16)
    with pytest.raises(RegistryError, match="no name for a partition"):
        registry.create("../a", Spec(1), 16)
    registry.remove("b")
    assert registry.create("d", Spec(4, index=3), 16).first == 12
    with pytest.raises(RegistryError, match="there is no partition 'b'; there are: a, c, d"):
        registry.remove("b")


def test_creating_at_the_same_time(registry: Registry) -> None:
    failures: list[Exception] = []

    def create(number: int) -> None:
        try:
            registry.create(f"p{number}", Spec(2), 16)
        except RegistryError as error:
            failures.append(error)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [ipu for partition in registry.partitions().values() for ipu in partition.ipus()]
    assert sorted(taken) == list(range(16))
    assert len(failures) == 4


# --- the commands ----------------------------------------------------------------------------------------------


def test_the_life_of_a_partition(registry: Registry, tmp_path: Path) -> None:
    create = ["create", "partition", "p", "--size", "4", "--num-gcds", "2", "--gcd-sync-replicas", "4"]
    assert run(create) == "create partition (p): success.\n"
    assert registry.get("p") == Partition("p", Spec(4, 2, 4, sync_type="ST_POD_NATIVE_DEFAULT"), 0)
    files = sorted((tmp_path / ".ipuof.conf.d").iterdir())
    assert [file.name for file in files] == ["p_gcd0_ipuof.conf", "p_gcd1_ipuof.conf"]
    content = json.loads(run(["get", "partition", "p", "--gcd", "1", "--ipuof-configs"]))
    assert content == json.loads(files[1].read_text())
    assert [device["device id"] for device in content["devices"]] == [2, 3]
    assert content["attributes"]["GCD Id"] == "1"
    assert run(["reset", "partition", "p"]) == "reset partition (p): success.\n"
    assert run(["--api-host", "h", "remove", "partition", "p"]) == "remove partition (p): success.\n"
    assert registry.partitions() == {}
    assert not any((tmp_path / ".ipuof.conf.d").iterdir())


def test_lists(registry: Registry) -> None:
    run(["create", "partition", "one", "--size", "1", "--reconfigurable"])
    run(["create", "partition", "--size=8", "four", "--gcds=4", "--total-num-replicas=8", "--routing=swnc"])
    lines = run(["list", "partitions"]).splitlines()
    titles = ["Partition", "Cluster", "ILDs", "GW Routing", "ILD Routing", "Size", "GCDs", "State"]
    assert [cell.strip() for cell in lines[0].split("|")] == titles
    assert [cell.strip() for cell in lines[2].split("|")] == [
        "four", "localhost", "1", "UNDEFINED", "SWNC", "8", "4", "ACTIVE",
    ]  # fmt: skip
    assert set(lines[1]) == set(lines[-1]) == {"-"}
    assert run(["list", "partitions"], admin=True).splitlines()[2].split()[2] == "four"
    assert run(["list", "partition"]) == run(["list", "partitions", "-H", "somewhere"])
    assert "localhost" in run(["list", "allocations"])
    assert len(run(["list", "ipu-attrs"]).splitlines()) == 64 + 3
    assert "State:          ACTIVE" in run(["get", "partition", "one"])


def test_answers_in_json(registry: Registry) -> None:
    run(["create", "partition", "p", "--size", "4", "--num-gcds", "2", "--gcd-sync-replicas", "4"])
    (listed,) = json.loads(run(["-a", "--showjson", "list", "partition"]))
    spec = listed["partition"]["spec"]
    assert (listed["partition"]["id"], len(spec["ipus"]), spec["num_gcds"], spec["num_replicas"]) == ("p", 4, 2, 4)
    assert listed["partition"]["status"]["ready_state"] == "PS_ACTIVE"
    (cluster,) = json.loads(run(["-a", "--showjson", "list", "cluster"]))
    assert [len(domain["ipus"]) for domain in cluster["spec"]["ipu_link_domains"]] == [64]


def test_versions(registry: Registry) -> None:
    version, host = run(["--server-version", "--api-host", "h"]).splitlines()
    assert version.startswith("version: ")
    assert host == "host: h:8090"
    assert run(["--version"]).startswith("vipu ")
    assert "create partition NAME" in run(["--help"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["make", "partition", "p"], "no command 'make partition'"),
        (["create", "partition", "p"], "--size"),
        (["create", "partition", "p", "--size", "4", "--allocation", "other"], "no allocation 'other'"),
        (["remove", "partition", "missing"], "no partition 'missing'"),
        (["get", "partition", "missing"], "there are: none"),
        (["list", "partitions", "more"], "unexpected: more"),
    ],
)
def test_failures(arguments: list[str], text: str, registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) != 0
    printed = capsys.readouterr()
    assert text in printed.err
    assert not printed.out
    assert main(["remove", "partition", "missing", "--force"]) == 0


# --- what programs see -----------------------------------------------------------------------------------------


def seen() -> tuple[str, int]:
    machine = system()
    assert machine is not None
    return machine.name, machine.ipus


def test_the_part_of_a_process(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seen() == ("pod64", 64)
    registry.create("p", Spec(4, 2, 4), 64)
    assert seen() == ("pod64-p.0", 2)
    assert poptorch.ipuHardwareIsAvailable(2)
    assert not poptorch.ipuHardwareIsAvailable(4)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert seen() == ("pod64-p.1", 2)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    with pytest.raises(poptorch.Error, match="No IPUoF configuration file found for processId 2"):
        seen()
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
    registry.create("q", Spec(8, reconfigurable=True), 64)
    assert seen() == ("pod64", 64), "it is not clear which one"
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "q")
    assert seen() == ("pod64-q", 8)
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "p")
    monkeypatch.setenv("IPUOF_VIPU_API_GCD_ID", "1")
    assert seen() == ("pod64-p.1", 2)
    monkeypatch.setenv("IPUOF_CONFIG_PATH", str(tmp_path / ".ipuof.conf.d" / "q_ipuof.conf"))
    assert seen() == ("pod64-q", 8)
    monkeypatch.setenv("IPUOF_CONFIG_PATH", str(tmp_path / "missing"))
    with pytest.raises(poptorch.Error, match=r"connection file .*missing cannot be used"):
        seen()


def test_partitions_of_all_users(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry.create("p", Spec(4), 64)
    shared = tmp_path / "etc"
    (tmp_path / ".ipuof.conf.d").rename(shared)
    monkeypatch.setattr(visible, "FOR_ALL_USERS", shared)
    assert seen() == ("pod64-p", 4)
    registry.create("q", Spec(2), 64)
    assert seen() == ("pod64-q", 2), "the user's own files count first"


def test_a_partition_that_does_not_exist(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "old")
    assert visible.visible() is None
    assert seen() == ("pod64", 64)


def test_devices_of_instances(registry: Registry, monkeypatch: pytest.MonkeyPatch, launch: Any) -> None:
    registry.create("fixed", Spec(8, 4, 8), 64)
    registry.create("free", Spec(16, reconfigurable=True), 64)
    launch(total=8, local=2, ipus=1, instance=3)
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "fixed")
    monkeypatch.setenv("IPUOF_VIPU_API_GCD_ID", "3")
    assert popdist.getDeviceId() == 2, "the pair that is the part"
    monkeypatch.delenv("IPUOF_VIPU_API_GCD_ID")
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "free")
    monkeypatch.setenv("POPDIST_NODE_DEVICE_ID", "28")
    assert popdist.getDeviceId() == 16 + 3
