"""Partitions of IPUs, as programs of 2020 managed them themselves. PopRun does that today."""

from poptorch.distributed.vipu import Partition, VirtualIpuManager

__all__ = ["Partition", "VirtualIpuManager"]
