"""Instance normalisation."""

from poptorch_geometric.ops.layers import InstanceNorm

__all__ = ["InstanceNorm"]
