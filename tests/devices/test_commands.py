"""``gc-info``, ``gc-monitor`` and ``python -m poptorch devices``."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from poptorch.cli import gc_info, gc_monitor, main
from poptorch.devices import attachment

ROOT = Path(__file__).resolve().parents[2]


class Owner:
    """Something that devices can belong to."""


@pytest.fixture
def used(monkeypatch, tmp_path):
    """Four IPUs; this process has the first, and the last two together."""
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod4")
    monkeypatch.setenv("POPTORCH_DEVICES_DIR", str(tmp_path))
    owner = Owner()
    devices = [attachment.acquire(1, owner), attachment.acquire(2, owner)]
    yield
    for device in devices:
        device.release()


@pytest.fixture
def no_system(monkeypatch):
    monkeypatch.setenv("POPTORCH_SYSTEM", "none")


@pytest.mark.usefixtures("used")
class TestDevices:
    def test_text(self, capsys):
        assert main(["devices"]) == 0
        first, heading, *lines = capsys.readouterr().out.splitlines()
        assert first.startswith("pod4: 4 mk2 IPUs")
        assert heading.split() == ["Id", "kind", "state", "owner"]
        assert [line.split()[0] for line in lines] == ["0", "1", "2-3"]
        assert f" in use         {os.getpid()}: " in lines[0]
        assert "since 20" in lines[0]
        assert lines[1].endswith("free")

    def test_groups(self, capsys):
        assert main(["devices", "--groups"]) == 0
        lines = capsys.readouterr().out.splitlines()[2:]
        assert [line.split()[0] for line in lines] == ["0", "1", "2-3", "4", "5", "6"]
        assert "partly in use" in lines[3]
        assert "partly" not in lines[4]

    def test_json(self, capsys):
        assert main(["devices", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["system"] == "pod4"
        assert told["waiting"] == []
        states = {each["id"]: each["state"] for each in told["devices"]}
        assert states == {
            0: "in use",
            1: "free",
            2: "in use",
            3: "in use",
            4: "partly in use",
            5: "in use",
            6: "partly in use",
        }
        (owner,) = told["devices"][5]["owners"]
        assert (owner["pid"], owner["device"]) == (os.getpid(), 5)
        assert owner["since"] > 0


@pytest.mark.usefixtures("used")
class TestInfo:
    @pytest.mark.parametrize("option", ["-l", "--list-devices", "-a"])
    def test_list(self, option, capsys):
        assert gc_info.main([option, "--all-partitions"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "Graphcore device listing:"
        assert lines[2] == "Partition: pod4 [active]"
        assert lines[3] == "-+- Id: [0], target: [Fabric], IPU-M host: [virtual-0000], IPU#: [3]"
        at = lines.index("-+- Id: [5], target: [Multi IPU]")
        assert lines[at + 1] == " |--- Id: [2], DNC Id: [0], IPU-M host: [virtual-0000], IPU#: [1]"
        assert sum("Id: [" in line and "DNC" not in line for line in lines) == 7

    @pytest.mark.parametrize(
        ("arguments", "answer"),
        [
            (["--ipu-count"], "4"),
            (["--ipu-count", "-d", "5"], "2"),
            (["--ipu-arch"], "ipu2"),
            (["--ipu-arch", "--device-id", "2"], "ipu2"),
            (["--tile-clock-speed", "-d", "0"], "1330 MHz"),
            (["--chip-id", "-d", "1"], "IPU 1: 0x0001"),
            (["--tile-overview", "-d", "1"], "IPU 1: 1472 tiles of 624 KiB, all idle"),
        ],
    )
    def test_one_answer(self, arguments, answer, capsys):
        assert gc_info.main(arguments) == 0
        assert capsys.readouterr().out == f"{answer}\n"

    def test_everything_about_a_device(self, capsys):
        assert gc_info.main(["-d", "0", "-i"]) == 0
        told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
        assert told["board type"] == "M2000"
        assert told["ipu architecture"] == "ipu2"
        assert told["user process id"] == str(os.getpid())
        assert told["ipu power"] == "N/A"
        assert gc_info.main(["-d", "1", "-i", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["user process id"] == "N/A"

    @pytest.mark.parametrize("option", ["--chip-id", "--tile-overview"])
    def test_what_needs_a_free_device(self, option, capsys):
        assert gc_info.main([option, "-d", "5"]) == 1
        assert "Device Id 5 is in use, by this process" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [["--dump-mem"], ["--tile-status", "3", "-c", "W0"]])
    def test_what_virtual_ipus_do_not_have(self, arguments, capsys):
        assert gc_info.main(arguments) == 1
        assert "virtual" in capsys.readouterr().err

    def test_an_unknown_device(self, capsys):
        assert gc_info.main(["-i", "-d", "7"]) == 1
        assert "ids 0 to 6" in capsys.readouterr().err

    def test_one_thing_at_a_time(self, capsys):
        for arguments in ([], ["-l", "-i"]):
            with pytest.raises(SystemExit) as exit_:
                gc_info.main(arguments)
            assert exit_.value.code == 2
        assert "usage: gc-info" in capsys.readouterr().err


@pytest.mark.usefixtures("used")
class TestMonitor:
    def test_tables(self, capsys):
        assert gc_monitor.main([]) == 0
        text = capsys.readouterr().out
        assert "pod4 [active] has 4 reconfigurable IPUs" in text
        assert "Attached processes in partition pod4" in text
        rows = [line.split("|") for line in text.splitlines() if f"| {os.getpid()} " in line]
        assert [row[5].strip() for row in rows] == ["0", "2", "3"]
        assert len({len(line) for line in text.splitlines()}) <= 2  # each table has straight sides

    def test_without_cards(self, capsys):
        assert gc_monitor.main(["--no-card-info", "--all-partitions"]) == 0
        assert "Serial" not in capsys.readouterr().out

    @pytest.mark.parametrize("option", ["-j", "--json"])
    def test_json(self, option, capsys):
        assert gc_monitor.main([option]) == 0
        (card,) = json.loads(capsys.readouterr().out)["cards"]
        assert card["type"] == "M2000"
        assert [ipu["state"] for ipu in card["ipus"]] == ["in use", "free", "in use", "in use"]
        assert card["ipus"][0]["owner"]["pid"] == os.getpid()

    def test_csv(self, capsys):
        assert gc_monitor.main(["--csv"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert [row["state"] for row in rows] == ["in use", "free", "in use", "in use"]
        assert rows[3]["pid"] == str(os.getpid())


def test_no_processes(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("POPTORCH_DEVICES_DIR", str(tmp_path))
    assert gc_monitor.main([]) == 0
    assert "No attached processes in partition pod64" in capsys.readouterr().out
    assert gc_monitor.main(["--json"]) == 0
    assert 4 * len(json.loads(capsys.readouterr().out)["cards"]) == 64


@pytest.mark.usefixtures("no_system")
def test_no_ipus(capsys):
    assert gc_info.main(["-l"]) == 0
    assert "No IPU detected" in capsys.readouterr().out
    assert gc_info.main(["--ipu-count"]) == 0
    assert capsys.readouterr().out == "0\n"
    assert gc_info.main(["-i"]) == 1
    assert gc_monitor.main([]) == 0
    assert "No attached processes" in capsys.readouterr().out
    assert gc_monitor.main(["-j"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cards": []}
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ipus"] == 0
    assert main(["devices"]) == 0
    assert "no IPUs" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["gc-info", "-l"], ["gc-monitor"], ["devices"]])
def test_an_unknown_system(command, monkeypatch, capsys):
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod5")
    run = {"gc-info": gc_info.main, "gc-monitor": gc_monitor.main}.get(command[0], lambda _: main(command))
    assert run(command[1:]) == 1
    assert "POPTORCH_SYSTEM is 'pod5'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["c2", "dss8440", "c600", "bow-pod16"])
def test_other_systems(name, monkeypatch, capsys):
    monkeypatch.setenv("POPTORCH_SYSTEM", name)
    assert gc_info.main(["-l"]) == 0
    text = capsys.readouterr().out
    assert ("PCI Domain" in text) == (not name.startswith("bow"))
    assert gc_info.main(["--tile-clock-speed"]) == 0
    assert capsys.readouterr().out in ("1600 MHz\n", "1500 MHz\n", "1850 MHz\n")


@pytest.mark.usefixtures("used")
def test_other_processes_see_the_same(capsys):
    command = [sys.executable, "-m", "poptorch", "devices", "--json"]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=110).stdout)
    main(["devices", "--json"])
    assert seen == json.loads(capsys.readouterr().out)


def test_the_commands_are_installed():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["gc-info"] == f"{gc_info.main.__module__}:{gc_info.main.__name__}"
    assert scripts["gc-monitor"] == f"{gc_monitor.main.__module__}:{gc_monitor.main.__name__}"
