"""The devices of this machine's system as people and tools see them: ids, members, boards, state, owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from poptorch.devices import attachment
from poptorch.devices.groups import Group, group_of
from poptorch.devices.sharing import Owner
from poptorch.devices.system import System

FREE, IN_USE, PARTLY = "free", "in use", "partly in use"


@dataclass(frozen=True)
class Board:
    """What IPUs sit on."""

    kind: str
    ipus: int
    clock_mhz: int
    bus: str
    """How a host reaches them: ``Fabric`` or ``PCIe``."""


_BOARDS: Mapping[str, Board] = MappingProxyType(
    {
        "mk1": Board("C2", 2, 1600, "PCIe"),
        "mk2": Board("M2000", 4, 1330, "Fabric"),
        "bow": Board("BOW-2000", 4, 1850, "Fabric"),
        "c600": Board("C600", 1, 1500, "PCIe"),
    }
)


def board_of(machine: System) -> Board:
    """The boards of a system; all are alike."""
    return _BOARDS[machine.architecture]


@dataclass(frozen=True)
class Listed:
    """A device: one IPU, or a group of them."""

    device_id: int
    group: Group
    board: Board
    owners: tuple[Owner, ...]
    """Who has its IPUs, in order."""

    @property
    def kind(self) -> str:
        """``Fabric`` or ``PCIe`` for one IPU, ``Multi IPU`` for a group."""
        return self.board.bus if self.group.size == 1 else "Multi IPU"

    @property
    def state(self) -> str:
        """Whether it can be attached, and if not, whether some of its IPUs can."""
        taken = sum(ipu in owner.ipus for owner in self.owners for ipu in self.group.ipus)
        return FREE if taken == 0 else IN_USE if taken == self.group.size else PARTLY

    @property
    def board_number(self) -> int:
        """The board of the first IPU."""
        return self.group.first // self.board.ipus

    @property
    def number_on_board(self) -> int:
        """Within a board, the numbers run opposite to the ids."""
        return self.board.ipus - 1 - self.group.first % self.board.ipus

    @property
    def serial(self) -> str:
        """A name for the board."""
        return f"virtual-{self.board_number:04d}"


def devices(machine: System) -> list[Listed]:
    """All devices of a system, which must be this machine's, in the order of their ids.

    >>> from poptorch.devices.system import system
    >>> [(d.device_id, d.kind, d.number_on_board) for d in devices(system())][62:65]
    [(62, 'Fabric', 1), (63, 'Fabric', 0), (64, 'Multi IPU', 3)]
    """
    owners, board = attachment.owners(), board_of(machine)
    return [_listed(number, machine.ipus, board, owners) for number in range(2 * machine.ipus - 1)]


def _listed(number: int, total: int, board: Board, owners: list[Owner]) -> Listed:
    group = group_of(number, total)
    return Listed(number, group, board, tuple(owner for owner in owners if _has(owner, group)))


def _has(owner: Owner, group: Group) -> bool:
    return owner.ipus.start < group.first + group.size and group.first < owner.ipus.stop
