"""The meeting point of a job: who may speak there, and that every call ends."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poptorch import Error, launchers
from poptorch.distributed import addresses, descriptors, frames, invitations, meeting_point, proof, rendezvous
from poptorch.distributed.invitations import Invitation
from poptorch.distributed.keys import Connection, Keys, Unreachable
from poptorch.distributed.meeting_point import MeetingPoint

SECRET = b"a secret"
PATIENCE = 30.0


@pytest.fixture
def point() -> Iterator[MeetingPoint]:
    served = MeetingPoint(addresses.listen("127.0.0.1", 0), SECRET)
    yield served
    served.close()


def keys_at(point: MeetingPoint, secret: bytes = SECRET, seconds: float = PATIENCE) -> Keys:
    return Keys(Connection("127.0.0.1", point.port, secret, seconds))


def stranger(point: MeetingPoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", point.port), timeout=PATIENCE)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end closes the connection, after what it may have said before."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


# -- the keys ---------------------------------------------------------------------------------------------------------


def test_keys_are_as_in_stores_of_torch(point: MeetingPoint) -> None:
    one, other = keys_at(point).within("a"), keys_at(point).within("a")
    one.set("key", b"\0\xff")
    assert other.get("key") == b"\0\xff"
    assert other.find("no key") is None
    assert (one.add("count", 2), other.add("count", 3)) == (2, 5)
    assert one.check(["key", "count"])
    assert not one.check(["key", "no key"])
    assert one.compare_set("first", "", "one") == b"one"
    assert other.compare_set("first", "", "two") == b"one"
    assert other.compare_set("first", "one", "two") == b"two"
    assert one.num_keys() == 3
    assert one.delete_key("key")
    assert not one.delete_key("key")
    assert keys_at(point).find("count") is None  # it has the name of the others in front


def test_a_wait_ends_when_the_value_comes(point: MeetingPoint) -> None:
    one, other = keys_at(point), keys_at(point)
    threading.Timer(0.3, lambda: other.set("late", "value")).start()
    assert one.get("late") == b"value"


def test_a_wait_for_a_value_that_does_not_come_has_an_end(point: MeetingPoint) -> None:
    with pytest.raises(Unreachable, match=r"never did not come within 0\.2 s"):
        keys_at(point).within("a", 0.2).get("never")


# -- who is let in ----------------------------------------------------------------------------------------------------


def test_it_listens_at_its_address_only() -> None:
    listening = addresses.listen("localhost", 0)
    assert listening.getsockname()[0] in ("127.0.0.1", "::1")
    listening.close()


def test_a_wrong_secret(point: MeetingPoint) -> None:
    with pytest.raises(proof.NotProven, match="POPTORCH_JOB_SECRET must be the same"):
        keys_at(point, b"a guess")
    keys_at(point).set("still", "here")


@pytest.mark.parametrize("said", [
    b"", b"\0" * 64, b"x" * 63, b"GET / HTTP/1.0\r\n\r\n" * 10, os.urandom(1 << 16),
    frames.pack([1, "set", "lost", b"everything"]),
])  # fmt: skip
def test_who_proves_nothing_changes_nothing(said: bytes, point: MeetingPoint) -> None:
    known = keys_at(point)
    with stranger(point) as connection:
        connection.sendall(said)
        if len(said) < 64:
            connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection)
    assert known.num_keys() == 0


def test_an_answer_that_was_heard_before_is_no_proof(point: MeetingPoint) -> None:
    with stranger(point) as first, stranger(point) as second:
        size = len(proof.GREETING) + proof.CHALLENGE_BYTES
        challenges = [proof.receive(c, size, time.monotonic() + PATIENCE)[-32:] for c in (first, second)]
        mine = proof.challenge()
        heard = mine + proof.answer(SECRET, "client", challenges[0], mine)
        first.sendall(heard)
        answer = proof.receive(first, proof.ANSWER_BYTES, time.monotonic() + PATIENCE)
        assert proof.is_right(answer, SECRET, "server", mine, challenges[0])
        second.sendall(heard)
        assert is_closed(second)


def test_many_strangers_keep_nobody_out(point: MeetingPoint) -> None:
    silent = [stranger(point) for _ in range(100)]
    known = keys_at(point)
    known.set("key", "value")
    assert known.get("key") == b"value"
    for connection in silent:
        connection.close()


def test_strangers_that_stay_silent_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_point, "_PROOF_SECONDS", 0.2)
    served = MeetingPoint(addresses.listen("127.0.0.1", 0), SECRET)
    with stranger(served) as connection:
        assert is_closed(connection)
    served.close()


@pytest.mark.parametrize("nonsense", [
    struct.pack("!I", 1 << 31), struct.pack("!I", 4) + b"[[[[", struct.pack("!I", 2) + b"{}",
    frames.pack([1, "no such thing"]), frames.pack([1, "set", "key"]), frames.pack([]),
    frames.pack([1, "add", "k", "x"]), struct.pack("!I", 100_000) + b"[" * 100_000,
])  # fmt: skip
def test_nonsense_ends_one_connection_only(nonsense: bytes, point: MeetingPoint) -> None:
    known, other = keys_at(point), stranger(point)
    proof.introduce(other, SECRET, time.monotonic() + PATIENCE)
    other.sendall(nonsense)
    assert is_closed(other)
    known.set("key", "value")
    assert known.find("key") == b"value"


def test_the_other_end_has_to_prove_itself_as_well() -> None:
    """Who has taken the port learns nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(proof.GREETING + bytes(proof.CHALLENGE_BYTES))
                proof.receive(connection, proof.CHALLENGE_BYTES + proof.ANSWER_BYTES, time.monotonic() + PATIENCE)
                connection.sendall(bytes(proof.ANSWER_BYTES))

        threading.Thread(target=pretend).start()
        with pytest.raises(proof.NotProven, match="another secret"):
            Connection("127.0.0.1", server.getsockname()[1], SECRET, PATIENCE)


