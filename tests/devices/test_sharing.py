"""Places in the queue, slots, and the locks of single bytes."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

import poptorch
from poptorch.devices import sharing, waiting
from poptorch.devices.groups import Group, group_of
from poptorch.devices.record_locks import END, LockFile
from poptorch.devices.sharing import Owner, Wish
from poptorch.devices.system import SYSTEMS


@given(total=st.sampled_from([1, 2, 4, 16, 64, 128, 256]), data=st.data())
def test_a_position_says_what_is_wanted(total: int, data: st.DataObject) -> None:
    among = group_of(data.draw(st.integers(0, 2 * total - 2)), total)
    ipus = data.draw(st.sampled_from([2**k for k in range(9) if 2**k <= among.size]))
    wish = Wish(sharing.first_position(among, ipus, total), os.getpid())
    assert wish.among(total) == among
    assert wish.ipus == ipus
    assert 0 <= wish.seconds < 1000
    later = Wish(sharing.later(wish.position), wish.pid)
    assert wish < later
    assert (later.among(total), later.ipus) == (among, ipus)
    assert 2**62 < wish.position < END


def test_positions_follow_the_clock() -> None:
    positions = []
    for number in range(20):
        positions.append(sharing.first_position(group_of(number, 16), 1, 16))
        time.sleep(1e-5)
    assert positions == sorted(positions)


def test_positions_of_a_foreign_program_mean_something() -> None:
    assert Wish(END - 1, 1).among(4) == Group(0, 4)


def in_child(function) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_locked_ranges(tmp_path) -> None:
    file, mine = LockFile(str(tmp_path / "file"), 0o600), os.getpid()
    ranges = [(0, 10), (20, 30), (2**62 + 5, 2**62 + 6), (END - 1, END)]
    for start, stop in ranges:
        assert file.lock(start, stop)
    assert file.locked(0, END) == []  # a process does not see its own

    def look() -> None:
        assert file.locked(0, END) == [(*each, mine) for each in ranges]
        assert file.locked(5, 25) == [(5, 10, mine), (20, 25, mine)]
        assert file.locked(10, 20) == []
        assert not file.lock(9, 11)
        assert file.lock(10, 20)

    in_child(look)
    file.unlock(0, 25)

    def look_again() -> None:
        assert file.locked(0, 30) == [(25, 30, mine)]

    in_child(look_again)
    file.close()


@pytest.mark.parametrize("command", ["python train.py", "x" * 10_000, "\N{GRINNING FACE}" * 10_000, ""])
def test_a_long_command_is_cut(command: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_DEVICES_DIR", str(tmp_path))
    me = Owner(5, range(2, 4), os.getpid(), command, "ann", 100.0)
    monkeypatch.setattr(sharing, "myself", lambda group, total: me)
    shared = sharing.join(SYSTEMS["pod4"], str(tmp_path))
    assert shared.take(Group(2, 2)) == me

    def look() -> None:
        (found,) = shared.owners()
        assert (found.device_id, found.ipus, found.pid, found.user, found.since) == (5, me.ipus, me.pid, "ann", 100.0)
        assert command.startswith(found.command)
        assert len(found.command) >= min(len(command), 30)

    in_child(look)
    shared.close()
    assert len((tmp_path / "pod4.ipus").read_bytes()) == 4 * 512


def test_who_can_free_what_this_process_has() -> None:
    others = list(sys._current_frames())  # whatever else runs here
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert waiting.other_threads_can_act(others)
    assert not waiting.other_threads_can_act([*others, thread.ident])
    stop.set()
    thread.join()
    timer = threading.Timer(1000, print)
    timer.start()
    assert waiting.other_threads_can_act(others)
    timer.cancel()
    timer.join()


def test_workers_of_the_package_cannot() -> None:
    class Staged(torch.nn.Module):
        def forward(self, x):
            for ipu in range(2):
                with poptorch.Block(f"part {ipu}", ipu_id=ipu):
                    x = x + 1
            return x

    executor = poptorch.inferenceModel(Staged(), poptorch.Options().deviceIterations(2))
    executor(torch.ones(2))
    with tqdm(total=1, disable=False):
        threads = threading.enumerate()
        helpers = {thread.ident for thread in threads if thread.name.startswith("poptorch-worker")}
        bars = {thread.ident for thread in threads if type(thread).__module__.startswith("tqdm")}
        assert helpers
        assert bars
        assert not waiting.other_threads_can_act(set(sys._current_frames()) - helpers - bars)
    executor.destroy()


def test_many_holders_are_summed_up() -> None:
    owners = [Owner(n, range(n, n + 1), n + 1, "python", None, None) for n in range(12)]
    text = waiting.listed(owners)
    assert text.startswith("process 1 (python): device Id 0; process 2 (python): device Id 1;")
    assert text.endswith("; 4 more")
    one = [Owner(n, range(n, n + 1), 7, "python", None, 100.0 + n) for n in range(12)]
    assert waiting.listed(one).endswith(": 12 IPU(s)")
    assert sharing.local_time(100.0) in waiting.listed(one)  # since the first
