"""PopDist for programs that use PopART itself."""

from __future__ import annotations

from typing import Any, NoReturn

from popdist import context

__all__ = ["configureSessionOptions", "getDevice"]


def configureSessionOptions(opts: Any) -> None:
    """Fill in the replicas of this instance and of the whole job.

    >>> import types
    >>> opts = types.SimpleNamespace()
    >>> configureSessionOptions(opts)
    >>> opts.replicatedGraphCount, opts.globalReplicationFactor, opts.enableReplicatedGraphs
    (1, 1, False)
    """
    local, total = context.getNumLocalReplicas(), context.getNumTotalReplicas()
    opts.enableReplicatedGraphs = local > 1
    opts.replicatedGraphCount = local
    opts.enableDistributedReplicatedGraphs = total > local
    opts.globalReplicaOffset = context.getReplicaIndexOffset()
    opts.globalReplicationFactor = total


def getDevice(ipus_per_replica: int | None = None, connectionType: Any = None) -> NoReturn:
    """There are no PopART devices here."""
    raise RuntimeError(
        "popdist.popart.getDevice: there is no PopART in this environment, so it has no devices. Programs for poptorch "
        "use popdist.poptorch.Options; popdist.getDeviceId() gives the number of the device."
    )
