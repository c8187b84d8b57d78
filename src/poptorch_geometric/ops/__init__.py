"""Functions and layers of PyG in a form that can be compiled: their shapes depend on shapes only."""

from poptorch_geometric.ops.layers import (
    Aggregation,
    ClusterGCNConv,
    HeteroLinear,
    InstanceNorm,
    MFConv,
    weighted_self_loops,
)
from poptorch_geometric.ops.search import knn, knn_graph, knn_interpolate, radius, radius_graph

__all__ = [
    "Aggregation",
    "ClusterGCNConv",
    "HeteroLinear",
    "InstanceNorm",
    "MFConv",
    "knn",
    "knn_graph",
    "knn_interpolate",
    "radius",
    "radius_graph",
    "weighted_self_loops",
]
