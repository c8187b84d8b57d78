"""Managing partitions by the command-line tool of the V-IPU controller, ``vipu-cli``."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

from poptorch._logging import logger

_COMMAND = ("vipu-cli", "-a", "--showjson")


@dataclass
class Partition:
    """The size of a partition: its IPUs, the parts that programs compile for, and the replicas over all parts.

    >>> print(Partition(4, num_gcds=2, num_sync_replicas=4))
    {'num_ipus': 4, 'num_gcds': 2, 'num_sync_replicas': 4}
    """

    num_ipus: int
    num_gcds: int = 1
    num_sync_replicas: int = 1

    def __str__(self) -> str:
        return str(asdict(self))


class VirtualIpuManager:
    """Asks the controller through ``vipu-cli``, which must be on the path.

    A call that fails raises what ``subprocess`` raises: ``FileNotFoundError`` without the tool, else
    ``CalledProcessError``.
    """

    @staticmethod
    def isAvailable() -> bool:
        """Whether the tool is there and runs; the log says at DEBUG why not."""
        try:
            _run("--version")
        except (OSError, subprocess.SubprocessError) as error:
            logger.debug("vipu-cli is not available: %s", error)
            return False
        return True

    @staticmethod
    def numIpus() -> int:
        """The IPUs of the cluster. There must be one cluster with one link domain."""
        clusters = json.loads(_run("list", "cluster"))
        assert len(clusters) == 1, f"Expected one cluster, but there are {len(clusters)}"
        domains = clusters[0]["spec"]["ipu_link_domains"]
        assert len(domains) == 1, f"Expected one link domain, but the cluster has {len(domains)}"
        return len(domains[0]["ipus"])

    @staticmethod
    def listPartitions() -> dict[str, Partition]:
        """All partitions by name."""
        return dict(_partition(entry["partition"]) for entry in json.loads(_run("list", "partition")))

    @staticmethod
    def createPartition(name: str, partition: Partition) -> None:
        """Make a partition."""
        assert isinstance(partition, Partition), f"Expected a Partition, not {type(partition).__name__}"
        _run(
            "create", "partition", name, "--size", str(partition.num_ipus), "--num-gcds", str(partition.num_gcds),
            "--gcd-sync-replicas", str(partition.num_sync_replicas),
        )  # fmt: skip

    @staticmethod
    def deletePartition(name: str) -> None:
        """Remove a partition."""
        _run("delete", "partition", name)

    @staticmethod
    def resetPartition(name: str) -> None:
        """Bring a partition back to its initial state."""
        _run("reset", "partition", name)


def _partition(entry: dict[str, Any]) -> tuple[str, Partition]:
    spec = entry["spec"]
    return str(entry["id"]), Partition(len(spec["ipus"]), int(spec["num_gcds"]), int(spec["num_replicas"]))


def _run(*arguments: str) -> str:
    done = subprocess.run([*_COMMAND, *arguments], check=True, capture_output=True, text=True)
    return done.stdout
