"""Options, hosts, layouts and the table of them: all that happens before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from popdist.poprun import hosts
from popdist.poprun.command_line import export, parse
from popdist.poprun.errors import PoprunError, UsageError
from popdist.poprun.instance import node_cores
from popdist.poprun.layout import Layout, layout_of
from popdist.poprun.main import main, version_text
from popdist.poprun.settings import OPTIONS, Settings
from popdist.poprun.topology import table

VALUES = {
    "version-format": "full-json", "import-config": None, "export-config": "out", "host": "a,b", "hostfile": "hosts",
    "host-subnet": "10.0.0.0/8", "num-replicas": "8", "num-instances": "4", "ipus-per-replica": "2", "num-ilds": "2",
    "vipu-server-host": "controller", "vipu-server-port": "8091", "vipu-server-timeout": "60", "vipu-partition": "p",
    "vipu-partition-attempts": "3", "vipu-allocation": "a", "vipu-cluster": "c", "sync-type": "ST_POD_NATIVE_DEFAULT",
    "executable-cache-path": "cache", "mpi-global-args": "--tag-output", "mpi-local-args": "-x A",
    "instance-mpi-local-args": "1:-x A", "process-placement": "disabled", "only-output-from-instance": "1",
}  # fmt: skip
FLAGS = {"help", "version", "verbose", "vv"}
SPELLINGS = {"yes": True, "no": False, "on": True, "off": False, "1": True, "0": False, "true": True, "false": False}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_attached_and_separate(option: object) -> None:
    name, field = option.name, option.field  # type: ignore[attr-defined]
    if name in FLAGS:
        assert getattr(parse([f"--{name}", "program"]).settings, field) is True
    elif name in VALUES:
        if (value := VALUES[name]) is None:
            return  # read from a file: a test of its own
        attached, separate = parse([f"--{name}={value}", "p", "q"]), parse([f"--{name}", value, "p", "q"])
        assert attached == separate
        assert attached.program == ("p", "q")
        assert getattr(attached.settings, field) != option.default  # type: ignore[attr-defined]
    else:
        for text, expected in SPELLINGS.items():
            for words in ([f"--{name}={text}"], [f"--{name}", text]):
                assert getattr(parse([*words, "p"]).settings, field) is expected


def test_short_options() -> None:
    assert parse(["-v", "p"]).settings.verbose
    assert parse(["-vv", "p"]).settings.vv
    assert parse(["-H", "a,b", "p"]).settings.host == parse(["-Ha,b", "p"]).settings.host == "a,b"


def test_the_program_keeps_its_own_options() -> None:
    line = parse(["--num-replicas", "2", "python3", "train.py", "--num-replicas", "1", "-v"])
    assert line.program == ("python3", "train.py", "--num-replicas", "1", "-v")
    assert parse(["--", "--odd-name"]).program == ("--odd-name",)


def test_arguments_for_mpirun_add_up() -> None:
    arguments = ["--mpi-global-args=--tag-output", "--mpi-local-args", "-x A=1\n-x B", "--mpi-local-args=-x C"]
    settings = parse([*arguments, "--mpi-global-args", "--mca a b", "p"]).settings
    assert settings.mpi_global_args == ("--tag-output", "--mca", "a", "b")
    assert settings.mpi_local_args == ("-x", "A=1", "-x", "B", "-x", "C")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--no-such", "p"], "no option --no-such"),
        (["--num-replicas"], "needs a value"),
        (["--num-replicas=0", "p"], "'0', but must be a whole number, 1 or more"),
        (["--num-instances=two", "p"], "'two', but must be a whole number"),
        (["--ipus-per-replica=-1", "p"], "1 or more"),
        (["--offline-mode=maybe", "p"], "must be one of yes, on, 1"),
        (["--host=a", "--hostfile=f", "p"], "exclude each other"),
        (["--instance-mpi-local-args=-x A", "p"], "the number of an instance, a colon"),
        (["--num-replicas=2"], "no program"),
    ],
)
def test_wrong_command_lines(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) != 0
    printed = capsys.readouterr()
    assert text in printed.err
    assert "POPRUN [E]" in printed.err
    assert "Usage: poprun" in printed.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--num-replicas=5", "--num-instances=2"], "5 replicas (--num-replicas) cannot be divided evenly"),
        (["--num-replicas=3", "--num-instances=3", "--host=a,b"], "cannot be divided evenly between 2 hosts (a, b)"),
        (["--num-replicas=1", "--host=a,b"], "divided evenly between 2 hosts"),
        (["--only-output-from-instance=2", "--num-replicas=2", "--num-instances=2"], "from 0 to 1"),
        (["--instance-mpi-local-args=1:-x A"], "names instance 1"),
        (["--num-replicas=128", "--num-instances=1"], "would need 128 IPUs"),
        (["--num-replicas=4", "--num-ilds=3"], "between 3 IPU-Link domains"),
        (["--num-replicas=6", "--num-instances=2"], "a device of 3 IPUs"),
        (["--import-config=no-such-file"], "no-such-file cannot be read"),
        (["--hostfile=no-such-file"], "no-such-file cannot be read"),
    ],
)
def test_jobs_that_are_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    started = tmp_path / "started"
    assert main([*arguments, "touch", str(started)]) != 0
    assert text in capsys.readouterr().err
    assert not started.exists()


def test_other_hosts_need_mpirun(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--host=elsewhere", "true"]) != 0
    assert "need Open MPI, and there is no mpirun" in capsys.readouterr().err


def test_help_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{option.name}" in text for option in OPTIONS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("poprun ")
    assert "torch" in json.loads(version_text("full-json"))
    assert "torch " in version_text("full-text")


def test_a_configuration_goes_to_a_file_and_back(tmp_path: Path) -> None:
    file = tmp_path / "job.conf"
    given = ["--num-replicas=8", "--num-instances=4", "--mpi-local-args=-x A='1 2' -x B", "--offline-mode=on"]
    settings = parse([*given, "--instance-mpi-local-args=2:-x C", "--reset-partition=no", "p"]).settings
    export(settings, file)
    again = parse([f"--import-config={file}", "p"]).settings
    assert again == parse([*given, "--instance-mpi-local-args=2:-x C", "--reset-partition=no",
                           f"--import-config={file}", "p"]).settings  # fmt: skip
    assert (again.num_replicas, again.mpi_local_args) == (8, ("-x", "A=1 2", "-x", "B"))
    assert parse([f"--import-config={file}", "--num-replicas=16", "p"]).settings.num_replicas == 16
    with pytest.raises(PoprunError, match="exists already"):
        export(settings, file)
    export(parse(["--overwrite-config=1", "p"]).settings, file)
    file.write_text("num-replicas: 4\n")
    with pytest.raises(PoprunError, match="line 1 of"):
        parse([f"--import-config={file}", "p"])


# --- hosts -----------------------------------------------------------------------------------------------------


def test_ranges_of_hosts(tmp_path: Path) -> None:
    assert hosts.expand("host[0-2,4]") == ("host0", "host1", "host2", "host4")
    assert hosts.expand("r[1-2]n[08-09],10.0.0.1") == ("r1n08", "r1n09", "r2n08", "r2n09", "10.0.0.1")
    for wrong in ("a,,b", "a[1", "a[2-1]", "a[x]"):
        with pytest.raises(UsageError):
            hosts.expand(wrong)
    file = tmp_path / "hosts"
    file.write_text("a  # the first\n\n# none\nb slots=2\n")
    assert hosts.of(Settings(hostfile=str(file))) == ("a", "b")
    file.write_text("\n")
    with pytest.raises(PoprunError, match="names no host"):
        hosts.of(Settings(hostfile=str(file)))


# --- layouts ---------------------------------------------------------------------------------------------------


def test_what_instances_are_told() -> None:
    layout = layout_of(Settings(num_replicas=8, num_instances=4, ipus_per_replica=2, host="a,b"))
    told = [layout.variables(instance) for instance in range(4)]
    assert [int(one["POPDIST_REPLICA_INDEX_OFFSET"]) for one in told] == [0, 2, 4, 6]
    assert [int(one["POPDIST_LOCAL_INSTANCE_INDEX"]) for one in told] == [0, 1, 0, 1]
    assert [layout.host_of(instance) for instance in range(4)] == ["a", "a", "b", "b"]
    assert {key: told[0][key] for key in told[0] if key.startswith("POPDIST_NUM")} == {
        "POPDIST_NUM_TOTAL_REPLICAS": "8",
        "POPDIST_NUM_LOCAL_REPLICAS": "2",
        "POPDIST_NUM_IPUS_PER_REPLICA": "2",
    }
    assert layout_of(Settings(num_replicas=16, ipus_per_replica=8, num_instances=2)).link_domains == 2


def test_cores_of_numa_nodes(tmp_path: Path) -> None:
    for number, text in ((0, "0-1,4\n"), (10, "6\n"), (2, "\n")):
        folder = tmp_path / f"node{number}"
        folder.mkdir()
        (folder / "cpulist").write_text(text)
    assert node_cores(tmp_path) == [{0, 1, 4}, set(), {6}]


# --- the table -------------------------------------------------------------------------------------------------

ONE = """\
 ===============
