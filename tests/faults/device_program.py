"""Programs for test_devices.py, run in processes of their own: ``python device_program.py <name of a function>``.

A process that has imported the package forks the others, which is faster than starting them.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable

import poptorch
from poptorch._logging import backend
from poptorch.devices import attachment

IPUS = 4


class Owner:
    """Something that devices can belong to."""


OWNER = Owner()


def child(program: Callable[[], None]) -> int:
    """Run a function in a forked process; returns its number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        program()
        status = 0
    except Exception:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        os._exit(status)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other processes do."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def ended(pid: int) -> int:
    """The exit status of a child: negative for the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def holds(ipus: int) -> int:
    """A child that attaches IPUs and keeps them; returns when it has them."""

    def keep() -> None:
        attachment.acquire(ipus, OWNER)
        signal.pause()

    pid = child(keep)
    # It has the lock a moment before it says which device that is.
    until(lambda: any(owner.pid == pid and owner.device_id is not None for owner in attachment.owners()))
    return pid


def refused(ipus: int) -> str:
    """What a program is told that cannot have IPUs."""
    try:
        attachment.acquire(ipus, OWNER)
    except poptorch.Error as error:
        return str(error)
    raise AssertionError("two owners of one device")


def killed() -> None:
    """What a process had is free after kill -9, and while it lived, others were told about it."""
    tries = 40
    for number in range(tries):
        pid = holds(IPUS if number % 2 else 1)
        told = refused(IPUS)
        assert f"process {pid} (" in told, told
        assert sys.argv[0] in told, told
        assert " since 20" in told, told
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        assert attachment.owners() == []
        attachment.acquire(IPUS, OWNER).release()
    print(f"killed owners: {tries}")


def race() -> None:
    """Many processes want few IPUs: no two of them ever have the same one, killed ones included."""
    processes, rounds = 12, 150
    # Who has each IPU; how often each process got one; which ones are about to be killed.
    board = mmap.mmap(-1, 8 * IPUS + 16 * processes)

    def slot(place: int, value: int | None = None) -> int:
        if value is not None:
            board[8 * place : 8 * place + 8] = value.to_bytes(8, "little")
        return int.from_bytes(board[8 * place : 8 * place + 8], "little")

    def alive(pid: int) -> bool:
        """A killed process could not clear its name. Its locks are gone a moment before it is."""
        if any(slot(IPUS + processes + number) == pid for number in range(processes)):
            return False
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except FileNotFoundError:
            return False

    def use(number: int) -> None:
        chance, mine, got = random.Random(number), os.getpid(), 0
        if number % 2:
            os.environ["POPTORCH_WAIT_FOR_IPU"] = "1"
            attachment.POLL_SECONDS = 0.002
        for step in range(rounds):
            size = chance.choice([1, 1, 2, 4])
            try:
                device = attachment.acquire(size, OWNER)
            except poptorch.Error:
                time.sleep(0)
                continue
            ipus = attachment.group_of(device.device_id, IPUS).ipus
            for ipu in ipus:
                assert not slot(ipu) or not alive(slot(ipu)), f"{mine} and {slot(ipu)} have IPU {ipu}"
                slot(ipu, mine)
            time.sleep(0)
            for ipu in ipus:
                assert slot(ipu) == mine
                if number % 3 != 2 or step < rounds // 2:
                    slot(ipu, 0)
            got += 1
            slot(IPUS + number, got)
            if number % 3 == 2 and step >= rounds // 2:
                slot(IPUS + processes + number, mine)
                os.kill(mine, signal.SIGKILL)
            device.release()

    pids = [child(lambda number=number: use(number)) for number in range(processes)]
    statuses = [ended(pid) for pid in pids]
    assert all(status == 0 or (status == -signal.SIGKILL and n % 3 == 2) for n, status in enumerate(statuses)), statuses
    assert attachment.owners() == []
    assert attachment.wishes() == []
    assert all(slot(IPUS + number) == rounds for number in range(1, processes, 2) if number % 3 != 2)
    print(f"{processes * rounds} attempts, {sum(slot(IPUS + n) for n in range(processes))} successes, "
          f"{sum(status != 0 for status in statuses)} processes killed")  # fmt: skip


def order() -> None:
    """Programs that wait are served in the order of their arrival; dead ones are skipped."""
    os.environ["POPTORCH_WAIT_FOR_IPU"] = "1"
    tries = 5
    for attempt in range(tries):
        sizes = [1, 4, 1, 2, 4, 1] if attempt % 2 else [4, 4, 4, 4, 4, 4]
        first = holds(IPUS)
        read, write = os.pipe()

        def wait(number: int, ipus: int, write: int = write) -> None:
            device = attachment.acquire(ipus, OWNER)
            os.write(write, bytes([number]))
            device.release()

        pids: list[int] = []
        for number, ipus in enumerate(sizes):
            pids.append(child(lambda number=number, ipus=ipus: wait(number, ipus)))
            until(lambda count=len(pids): len(attachment.wishes()) == count)
        assert [wish.pid for wish in attachment.wishes()] == pids
        assert [wish.ipus for wish in attachment.wishes()] == sizes
        os.kill(pids[2], signal.SIGKILL)
        ended(pids[2])
        os.kill(first, signal.SIGKILL)
        ended(first)
        assert all(ended(pid) == 0 for number, pid in enumerate(pids) if number != 2)
        os.close(write)
        with os.fdopen(read, "rb") as results:
            assert list(results.read()) == [0, 1, 3, 4, 5]
    print(f"queues of six: {tries}")


def other_ids() -> None:
    """An earlier program that waits for one device does not keep others from the rest."""
    os.environ["POPTORCH_WAIT_FOR_IPU"] = "1"
    holder = holds(1)
    assert [owner.device_id for owner in attachment.owners()] == [0]
    waiter = child(lambda: attachment.acquire_id(0, OWNER).release())
    until(lambda: len(attachment.wishes()) == 1)
    assert attachment.acquire_id(3, OWNER).device_id == 3
    assert attachment.acquire(1, OWNER).device_id == 1
    os.kill(holder, signal.SIGKILL)
    ended(holder)
    assert ended(waiter) == 0
    print("tries: 1")


def overtaking() -> None:
    """A process that has an IPU gets another before those who may be waiting for what it has."""
    os.environ["POPTORCH_WAIT_FOR_IPU"] = "1"
    mine = attachment.acquire_id(0, OWNER)
    waiter = child(lambda: attachment.acquire(IPUS, OWNER).release())
    until(lambda: len(attachment.wishes()) == 1)
    other = attachment.acquire(1, OWNER)
    newcomer = child(lambda: attachment.acquire(1, OWNER).release())
    until(lambda: len(attachment.wishes()) == 2)  # it has nothing, so it stands in line
    mine.release()
    other.release()
    assert ended(waiter) == 0
    assert ended(newcomer) == 0
    print("tries: 1")


def interrupted() -> None:
    """Ctrl-C ends the waiting and gives up the place in the queue."""
    os.environ["POPTORCH_WAIT_FOR_IPU"] = "1"
    holder, tries = holds(IPUS), 10

    def wait() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            attachment.acquire(1, OWNER)
        except KeyboardInterrupt:
            assert [wish.pid for wish in attachment.wishes()] == []
            return
        raise AssertionError("not interrupted")

    for _ in range(tries):
        pid = child(wait)
        until(lambda: len(attachment.wishes()) == 1)
        os.kill(pid, signal.SIGINT)
        assert ended(pid) == 0
    os.kill(holder, signal.SIGKILL)
    ended(holder)
    print(f"interrupts: {tries}")


def quiet() -> None:
    """One line says what is awaited and from whom; between two looks, the program sleeps."""
    os.environ["POPTORCH_WAIT_FOR_IPU"] = "1"
    poptorch.setLogLevel("TRACE")
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    backend.addHandler(Keep())
    holder = holds(IPUS)
    threading.Timer(3 * attachment.POLL_SECONDS, os.kill, (holder, signal.SIGKILL)).start()
    started = time.monotonic()
    attachment.acquire(2, OWNER)
    elapsed = time.monotonic() - started
    said = [line for line in lines if line.startswith("Waiting for")]
    assert len(said) == 1, lines
    assert said[0].startswith(f"Waiting for 2 IPU(s), in use by process {holder} ("), said
    looks = sum("No IPU available, sleeping" in line for line in lines)
    assert 1 <= looks <= elapsed / attachment.POLL_SECONDS + 1, (looks, elapsed)
    print(f"looks: {looks}")


def itself() -> None:
    """A process that would wait for itself is told so; with another thread that may act, it waits."""
    os.environ["POPTORCH_WAIT_FOR_IPU"] = "1"
    device = attachment.acquire(IPUS, OWNER)
    for _ in range(3):
        assert "this process would wait for itself" in refused(1)
    threading.Timer(0.1, device.release).start()
    device = attachment.acquire(1, OWNER)
    # If all threads wait, one is told, and then again one, until one that does not wait may act.
    whole = [attachment.acquire(1, OWNER) for _ in range(3)]
    results: list[str] = []

    def wait() -> None:
        try:
            attachment.acquire(IPUS, OWNER).release()
            results.append("served")
        except poptorch.Error:
            results.append("told")

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait()  # for ever, unless this thread is told
    assert set(results) == {"told"}
    for held in (*whole, device):
        held.release()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    # What another process has can become free.
    mine, other = attachment.acquire(1, OWNER), holds(2)
    threading.Timer(0.1, os.kill, (other, signal.SIGKILL)).start()
    attachment.acquire(2, OWNER)
    mine.release()
    print("tries: 8")


def forked() -> None:
    """A forked process does not have what its parent has, and cannot give it back either."""
    tries = 10
    for _ in range(tries):
        device = attachment.acquire(2, OWNER)
        mine = os.getpid()

        def look(device: attachment.Device = device, mine: int = mine) -> None:
            assert [owner.pid for owner in attachment.owners()] == [mine]
            device.release()
            assert [owner.pid for owner in attachment.owners()] == [mine]
            own = attachment.acquire(2, OWNER)
            assert own.device_id == 5
            assert [owner.pid for owner in attachment.owners()] == [mine, os.getpid()]

        assert ended(child(look)) == 0
        assert [owner.pid for owner in attachment.owners()] == [mine]
        device.release()
    print(f"forks: {tries}")


def survived() -> None:
    """An owner is killed while processes that it forked or started live on: its IPUs are free."""
    tries = 5
    for _ in range(tries):
        read, write = os.pipe()

        def own(write: int = write) -> None:
            attachment.acquire(IPUS, OWNER)
            started = subprocess.Popen(["sleep", "600"])
            forked = child(signal.pause)
            os.write(write, f"{started.pid} {forked}".encode())
            signal.pause()

        owner = child(own)
        survivors = [int(word) for word in os.read(read, 100).split()]
        assert [each.pid for each in attachment.owners()] == [owner]
        os.kill(owner, signal.SIGKILL)
        ended(owner)
        for pid in survivors:
            os.kill(pid, 0)  # it lives
        assert attachment.owners() == []
        attachment.acquire(IPUS, OWNER).release()
        for pid in survivors:
            os.kill(pid, signal.SIGKILL)
    print(f"killed owners: {tries}")


def removed() -> None:
    """The file is removed while a device is in use: the owner locks a new one as soon as it attaches another."""
    device = attachment.acquire_id(1, OWNER)
    os.unlink(os.path.join(os.environ["POPTORCH_DEVICES_DIR"], "pod4.ipus"))
    os.rmdir(os.environ["POPTORCH_DEVICES_DIR"])
    other = attachment.acquire_id(2, OWNER)
    mine = os.getpid()

    def look() -> None:
        assert [(owner.device_id, owner.pid) for owner in attachment.owners()] == [(1, mine), (2, mine)]

    assert ended(child(look)) == 0
    device.release()
    other.release()
    print("tries: 1")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