# -- every call ends --------------------------------------------------------------------------------------------------


def test_a_port_where_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Unreachable, match="says nothing"):
        Connection("127.0.0.1", server.getsockname()[1], SECRET, 0.3)


def test_something_else_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 5)

        threading.Thread(target=speak).start()
        with pytest.raises(proof.NotProven, match="no meeting point of a job"):
            Connection("127.0.0.1", server.getsockname()[1], SECRET, PATIENCE)


def test_a_meeting_point_that_does_not_answer(point: MeetingPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late answer is not taken for that to the next question."""
    going_on = threading.Event()

    def slow(values: dict[str, bytes], key: str) -> Any:
        going_on.wait(PATIENCE)
        return b"late"

    monkeypatch.setitem(meeting_point._OPERATIONS, "slow", slow)
    keys = keys_at(point)
    keys.set("key", b"in time")
    with pytest.raises(Unreachable, match=r"has not answered within 0\.2 s"):
        keys.connection.ask("slow", "key", seconds=0.2)
    with pytest.raises(Unreachable, match="has not answered"):
        keys.find("key", seconds=0.2)
    going_on.set()
    assert keys.find("key") == b"in time"


def test_the_end_of_the_meeting_point_is_known_from_its_loss(point: MeetingPoint) -> None:
    keys, lost = keys_at(point), keys_at(point)
    assert lost.connection._socket is not None
    lost.connection._socket.shutdown(socket.SHUT_RDWR)
    point.close()
    for each in (keys, lost):
        with pytest.raises(Unreachable):
            each.find("key")
        assert not each.connection.is_open
    assert keys.connection.has_ended
    assert not lost.connection.has_ended


def test_a_forked_process_keeps_nothing_of_it(point: MeetingPoint) -> None:
    keys = keys_at(point)
    pid = os.fork()
    if pid == 0:
        os._exit(keys.connection.is_open or point._listening.fileno() != -1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    keys.set("key", "value")


# -- the files that show the way --------------------------------------------------------------------------------------


def test_an_invitation_is_for_this_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations.tempfile, "gettempdir", lambda: str(tmp_path))
    path = invitations.private_folder() / "job.json"
    Invitation.by_this_process(7, SECRET).write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    found = Invitation.read(path)
    assert found is not None
    assert (found.port, found.secret) == (7, SECRET)
    assert "secret" not in repr(found)
    path.chmod(0o644)
    with pytest.raises(Error, match="not a private file"):
        Invitation.read(path)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(invitations.os, "open", full)
        with pytest.raises(Error, match=r"cannot tell the others .* No space left on device. Set TMPDIR"):
            Invitation.by_this_process(7, SECRET).write(tmp_path / "job.json")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(invitations.tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    with pytest.raises(Error, match="cannot tell the others"):
        invitations.private_folder()


def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"poptorch-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Error, match="is not a folder of this user"):
        invitations.private_folder()


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", "[" * 5000, '{"port": 1}', '{"port": "x", "secret": "", "pid": 1, "started": "1"}',
    '{"port": 1e999, "secret": "", "pid": 1, "started": "1"}', json.dumps({"port": 0, "secret": "", "pid": 1}),
])  # fmt: skip
def test_an_invitation_that_says_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    path.chmod(0o600)
    assert Invitation.read(path) is None


# -- memory from other processes --------------------------------------------------------------------------------------


def handed_over(file: int) -> int:
    """What comes to the counter of this process."""
    counter = descriptors.Counter(2)
    try:
        descriptors.hand_over(file, counter.name, os.getpid())
        return counter.take([os.getpid()])[os.getpid()]
    finally:
        counter.close()


def test_memory_is_handed_over() -> None:
    own = descriptors.sealed_memory("test", 4096)
    taken = handed_over(own)
    descriptors.check_memory(taken, 4096, os.getpid())
    os.pwrite(own, b"x", 100)
    assert os.pread(taken, 1, 100) == b"x"
    with pytest.raises(PermissionError):
        os.ftruncate(taken, 0)  # who has it mapped would be killed
    os.close(own)
    os.close(taken)


def test_what_is_no_such_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_bytes(bytes(4096))
    for file in (
        os.open(path, os.O_RDWR), os.memfd_create("test", os.MFD_ALLOW_SEALING), os.open("/dev/zero", os.O_RDWR)
    ):  # fmt: skip
        taken = handed_over(file)
        with pytest.raises(OSError, match="is not memory that keeps its size"):
            descriptors.check_memory(taken, 4096, 7)
        os.close(file)
        os.close(taken)
    short = descriptors.sealed_memory("test", 100)
    with pytest.raises(OSError, match="process 7 shares 100 bytes, not 4096"):
        descriptors.check_memory(short, 4096, 7)
    os.close(short)


def test_who_is_not_of_the_job_hands_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "SECONDS", 0.3)
    counter, own = descriptors.Counter(2), descriptors.sealed_memory("test", 1)
    descriptors.hand_over(own, counter.name, os.getpid())
    with pytest.raises(OSError, match="nothing came from process 1 within"):
        counter.take([1])
    with pytest.raises(OSError, match="somebody else takes the files for process 1"):
        descriptors.hand_over(own, counter.name, 1)
    counter.close()
    os.close(own)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", None, 7, "0" * 31, "g" * 32, "0" * 31 + "\0"])
def test_names_are_what_they_have_to_be(name: object) -> None:
    with pytest.raises(OSError, match="no name for that"):
        descriptors.check_name(name, 7)


def test_two_processes_that_both_are_process_0_are_told_at_once(tmp_path: Path) -> None:

    path, parent = tmp_path / "job.json", os.getppid()
    Invitation(7, SECRET, parent, launchers.start_time(parent)).write(path)  # it waits for others
    with pytest.raises(Error, match=f"say that they are process 0 of 2: process {parent} of this host waits"):
        rendezvous._by_file(path, True, 2, 60)
