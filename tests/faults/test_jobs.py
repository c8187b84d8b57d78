"""Jobs that others want to join, whose start is untidy, or whose network goes away."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import processes
import virtual_hosts
from processes import Ended

PROGRAM = processes.TESTS / "job_cases.py"
LOOPBACK = "0100007F"
"""127.0.0.1, as the kernel writes it."""

pytestmark = pytest.mark.timeout(600)


def run(
    case: str, *arguments: str, count: int = 2, seconds: int = 60,
    variables: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
) -> list[Ended]:  # fmt: skip
    with processes.Job(PROGRAM, count, case, *arguments, variables=variables, seconds=seconds) as job:
        return job.wait()


def assert_all_ended_well(ended: Sequence[Ended]) -> None:
    for rank, end in enumerate(ended):
        assert end.code == 0, f"process {rank} ended with {end.code}: {end.output}"


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


# -- which launcher counts --------------------------------------------------------------------------------------------


def test_torchrun_in_a_container_that_knows_of_one_mpi_process() -> None:
    outer = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
    inner = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "mine"}
    inner |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ended = run("by_launcher", variables=[{**outer, **inner, "RANK": str(rank)} for rank in range(2)])
    assert_all_ended_well(ended)
    assert all("members: [0, 1]" in end.output for end in ended)


def test_processes_of_mpich_find_each_other() -> None:
    variables = [{"PMI_SIZE": "2", "PMI_RANK": str(rank), "PMI_ID": str(rank)} for rank in range(2)]
    ended = run("by_launcher", variables=variables, seconds=40)
    assert_all_ended_well(ended)
    assert all("members: [0, 1]" in end.output for end in ended)


# -- who is let in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["file", "rendezvous", "master"])
def test_a_job_of_one_host_listens_nowhere_else(way: str) -> None:
    ways = {
        "file": {},
        "rendezvous": {"POPTORCH_RENDEZVOUS": f"127.0.0.1:{free_port()}"},
        "master": {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port()},
    }
    ended = run("ports", variables=ways[way])
    assert_all_ended_well(ended)
    for end in ended:
        assert f"listens at: {LOOPBACK}\n" in end.output


def test_a_process_with_another_secret_is_not_let_in() -> None:
    where = {"POPTORCH_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
    variables = [{**where, "POPTORCH_JOB_SECRET": secret} for secret in ("right", "wrong")]
    ended = run("ports", variables=variables, seconds=15)
    assert [end.code for end in ended] == [5, 5], ended[0].output
    assert "these have not come within 15 s: 1" in ended[0].output
    assert "has another secret: POPTORCH_JOB_SECRET" in ended[1].output
    assert not any(secret in end.output for end in ended for secret in ("right", "wrong"))


def test_who_connects_for_the_gradients_has_to_prove_who_it_is() -> None:
    ended = run("impostor", seconds=20)
    assert [end.code for end in ended] == [5, 5], ended[0].output
    # Whoever notices first says so, and the others pass it on: each of the two sees a wrong proof.
    assert re.search(r"who connected as process [01] has not proven that it belongs to the job", ended[0].output)


def test_a_job_over_the_network_without_a_secret_says_so() -> None:
    address = _own_address()
    if address.startswith("127."):
        pytest.skip("this host has no other address")
    where = {"POPTORCH_RENDEZVOUS": f"{address}:{free_port()}"}
    ended = run("ports", variables=where)
    assert_all_ended_well(ended)
    for end in ended:
        assert end.output.count("have no secret") == 1, end.output
        assert "POPTORCH_JOB_SECRET" in end.output
    ended = run("ports", variables={**where, "POPTORCH_JOB_SECRET": "right"})
    assert_all_ended_well(ended)
    assert not any("secret" in end.output for end in ended)


def test_memory_is_not_opened_by_what_another_process_says(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_bytes(b"secret" * 1000)
    ended = run("untrue_file", str(private))
    assert_all_ended_well(ended)
    assert private.read_bytes() == b"secret" * 1000
    for end in ended:
        assert "not shared" in end.output
        assert "no name for that" in end.output


# -- the begin and the end --------------------------------------------------------------------------------------------


def test_a_process_may_end_when_it_has_met_the_others() -> None:
    ended = run("ends_at_once")
    assert_all_ended_well(ended)
    assert all("met" in end.output for end in ended)


def test_a_process_that_ends_while_others_need_it_is_named() -> None:
    ended = run("ends_while_needed", count=3)
    assert [end.code for end in ended] == [5, 5, 0], ended[0].output
    for end in ended[:2]:
        assert "RecoverableError PARTITION_RESET" in end.output
        assert "process 2 (pid" in end.output


def test_a_port_where_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(silent.getsockname()[1])}
        started = time.monotonic()
        ended = run("ports", variables=where, seconds=10)
    assert [end.code for end in ended] == [5, 5], [end.output for end in ended]
    assert time.monotonic() - started < processes.PATIENCE / 2
    assert "Process 0 cannot listen on 127.0.0.1" in ended[0].output
    assert "does not answer within 10 s" in ended[1].output


@pytest.mark.skipif(bool(virtual_hosts.why_not()), reason=f"no second host: {virtual_hosts.why_not()}")
def test_all_processes_end_when_the_network_goes_away(tmp_path: Path) -> None:
    with virtual_hosts.connected(tmp_path) as hosts:
        meeting = {"POPTORCH_RENDEZVOUS": f"{hosts[0].address}:29556", "POPTORCH_JOB_SECRET": "of these"}
        variables = [{**host.variables, **meeting} for host in hosts]
        mark = tmp_path / "mark"
        with processes.Job(
            PROGRAM, 2, "network_goes", str(mark), variables=variables, prefixes=[h.prefix for h in hosts], seconds=10
        ) as job:
            deadline = time.monotonic() + processes.PATIENCE
            while not mark.exists():
                assert time.monotonic() < deadline, "the processes have not met"
                time.sleep(0.05)
            subprocess.run(["ip", "-n", hosts[1].name, "link", "set", "eth0", "down"], check=True)
            mark.unlink()
            ended = job.wait()
    for end in ended:
        assert end.code == 5, end
        assert "RecoverableError PARTITION_RESET" in end.output


@pytest.mark.skipif(bool(virtual_hosts.why_not()), reason=f"no second host: {virtual_hosts.why_not()}")
@pytest.mark.parametrize("secret", [{}, {"POPTORCH_JOB_SECRET": "of these"}], ids=["open", "secret"])
def test_processes_of_two_hosts_meet_by_the_store_of_torch(secret: dict[str, str], tmp_path: Path) -> None:
    with virtual_hosts.connected(tmp_path) as hosts:
        master = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29557", **secret}
        variables = [{**host.variables, **master} for host in hosts]
        prefixes = [host.prefix for host in hosts]
        with processes.Job(PROGRAM, 2, "ports", variables=variables, prefixes=prefixes, seconds=60) as job:
            ended = job.wait()
    assert_all_ended_well(ended)
    for end in ended:
        assert "00000000" not in end.output
        assert end.output.count("have no secret") == (not secret)


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
