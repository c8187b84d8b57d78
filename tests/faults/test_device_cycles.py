"""Programs that wait for each other's IPUs: one of them is told so, and the others go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import preloaded
from poptorch.devices import sharing
from poptorch.devices.cycles import victim
from poptorch.devices.groups import Group
from poptorch.devices.sharing import Owner, Wish

TOTAL = 4

PROGRAM = """
import pathlib, sys, time
import poptorch
from poptorch.devices import attachment
class Owner: pass
owner, (number, count, folder) = Owner(), sys.argv[1:]
number, count, folder = int(number), int(count), pathlib.Path(folder)
device = attachment.acquire_id(number, owner)
(folder / str(number)).touch()
while len(list(folder.iterdir())) < count:
    time.sleep(0.01)
try:
    attachment.acquire_id((number + 1) % count, owner)
    print("went on")
except poptorch.Error as error:
    print(error)
"""


@pytest.mark.parametrize("count", [2, 3])
def test_programs_that_want_what_the_next_one_has(count: int, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    env = {
        **os.environ, "POPTORCH_SYSTEM": "pod4", "POPTORCH_DEVICES_DIR": str(tmp_path / "ipus"),
        "POPTORCH_WAIT_FOR_IPU": "1",
    }  # fmt: skip
    command = ["-c", PROGRAM]
    started = [
        preloaded.start([*command, str(number), str(count), str(tmp_path / "here")], env=env, together=True)
        for number in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=100)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    told = [number for number, output in enumerate(outputs) if "wait for each other's IPUs" in output]
    assert len(told) == 1, outputs
    first = told[0]
    assert f"in use by process {started[(first + 1) % count].pid} (" in outputs[first]
    assert f"What process {started[first].pid} wants" in outputs[first]
    assert all("went on" in output for number, output in enumerate(outputs) if number != first)


# -- who has to give up -----------------------------------------------------------------------------------------------


def has(pid: int, *ipus: int) -> list[Owner]:
    return [Owner(ipu, range(ipu, ipu + 1), pid, "", None, None) for ipu in ipus]


def wants(pid: int, turn: int, ipu: int | None = None, ipus: int = 1) -> Wish:
    """A wish for one device, or for any of a size."""
    among = Group(0, TOTAL) if ipu is None else Group(ipu, ipus)
    return Wish(sharing.first_position(among, ipus, TOTAL) + (turn << 20), pid)


def test_the_last_to_wait_gives_up() -> None:
    owners = [*has(1, 0), *has(2, 1)]
    for last in (1, 2):
        wishes = [wants(1, 9 if last == 1 else 0, 1), wants(2, 9 if last == 2 else 0, 0)]
        assert victim(owners, wishes, {1, 2}, TOTAL) == last


@pytest.mark.parametrize(
    ("owners", "wishes", "only_wait"),
    [
        ([*has(1, 0), *has(2, 1)], [wants(1, 0, 1), wants(2, 1, 0)], {1}),  # the other one does something else
        ([*has(1, 0), *has(2, 1)], [wants(1, 0, 1)], {1, 2}),  # the other one does not wait
        ([*has(1, 0), *has(2, 1)], [wants(1, 0), wants(2, 1, 0)], {1, 2}),  # any would do, and some are free
        ([*has(1, 0)], [wants(1, 0, 1), wants(2, 1, 0)], {1, 2}),  # the other one has nothing
        ([*has(1, 0, 1), *has(3, 2, 3)], [wants(1, 0)], {1}),  # a third one has what is wanted
        ([], [], set()),
    ],
)
def test_programs_that_may_go_on(owners: list[Owner], wishes: list[Wish], only_wait: set[int]) -> None:
    assert victim(owners, wishes, only_wait, TOTAL) is None


def test_a_program_that_waits_for_the_others_is_not_one_of_them() -> None:
    owners = [*has(1, 0), *has(2, 1), *has(3, 2)]
    wishes = [wants(1, 0, 1), wants(2, 1, 0), wants(3, 2, 0)]
    assert victim(owners, wishes, {1, 2, 3}, TOTAL) == 2


def test_programs_that_want_more_than_is_left() -> None:
    owners = [*has(1, 0, 1), *has(2, 2, 3)]
    wishes = [wants(1, 0, ipus=2), wants(2, 1, ipus=2)]
    assert victim(owners, wishes, {1, 2}, TOTAL) == 2
