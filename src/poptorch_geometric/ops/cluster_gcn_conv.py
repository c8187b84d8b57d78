"""The Cluster-GCN layer."""

from poptorch_geometric.ops.layers import ClusterGCNConv

__all__ = ["ClusterGCNConv"]
