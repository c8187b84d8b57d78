"""The other processes that train the same model: what is agreed with them before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from poptorch._logging import logger
from poptorch._version import __version__
from poptorch.compiler.request import is_offline
from poptorch.distributed import agreement, process_group
from poptorch.distributed.exchange import ProcessExchange
from poptorch.distributed.process_group import ProcessGroup
from poptorch.distributed.replica import BlockExchange, Team, same_block
from poptorch.distributed.replicas import ReplicaNetwork
from poptorch.errors import RecoverableError, createPoptorchError
from poptorch.executable.executable import Executable
from poptorch.executable.identity import identity
from poptorch.options import Options
from poptorch.program.fingerprint import digest
from poptorch.program.graphs import exchanges_values
from poptorch.program.program import Role
from poptorch.runtime.exchange import GradientExchange

if TYPE_CHECKING:
    from poptorch.executor.session import Session

_OWN = ("distributed_process_id", "ipu_id", "random_seed")
"""Options that are different in each process on purpose."""

_SHOWN = 5


def check_processes(options: Options) -> None:
    """Refuse numbers of processes that cannot share replicas as the options ask for."""
    processes, size = options.Distributed.numProcesses, options.Distributed.ipuBlocks
    if processes % size:
        raise createPoptorchError(
            f"{processes} processes cannot be divided into groups of {size}, as Options.Distributed."
            f"processesPerReplica({size}) asks for. Start a multiple of {size} processes."
        )


def replica_network(options: Options, executable: Executable) -> ReplicaNetwork | None:
    """How replicas of different processes exchange values in the middle of a micro-batch, if the program does."""
    processes = options.Distributed.numProcesses
    if processes == 1 or is_offline(options) or not exchanges_values(executable.device.undivided):
        return None
    everybody = process_group.ensure_initialized(options.Distributed.processId, processes)
    blocks = options.Distributed.ipuBlocks
    return ReplicaNetwork(everybody if blocks == 1 else same_block(everybody, blocks))


class Job:
    """The processes that agree about a program: those among which gradients are summed, or that share replicas."""

    def __init__(self, everybody: ProcessGroup, blocks: int, training: bool) -> None:
        self._everybody = everybody
        self._training = training
        self.team: Team | None = None
        """The processes that share the replicas of this one."""

        self.group = everybody
        """The processes that run the same program in step."""

        self._same = everybody
        """The processes that hold the same weights."""

        if blocks > 1:
            self.team = Team(everybody, blocks)
            self._same = same_block(everybody, blocks)
            self.group = everybody if training else self.team.group
        self._compared = False

    @staticmethod
    def of(options: Options, training: bool) -> Job | None:
        """Meet the other processes of the options; ``None`` where there are none, or nothing to say to them.

        Inference needs no other process, unless several share a replica: each computes its own part of the data.
        """
        processes, blocks = options.Distributed.numProcesses, options.Distributed.ipuBlocks
        if processes == 1 or is_offline(options) or not (training or blocks > 1):
            return None
        everybody = process_group.ensure_initialized(options.Distributed.processId, processes)
        return Job(everybody, blocks, training)

    def exchange(self, executable: Executable) -> GradientExchange | None:
        """How the gradients of a program are summed."""
        if not self._training:
            return None
        update, replicas = executable.update, executable.device.loop.replicas
        averaged = update is not None and update.running_mean
        if self.team is not None:
            return BlockExchange(self._same, self._everybody, averaged, replicas)
        return ProcessExchange(self.group, averaged, replicas)

    def agree(self, session: Session) -> None:
        """Compare programs, then weights and seeds; those of process 0 count."""
        self._compared = True
        agreement.compare(
            self.group, _parts(session), {**_flat(session.wrapped.options.toDict()), **_settings(session)}
        )
        if self.team is not None:
            self.team.gathers = all(self.team.gather_values(session.wrapped.weights.have_values))
        if self._training:
            if self._same.size > 1:
                self._share_weights(session)
            session.engine.share_weights()
        self._share_seed(session)

    def failed(self, error: BaseException) -> None:
        """Compiling failed here: the others hear why, instead of waiting."""
        if not self._compared and isinstance(error, Exception) and not isinstance(error, RecoverableError):
            self._compared = True
            agreement.report_failure(self.group, error)

    def _share_weights(self, session: Session) -> None:
        options, engine = session.wrapped.options, session.engine
        own = session.executable.device.interface.written_state
        written = [p.name for p in session.program.mutated() if p.role is Role.BUFFER and p.name in own]
        tensors = dict(engine.parameters())
        if options.broadcast_buffers:
            tensors = engine.download()
        if written and options.broadcast_buffers:
            logger.warning(
                "Each of %d processes keeps values of its own of %s, which the model writes: buffers are not "
                "exchanged. poptorch.Options.broadcastBuffers(False) says that this is intended.",
                self._same.size,
                _some(written),
            )
        with torch.no_grad():
            unequal = agreement.make_equal(self._same, tensors)
        if not unequal:
            return
        engine.memory.changed()
        session.wrapped.weights.trains()  # the host has other values than the device
        logger.warning(
            "Processes %s started with other weights than process %d: %s. Those of process %d are used everywhere. "
            "Give all processes the same seed, or load the same file, before the model is wrapped.",
            ", ".join(map(str, sorted({m for members in unequal.values() for m in members}))),
            self._same.members[0],
            _some(list(unequal)),
            self._same.members[0],
        )

    def _share_seed(self, session: Session) -> None:
        """Replicas draw different numbers from one seed, and updates the same ones."""
        options = session.wrapped.options
        given = options.random_seed if options.exists("random_seed") else None
        own = session.rng_state or [session.engine.random.fix()]
        found = self.group.gather_values({"state": own, "given": given})
        first = self.group.members[0]
        seeds = {member: other["given"] for member, other in zip(self.group.members, found, strict=True)}
        unequal = [member for member, seed in seeds.items() if seed != seeds[first]]
        if unequal:
            logger.warning(
                "Processes have different seeds (poptorch.Options.randomSeed): %s in process %d, %s in process %d%s. "
                "The device draws the numbers of process %d everywhere. A poptorch.DataLoader that shuffles looks at "
                "some rows twice and leaves others out. Give all processes the same seed.",
                _seed(seeds[first]),
                first,
                _seed(seeds[unequal[0]]),
                unequal[0],
                f" and {len(unequal) - 1} more" if len(unequal) > 1 else "",
                first,
            )
        elif own != found[0]["state"]:
            logger.info("The seed of process %d is used in all processes", first)
        session.rng_state = found[0]["state"]


def _parts(session: Session) -> dict[str, str]:
    device = session.executable.device
    link = session.wrapped.link
    hyper = session.engine.updater.hyper if link is not None else ()
    inputs = [
        f"{p.name} {list(p.shape)} {str(p.dtype).rpartition('.')[2]}" for p in session.program.ports_of(Role.INPUT)
    ]
    return {
        "versions of poptorch and torch": f"{__version__}, {torch.__version__}",
        "batch of each replica": ", ".join(inputs),
        **identity(device),
        "optimizer's settings": digest([{name: float(value) for name, value in group.items()} for group in hyper]),
        "loss scaling": str(float(session.engine.scale.chosen)),
    }


def _settings(session: Session) -> dict[str, str]:
    """The numbers of the user's optimizer, which may be the reason for what differs."""
    link = session.wrapped.link
    return {
        f"the optimizer's {name} in group {index}": str(value)
        for index, group in enumerate(() if link is None else link.optimizer.param_groups)
        for name, value in group.items()
        if isinstance(value, (bool, int, float, tuple))
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """All options by their full names, as texts."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif name not in _OWN and isinstance(value, (bool, int, float, str, list, tuple, type(None))):
            found[prefix + str(name)] = str(value)
    return found


def _seed(seed: int | None) -> str:
    return "none" if seed is None else str(seed)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
