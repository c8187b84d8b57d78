"""How the cores of the host are divided among workers."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass
class CoreShare:
    """How a host's cores are divided: ``workers`` threads with ``threads`` each inside operations."""

    workers: int
    threads: int

    @staticmethod
    def of(width: int, cores: int | None = None, limit: int | None = None) -> CoreShare:
        """For at most ``width`` tasks at once; ``limit`` is the user's own bound for threads inside operations.

        >>> [CoreShare.of(width, cores=4, limit=4) for width in (1, 2, 16)]
        [CoreShare(workers=1, threads=4), CoreShare(workers=2, threads=2), CoreShare(workers=4, threads=1)]
        """
        cores = usable_cores() if cores is None else cores
        limit = torch.get_num_threads() if limit is None else limit
        workers = max(1, min(width, cores))
        return CoreShare(workers, max(1, min(limit, cores // workers)))


def usable_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
