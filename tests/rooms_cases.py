"""What processes of one host do with the memory that they share.

``python rooms_cases.py <process> <processes> <case>...`` runs some cases as one of the processes. Each case is a
function of the group of all processes. Whatever fails in one ends the program with an error.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

import torch

from open_files import open_files
from poptorch.distributed import descriptors, keys, process_group
from poptorch.distributed import shared_buffers as rooms
from poptorch.distributed.connections import Connections
from poptorch.distributed.portions import BUCKET_BYTES
from poptorch.distributed.process_group import ProcessGroup
from poptorch.distributed.shared import SharedRooms
from poptorch.distributed.shared_buffers import SharedMemory
from poptorch.distributed.transfer import Transfer
from poptorch.errors import Error

Tensors = dict[str, torch.Tensor]
ROUNDS = 4


def gradients(process: int, number: int) -> Tensors:
    """Whole numbers, which have one sum in any order; of several shapes, layouts and types."""
    torch.manual_seed(100 * number + process)
    large = (BUCKET_BYTES // 8 + 3,)
    shapes: Mapping[str, tuple[int, ...]] = {"a": (3, 5), "scalar": (), "none": (0, 4), "large": large}
    found = {name: torch.randint(-50, 50, shape).float() for name, shape in shapes.items()}
    found["half"] = torch.randint(-50, 50, (7,)).half()
    found["double"] = torch.randint(-50, 50, (65, 3)).double()
    found["turned"] = torch.randint(-50, 50, (6, 4)).float().t()
    return found


def ranges(group: ProcessGroup, names: Tensors) -> dict[str, tuple[int, int]]:
    """The elements that this process holds."""
    held = {}
    for name, tensor in names.items():
        width = -(-tensor.numel() // group.size)
        start = min(group.index * width, tensor.numel())
        held[name] = start, min(start + width, tensor.numel())
    return held


def summed(way: Connections | SharedRooms, tensors: Tensors) -> Tensors:
    transfer = Transfer()
    way.start_sums(transfer, tensors)
    transfer.advance()
    return {name: value.clone() for name, value in transfer.take().items()}


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        assert torch.equal(found[name], value), name


def memory_of(group: ProcessGroup) -> SharedMemory:
    memory = SharedMemory.of(group)
    assert memory is not None
    return memory


def sums(group: ProcessGroup) -> None:
    for averaged in (False, True):
        shared, others = SharedRooms(memory_of(group), averaged, 1), Connections(group, averaged, 1)
        for number in range(ROUNDS):
            found = summed(shared, gradients(group.process_id, number))
            assert_same(found, summed(others, gradients(group.process_id, number)))


def scatters(group: ProcessGroup) -> None:
    """Two transfers are under way at a time, and rooms are used again."""
    shared, others = SharedRooms(memory_of(group), False, 1), Connections(group, False, 1)
    held = ranges(group, gradients(0, 0))
    for number in range(ROUNDS):
        transfers = []
        for _ in range(2):
            transfers.append(Transfer())
            shared.start_scatter(transfers[-1], gradients(group.process_id, number), held)
        expected = Transfer()
        for transfer in transfers:
            transfer.advance()
        others.start_scatter(expected, gradients(group.process_id, number), held)
        wanted = dict(expected.take())
        for transfer in transfers:
            assert_same(dict(transfer.take()), wanted)


def gathers(group: ProcessGroup) -> None:
    shared = SharedRooms(memory_of(group), False, 1)
    for number in range(ROUNDS):
        whole = gradients(0, number)
        held = ranges(group, whole)
        own = {name: torch.full_like(value, -1) for name, value in whole.items()}  # lies in memory as the other does
        for name, (start, stop) in held.items():
            flat = own[name].reshape(-1)
            flat[start:stop] = whole[name].reshape(-1)[start:stop]
            own[name].copy_(flat.view(own[name].shape))
        assert not own["turned"].is_contiguous()
        shared.gather(own, held)
        assert_same(own, whole)


def rooms_need_no_descriptors(group: ProcessGroup) -> None:
    """One file for each process, whatever is in it; none is left when the memory is not used any more."""
    assert not open_files("poptorch-exchange")
    memory = memory_of(group)
    rooms = [memory.room(size) for size in (1, 10, 10**6)]
    assert all(rooms)
    assert len(open_files("poptorch-exchange")) == group.size
    group.barrier()
    del memory, rooms
    assert not open_files("poptorch-exchange")


def rooms_that_are_too_small_are_freed(group: ProcessGroup) -> None:
    memory = memory_of(group)
    for pages in (1, 2, 3, 4):
        room = memory.borrow(pages * mmap.PAGESIZE)
        assert room is not None
        assert room.place == range(pages * mmap.PAGESIZE), "the smaller one before it is gone"
        assert not room.own(room.size, torch.uint8).any()
        group.barrier()
        room.own(room.size, torch.uint8).fill_(1)
        room.has_been_read()
        memory.give_back(room)


def no_place_is_left(group: ProcessGroup) -> None:
    """Then gradients travel over connections, and the numbers are the same."""
    usual, rooms.LEAST_BYTES = rooms.LEAST_BYTES, mmap.PAGESIZE
    most, rooms.most_bytes = rooms.most_bytes, lambda processes: 4 * mmap.PAGESIZE
    try:
        assert memory_of(group).room(5 * mmap.PAGESIZE) is None
        sums(group)
        scatters(group)
        gathers(group)
    finally:
        rooms.LEAST_BYTES, rooms.most_bytes = usual, most


def one_has_few_addresses(group: ProcessGroup) -> None:
    """A file that cannot be mapped by one of them is made smaller by all."""
    usual = rooms.mapped_file

    def mapped(file: int, pid: int, size: int) -> mmap.mmap:
        if size > 1 << 30:
            raise OSError(errno.ENOMEM, "no addresses left")
        return usual(file, pid, size)

    if group.process_id == 1:
        rooms.mapped_file = mapped
    try:
        assert memory_of(group).room(100) is not None
    finally:
        rooms.mapped_file = usual


def one_does_not_want(group: ProcessGroup) -> None:
    if group.process_id == 1:
        os.environ["POPTORCH_SHARED_MEMORY"] = "0"
    assert SharedMemory.of(group) is None


def no_memory_file(name: str, flags: int = 0) -> int:
    raise OSError(errno.ENOSYS, "no such call here")


def one_cannot(group: ProcessGroup) -> None:
    if group.process_id == 1:
        os.memfd_create = no_memory_file
    assert SharedMemory.of(group) is None


def the_limit_of_descriptors(group: ProcessGroup) -> None:
    """It is raised, or what is needed is said."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, before[1]))
        descriptors.reserve(100, "a test")
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= used + 200
        said = ""
        try:
            descriptors.reserve(before[1], "a test")
        except Error as error:
            said = str(error)
        assert "descriptors (open files and connections) for a test, and may have" in said
        assert "ulimit -n" in said
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def few_requests(group: ProcessGroup) -> None:
    """What processes ask the meeting point for does not grow with their number."""
    asked = []
    real = keys.Connection.ask

    def ask(self: keys.Connection, operation: str, *arguments: Any, **limits: Any) -> Any:
        asked.append(operation)
        return real(self, operation, *arguments, **limits)

    keys.Connection.ask = ask  # type: ignore[method-assign]
    try:
        group.part(group.members, "requests").barrier()
    finally:
        keys.Connection.ask = real  # type: ignore[method-assign]
    others = [operation for operation in asked if operation not in ("check", "find")]  # how often it was too early
    assert sorted(others) in (["get_all", "set", "set"], ["get", "get_all", "set", "set"]), asked


CASES = {
    case.__name__: case
    for case in (
        sums, scatters, gathers, rooms_need_no_descriptors, rooms_that_are_too_small_are_freed, no_place_is_left,
        one_has_few_addresses, one_does_not_want, one_cannot, the_limit_of_descriptors, few_requests,
    )
}  # fmt: skip


def main(process: int, processes: int, names: list[str]) -> None:
    group = process_group.ensure_initialized(process, processes)
    for name in names:
        before = dict(os.environ), os.memfd_create
        CASES[name](group)
        os.environ.clear()
        os.environ.update(before[0])
        os.memfd_create = before[1]
        print(f"{name} done")
    process_group.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
