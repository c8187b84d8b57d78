"""Linear layers by type."""

from poptorch_geometric.ops.layers import HeteroLinear

__all__ = ["HeteroLinear"]