| poprun top... |
|===============|
| hosts     |[0]|
|-----------|---|
| ILDs      | 0 |
|-----------|---|
| instances | 0 |
|-----------|---|
| replicas  | 0 |
 ---------------
[0]: localhost"""
EIGHT = """\
 ===========================================
|              poprun topology              |
|===========================================|
| hosts     |   host-one    |   host-two    |
|-----------|-------------------------------|
| ILDs      |               0               |
|-----------|-------------------------------|
| instances |   0   |   1   |   2   |   3   |
|-----------|-------------------------------|
| replicas  | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
 -------------------------------------------"""


def test_the_smallest_table_is_abbreviated() -> None:
    assert table(Layout(1, 1, 1)) == ONE


def test_a_table_of_two_hosts() -> None:
    assert table(Layout(8, 4, 1, ("host-one", "host-two"))) == EIGHT


@pytest.mark.parametrize("replicas", [1, 2, 4, 8, 16])
def test_all_rows_of_a_table_have_its_width(replicas: int) -> None:
    lines = table(Layout(replicas, max(1, replicas // 2), 1, ("localhost",))).splitlines()
    digits = len(str(replicas - 1))
    inner = 12 + replicas * (digits + 3) - 1
    body = lines[1:10]
    assert lines[0] == " " + "=" * inner
    assert lines[10] == " " + "-" * inner
    assert all(len(line) == inner + 2 and line[0] == line[-1] == "|" for line in body)
    assert [line[1:12].strip() for line in body[2::2]] == ["hosts", "ILDs", "instances", "replicas"]
    assert [int(cell) for cell in body[-1][13:-1].split("|")] == list(range(replicas))
    assert lines[11:] == (["[0]: localhost"] if replicas * (digits + 3) - 3 < len("localhost") else [])
