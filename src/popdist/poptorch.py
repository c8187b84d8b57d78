"""``popdist.poptorch.Options``: options whose processes, replicas and device come from the launcher."""

from __future__ import annotations

from typing import Any, NoReturn

from popdist import context
from popdist.device import getDeviceId
from poptorch.compiler.request import is_offline, uses_ipu_model
from poptorch.options import Options as _Options
from poptorch.options import groups

__all__ = ["Options"]


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"Cannot call `{name}` with popdist.poptorch.Options: the launcher decides about processes, replicas and "
        "devices. Use poptorch.Options where the program is to decide."
    )


class _DistributedOptions(groups._DistributedOptions):
    """The group ``Distributed``, read-only."""

    def disable(self, *unused: object, **ignored: object) -> NoReturn:
        """Refused."""
        _refuse("Distributed.disable")

    def setEnvVarNames(self, *unused: object, **ignored: object) -> NoReturn:
        """Refused."""
        _refuse("Distributed.setEnvVarNames")

    def configureProcessId(self, *unused: object, **ignored: object) -> NoReturn:
        """Refused."""
        _refuse("Distributed.configureProcessId")


class Options(_Options):
    """Options of a program that PopRun starts. Without a launcher they describe one process with one replica.

    >>> options = Options(ipus_per_replica=2)
    >>> options.Distributed.processId, options.Distributed.numProcesses, options.replication_factor
    (0, 1, 1)
    >>> options.replicationFactor(2)
    Traceback (most recent call last):
    ...
    RuntimeError: Cannot call `replicationFactor` with popdist.poptorch.Options: ...
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        launched = context.getNumIpusPerReplica()
        if ipus_per_replica is None:
            ipus_per_replica = launched
        elif context.isPopdistEnvSet() and not context.checkNumIpusPerReplica(ipus_per_replica):
            raise RuntimeError(
                f"The program asks for {ipus_per_replica} IPUs per replica, and the launcher was given {launched}. "
                "Make them equal: poprun --ipus-per-replica."
            )
        self._ipus_per_replica = ipus_per_replica
        super().__init__()
        self.set(replication_factor=context.getNumLocalReplicas())
        self.Distributed.configureProcessId(context.getInstanceIndex(), context.getNumInstances())
        self.Distributed.__class__ = _DistributedOptions
        cache = context.executable_cache_path()
        if cache is not None:
            self.enableExecutableCaching(cache)

    def useIpuId(self, *unused: object, **ignored: object) -> NoReturn:
        """Refused."""
        _refuse("useIpuId")

    def replicationFactor(self, *unused: object, **ignored: object) -> NoReturn:
        """Refused."""
        _refuse("replicationFactor")

    def toDict(self) -> dict[str, Any]:
        """As for all options; the device of this instance is chosen now, at the latest moment.

        A target without devices has none, also if one was chosen before the target was.
        """
        needs_device = not (is_offline(self) or uses_ipu_model(self))
        if needs_device != self.exists("ipu_id"):
            frozen = self._is_frozen
            self._unfreeze()
            if needs_device:
                self.createOrSet(ipu_id=getDeviceId(self._ipus_per_replica))
            else:
                self.deleteIfExists("ipu_id")
            if frozen:
                self._freeze()
        return super().toDict()
