"""Jobs whose processes are on several hosts."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import processes
import virtual_hosts
from virtual_hosts import Host

FAULTS = processes.TESTS / "distributed_faults.py"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(virtual_hosts.why_not()), reason=f"no second host: {virtual_hosts.why_not()}"),
]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[list[Host]]:
    with virtual_hosts.connected(tmp_path) as found:
        yield found


def job(what: str, where: Sequence[Host], **more: str) -> processes.Job:
    meeting = {"POPTORCH_RENDEZVOUS": f"{where[0].address}:29555", **more}
    variables = [{**host.variables, **meeting} for host in where]
    prefixes = [host.prefix for host in where]
    return processes.Job(FAULTS, len(where), what, variables=variables, prefixes=prefixes, seconds=60)


def test_processes_of_two_hosts_train_together(network: list[Host]) -> None:
    with job("undisturbed", network) as started:
        ended = started.wait()
    assert [end.code for end in ended] == [0, 0], ended[0].output + ended[1].output
    assert len({end.output.splitlines()[-1] for end in ended}) == 1  # the sum of the weights


def test_a_process_that_was_killed_is_named_on_the_other_host(network: list[Host]) -> None:
    with job("killed", [network[0], network[0], network[1]]) as started:
        ended = started.wait()
    assert ended[2].code == 128 + signal.SIGKILL
    for end in ended[:2]:
        assert end.code == 5, end.output
        assert "RecoverableError PARTITION_RESET" in end.output
        assert "process 2 (pid" in end.output
        assert f"on {network[1].name}" in end.output


def test_addresses_that_do_not_lead_to_the_others_are_named(network: list[Host]) -> None:
    with job("undisturbed", network, GLOO_SOCKET_IFNAME="lo") as started:
        ended = started.wait()
    for end in ended:
        assert end.code == 5, end.output
        assert "cannot connect to all others" in end.output
        assert "GLOO_SOCKET_IFNAME names the network interface" in end.output
