"""Which part of a distributed job this process is: the names of PopDist.

PopRun starts several processes, called instances, and says in environment variables which replicas are whose. The
getters read these variables. Without a launcher there is one instance with one replica.

``init()`` brings the instances in contact. ``synchronize``, ``execute_on_instances`` and :mod:`popdist.collectives` use
that.

>>> getNumInstances(), getInstanceIndex(), isPopdistEnvSet()
(1, 0, False)
"""

from popdist.backend import (
    execute_on_instances,
    finalizeBackend,
    init,
    initializeBackend,
    isBackendInitialized,
    popdist_error,
    registerBackend,
    registerDefaultBackend,
    synchronize,
)
from popdist.context import (
    checkNumIpusPerReplica,
    getInstanceIndex,
    getLocalInstanceIndex,
    getNumInstances,
    getNumIpusPerReplica,
    getNumLocalReplicas,
    getNumTotalReplicas,
    getReplicaIndexOffset,
    isPopdistEnvSet,
)
from popdist.device import getDeviceId

__all__ = [
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "finalizeBackend",
    "getDeviceId",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "initializeBackend",
    "isBackendInitialized",
    "isPopdistEnvSet",
    "popdist_error",
    "registerBackend",
    "registerDefaultBackend",
    "synchronize",
]
