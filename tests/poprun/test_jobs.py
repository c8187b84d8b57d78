"""What PopRun does with the programs it starts, which are shell scripts: streams, variables, exit codes and ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from popdist.poprun.main import main
from popdist.vipu.registry import Registry, Spec

OFFLINE = ["--offline-mode=on", "--num-replicas=4", "--num-instances=2"]
BOTH = ["elastic", "mpirun"]
PATIENCE = 100


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_VIPU_DIR", str(tmp_path / "vipu"))


@pytest.fixture(params=BOTH)
def launcher(request: pytest.FixtureRequest) -> list[str]:
    """The options that choose a launcher."""
    return [] if request.param == "elastic" else with_mpirun()


def with_mpirun() -> list[str]:
    if shutil.which("mpirun") is None:
        assert not os.environ.get("REQUIRE_MPI"), "there is no mpirun, and .ci/run says that there must be one"
        pytest.skip("there is no mpirun (package openmpi-bin)")
    return ["--host=localhost"]


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def tagged(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("[1,"))


def test_streams_variables_and_success(launcher: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    script = (
        "echo $POPDIST_REPLICA_INDEX_OFFSET $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE $A $B;"
        'echo problem >&2; test -z "$POPDIST_NODE_DEVICE_ID$IPUOF_VIPU_API_HOST"'
    )
    local = ["--mpi-local-args=-x A=1 -x NO_SUCH_VARIABLE", "--instance-mpi-local-args=1:-x B=2"]
    assert main([*launcher, *OFFLINE, *local, "--print-topology=yes", *sh(script)]) == 0
    printed = capfd.readouterr()
    assert tagged(printed.out) == ["[1,0]<stdout>:0 0 of 2 1", "[1,1]<stdout>:2 1 of 2 1 2"]
    assert tagged(printed.err) == ["[1,0]<stderr>:problem", "[1,1]<stderr>:problem"]
    assert "| replicas  | 0 | 1 | 2 | 3 |" in printed.out
    assert "POPRUN" not in printed.err, "silent by default"


def test_one_instance_may_be_shown_alone(launcher: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    script = "echo here; echo problem >&2"
    assert main([*launcher, *OFFLINE, "--only-output-from-instance", "0", *sh(script)]) == 0
    printed = capfd.readouterr()
    assert tagged(printed.out + printed.err) == ["[1,0]<stderr>:problem", "[1,0]<stdout>:here"]


def test_the_first_failure_ends_the_job(
    launcher: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from popdist.poprun import local

    monkeypatch.setattr(local, "GRACE_SECONDS", 0.5)
    script = f"echo $$ >{tmp_path}/$RANK; if [ $RANK = 1 ]; then exit 3; fi; sleep 1000 & wait"
    assert main([*launcher, *OFFLINE, *sh(script)]) == 3
    assert_all_gone([int((tmp_path / "0").read_text())])
    if not launcher:
        assert re.search(r"POPRUN \[E\] Instance 1 \(process \d+\) ended with exit code 3", capfd.readouterr().err)


def test_an_instance_that_is_killed(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from popdist.poprun import local

    monkeypatch.setattr(local, "GRACE_SECONDS", 30)
    # The other one notices by itself, and has time to say so.
    script = "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 1; echo one is lost; exit 5"
    assert main([*OFFLINE, *sh(script)]) == 128 + signal.SIGKILL
    printed = capfd.readouterr()
    assert "was ended by SIGKILL" in printed.err
    assert tagged(printed.out) == ["[1,0]<stdout>:one is lost"]


def test_programs_that_do_not_exist(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--offline-mode=on", "/no/such/program"]) == 127
    assert "/no/such/program cannot be started" in capfd.readouterr().err


def test_lines_without_ends_and_progress_bars(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--offline-mode=on", *sh(r"printf 'a\n\n10%%\r20%%\rend'")]) == 0
    tag = "[1,0]<stdout>:"
    assert capfd.readouterr().out == f"{tag}a\n{tag}\n{tag}10%\r{tag}20%\r{tag}end\n"


def test_output_goes_to_files_too(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*OFFLINE, f"--mpi-global-args=--output-filename {tmp_path}/logs", *sh("echo $RANK")]) == 0
    assert (tmp_path / "logs/1/rank.1/stdout").read_text() == "1\n"
    assert "[1,1]<stdout>:1" in capfd.readouterr().out


def test_messages(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--vv", "--offline-mode=on", "--host-subnet=10.0.0.0/8", "--mpi-global-args=--report-bindings"]
    assert main([*arguments, "--vipu-cluster=c", "true"]) == 0
    printed = capfd.readouterr()
    assert "poprun top..." in printed.out
    for pattern in (
        r"\[D\] --host-subnet is ignored",
        r"\[W\] --vipu-cluster is deprecated",
        r"\[I\] .*have no effect: --report-bindings",
        r"\[D\] Instance 0 is process \d+",
        r"\[I\] The job ended with exit code 0",
    ):
        assert re.search(r"^\d\d:\d\d:\d\d\.\d\d\d \d+ POPRUN " + pattern, printed.err, re.MULTILINE), pattern


# --- the end of the launcher -----------------------------------------------------------------------------------


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], list[int]]]]:
    """Starts a job of two instances that wait; returns the launcher, and the instances' process numbers."""
    launchers: list[subprocess.Popen[str]] = []

    def start(*options: str) -> tuple[subprocess.Popen[str], list[int]]:
        script = f"echo $$ >{tmp_path}/$RANK.new; mv {tmp_path}/$RANK.new {tmp_path}/$RANK.pid; sleep 1000 & wait"
        command = [sys.executable, "-m", "popdist.poprun", *options, *OFFLINE, *sh(script)]
        launchers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        await_that(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
        return launchers[0], [int(path.read_text()) for path in sorted(tmp_path.glob("*.pid"))]

    yield start
    for process in launchers:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_all_instances(
    number: signal.Signals, background: Callable[..., tuple[subprocess.Popen[str], list[int]]]
) -> None:
    process, pids = background(*([] if number == signal.SIGINT else with_mpirun()))
    process.send_signal(number)
    assert process.wait(PATIENCE) == 128 + number
    assert_all_gone(pids)


@pytest.mark.parametrize("options", [[], ["--host=localhost"]], ids=BOTH)
def test_instances_do_not_outlive_a_launcher_that_is_killed(
    options: list[str], background: Callable[..., tuple[subprocess.Popen[str], list[int]]]
) -> None:
    process, pids = background(*(with_mpirun() if options else []))
    process.kill()
    process.wait(PATIENCE)
    assert_all_gone(pids)


def assert_all_gone(pids: list[int]) -> None:
    await_that(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


# --- partitions ------------------------------------------------------------------------------------------------

VARIABLES = "echo node=$POPDIST_NODE_DEVICE_ID gcd=$IPUOF_VIPU_API_GCD_ID partition=$IPUOF_VIPU_API_PARTITION_ID"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(connections=tmp_path / "conf")


def test_the_whole_host_without_partitions(
    registry: Registry, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_SYSTEM", "pod16")
    sizes = ["--num-replicas=8", "--num-instances=4", "--ipus-per-replica=2"]
    assert main([*sizes, *sh(VARIABLES)]) == 0
    assert {line.partition(":")[2] for line in tagged(capfd.readouterr().out)} == {"node=30 gcd= partition="}
    assert main(["--num-replicas=32", "--num-instances=4", "true"]) != 0
    assert "needs 32 IPUs" in capfd.readouterr().err


def test_a_partition_is_made_and_removed(registry: Registry, capfd: pytest.CaptureFixture[str]) -> None:
    job = ["--num-replicas=4", "--num-instances=2", "--vipu-partition=p", "-v"]
    assert main([*job, *sh(VARIABLES)]) == 0
    printed = capfd.readouterr()
    assert tagged(printed.out) == [f"[1,{i}]<stdout>:node= gcd={i} partition=p" for i in range(2)]
    assert "Creating the partition p: 4 IPUs, 2 GCDs, 4 replicas" in printed.err
    assert registry.partitions() == {}
    assert main([*job, "--remove-partition=no", "false"]) == 1
    assert registry.get("p").spec.num_gcds == 2


@pytest.mark.parametrize(
    ("options", "host"), [([], "localhost"), (["--vipu-server-host=other"], "other")], ids=["default", "option"]
)
@pytest.mark.parametrize("configured", ["", "controller"])
def test_the_controller_that_instances_are_told(
    options: list[str],
    host: str,
    configured: str,
    registry: Registry,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VIPU_CLI_API_HOST", configured)  # what the vipu command is told counts without the option
    assert main(["--vipu-partition=p", *options, *sh("echo $IPUOF_VIPU_API_HOST:$IPUOF_VIPU_API_PORT")]) == 0
    expected = host if options else configured or host
    assert tagged(capfd.readouterr().out) == [f"[1,0]<stdout>:{expected}:8090"]


def test_partitions_that_exist(registry: Registry, capfd: pytest.CaptureFixture[str]) -> None:
    job = ["--num-replicas=4", "--num-instances=2"]
    registry.create("fixed", Spec(4, 2, 2), 64)
    assert main([*job, *sh(VARIABLES)]) != 0
    assert "it has 2 replicas, and the job needs 4" in capfd.readouterr().err
    assert main(["--num-replicas=256", "--num-instances=2", "--update-partition=yes", *sh(VARIABLES)]) != 0
    assert registry.get("fixed").spec == Spec(4, 2, 2).checked(), "it could not be made anew, and is as it was"
    assert main([*job, "--update-partition=yes", *sh(VARIABLES)]) == 0
    assert registry.get("fixed").spec.num_replicas == 4, "it is the user's, and stays"
    assert main([*job, *sh(VARIABLES)]) == 0
    assert registry.get("fixed").resets == 1, "the second run found it, and reset it"
    registry.create("free", Spec(8, reconfigurable=True), 64)
    capfd.readouterr()
    assert main([*job, *sh(VARIABLES)]) != 0
    assert "several partitions: fixed, free. Choose one with --vipu-partition" in capfd.readouterr().err
    before = dict(os.environ)
    assert main([*job, "--vipu-partition", "free", *sh(VARIABLES)]) == 0
    assert dict(os.environ) == before, "what instances are told is not for the launcher itself"
    assert tagged(capfd.readouterr().out) == [f"[1,{i}]<stdout>:node=12 gcd= partition=free" for i in range(2)]
    assert main(["--num-replicas=16", "--num-instances=2", "--vipu-partition=free", "true"]) != 0
    assert "There are 8 in the partition 'free'" in capfd.readouterr().err
    assert set(registry.partitions()) == {"fixed", "free"}
