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
from poptorch.errors import RecoverableError
from poptorch.executable.executable import Executable
from poptorch.executable.identity import identity
from poptorch.options import Options
from poptorch.program.program import Role

if TYPE_CHECKING:
    from poptorch.executor.session import Session

_OWN = ("distributed_process_id", "ipu_id", "random_seed")
"""Options that are different in each process on purpose."""

_SHOWN = 5


class Job:
    """The processes among which gradients are summed."""

    def __init__(self, group: process_group.ProcessGroup) -> None:
        self.group = group
        self._compared = False

    @staticmethod
    def of(options: Options, training: bool) -> Job | None:
        """Meet the other processes of the options; ``None`` where there are none, or nothing to say to them.

        Inference needs no other process: each computes its own part of the data.
        """
        processes = options.Distributed.numProcesses
        if not training or processes == 1 or is_offline(options):
            return None
        return Job(process_group.ensure_initialized(options.Distributed.processId, processes))

    def exchange(self, executable: Executable) -> ProcessExchange:
        """How the gradients of a program are summed."""
        update = executable.update
        averaged = update is not None and update.running_mean
        return ProcessExchange(self.group, averaged, executable.device.loop.replicas)

    def agree(self, session: Session) -> None:
        """Compare programs, then weights and seeds; those of process 0 count."""
        self._compared = True
        agreement.compare(self.group, _parts(session), _flat(session.wrapped.options.toDict()))
        self._share_weights(session)
        self._share_seed(session)

    def failed(self, error: BaseException) -> None:
        """Compiling failed here: the others hear why, instead of waiting."""
        if not self._compared and isinstance(error, Exception) and not isinstance(error, RecoverableError):
            self._compared = True
            agreement.report_failure(self.group, error)

    def _share_weights(self, session: Session) -> None:
        options, engine = session.wrapped.options, session.engine
        written = [p.name for p in session.program.mutated() if p.role is Role.BUFFER]
        tensors = dict(engine.parameters())
        if options.broadcast_buffers:
            tensors = engine.download()
        if written and options.broadcast_buffers:
            logger.warning(
                "Each of %d processes keeps values of its own of %s, which the model writes: buffers are not "
                "exchanged. poptorch.Options.broadcastBuffers(False) says that this is intended.",
                self.group.size,
                _some(written),
            )
        with torch.no_grad():
            unequal = agreement.make_equal(self.group, tensors)
        if not unequal:
            return
        engine.memory.changed()
        session.wrapped.weights.trains()  # the host has other values than the device
        logger.warning(
            "Processes %s started with other weights than process %d: %s. Those of process %d are used everywhere. "
            "Give all processes the same seed, or load the same file, before the model is wrapped.",
            ", ".join(map(str, sorted({m for members in unequal.values() for m in members}))),
            self.group.members[0],
            _some(list(unequal)),
            self.group.members[0],
        )

    def _share_seed(self, session: Session) -> None:
        """Replicas draw different numbers from one seed, and updates the same ones."""
        own = session.rng_state or [session.engine.random.fix()]
        states = self.group.gather_values(own)
        if own != states[0]:
            logger.info("The seed of process %d is used in all processes", self.group.members[0])
        session.rng_state = states[0]


def _parts(session: Session) -> dict[str, str]:
    device = session.executable.device
    link = session.wrapped.link
    hyper = session.engine.updater.hyper if link is not None else ()
    return {
        "versions of poptorch and torch": f"{__version__}, {torch.__version__}",
        **identity(device),
        "optimizer's settings": str([{name: float(value) for name, value in group.items()} for group in hyper]),
        "loss scaling": str(float(session.engine.scale.chosen)),
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


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
