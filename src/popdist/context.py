"""What the launcher says about the job and about this process. Read anew at each call; no communication."""

from __future__ import annotations

import os

NUM_TOTAL_REPLICAS = "POPDIST_NUM_TOTAL_REPLICAS"
NUM_LOCAL_REPLICAS = "POPDIST_NUM_LOCAL_REPLICAS"
NUM_IPUS_PER_REPLICA = "POPDIST_NUM_IPUS_PER_REPLICA"
UNIFORM_REPLICAS = "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"
REPLICA_INDEX_OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
LOCAL_INSTANCE_INDEX = "POPDIST_LOCAL_INSTANCE_INDEX"
NODE_DEVICE_ID = "POPDIST_NODE_DEVICE_ID"
EXECUTABLE_CACHE_PATH = "POPDIST_EXECUTABLE_CACHE_PATH"
GCD_ID = "IPUOF_VIPU_API_GCD_ID"

VARIABLES = {
    NUM_TOTAL_REPLICAS: "replicas of the whole job; its presence means that a launcher started the process",
    NUM_LOCAL_REPLICAS: "replicas of this instance",
    NUM_IPUS_PER_REPLICA: "IPUs of each replica",
    UNIFORM_REPLICAS: "1 if all instances have the same number of replicas",
    REPLICA_INDEX_OFFSET: "the number of this instance's first replica among all",
    LOCAL_INSTANCE_INDEX: "the number of this instance among those on its host",
    NODE_DEVICE_ID: "the device that the instances of this host share, if the partition can be divided at will",
    EXECUTABLE_CACHE_PATH: "the directory for compiled executables",
}
"""What the launcher sets, and what it means. Each is read when a function asks for it."""


def read_number(name: str, default: int, at_least: int = 0) -> int:
    """The number in an environment variable, or ``default`` if the variable is not set.

    >>> read_number("NO_SUCH_VARIABLE", 1)
    1
    """
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = at_least - 1
    if value < at_least:
        raise RuntimeError(
            f"The environment variable {name} is {text[:100]!r}, but must be a number from {at_least} upwards. The "
            "launcher sets it; unset it to run without one."
        )
    return value


def has(name: str) -> bool:
    """Whether the launcher has set a variable."""
    return name in os.environ


def executable_cache_path() -> str | None:
    """The directory for executables that the launcher was given, if any."""
    return os.environ.get(EXECUTABLE_CACHE_PATH) or None


def isPopdistEnvSet() -> bool:
    """Whether a launcher has started this process, alone or as one of several."""
    return has(NUM_TOTAL_REPLICAS)


def getNumTotalReplicas() -> int:
    """How many replicas the job has, over all instances."""
    return read_number(NUM_TOTAL_REPLICAS, 1, at_least=1)


def getNumLocalReplicas() -> int:
    """How many replicas this instance has."""
    return read_number(NUM_LOCAL_REPLICAS, 1, at_least=1)


def getNumIpusPerReplica() -> int:
    """How many IPUs each replica has."""
    return read_number(NUM_IPUS_PER_REPLICA, 1, at_least=1)


def getReplicaIndexOffset() -> int:
    """The number of this instance's first replica among all."""
    return read_number(REPLICA_INDEX_OFFSET, 0)


def getNumInstances() -> int:
    """How many instances the job has. All must have the same number of replicas."""
    local, total = _uniform_replicas(), getNumTotalReplicas()
    if total % local:
        raise RuntimeError(
            f"{total} replicas ({NUM_TOTAL_REPLICAS}) cannot be spread evenly over instances of {local} "
            f"({NUM_LOCAL_REPLICAS})."
        )
    return total // local


def getInstanceIndex() -> int:
    """Which instance this is, counted from 0. All must have the same number of replicas."""
    return getReplicaIndexOffset() // _uniform_replicas()


def getLocalInstanceIndex() -> int:
    """Which of the instances on this host this is, counted from 0."""
    return read_number(LOCAL_INSTANCE_INDEX, 0)


def checkNumIpusPerReplica(n: int) -> bool:
    """Whether each replica has ``n`` IPUs.

    >>> checkNumIpusPerReplica(1), checkNumIpusPerReplica(2)
    (True, False)
    """
    return n == getNumIpusPerReplica()


def _uniform_replicas() -> int:
    if read_number(UNIFORM_REPLICAS, 1) != 1:
        raise RuntimeError(
            f"Instances of this job have different numbers of replicas ({UNIFORM_REPLICAS} is not 1): then they have "
            "no number and no count. Start the job with the same number of replicas for each."
        )
    return getNumLocalReplicas()
