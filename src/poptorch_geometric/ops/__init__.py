"""Functions and layers of PyG in a form that can be compiled: their shapes depend on shapes only."""

# Some functions have the names of modules. Imported from them, the names here mean the functions for ever.
from poptorch_geometric.ops.aggregation_base import Aggregation
from poptorch_geometric.ops.cluster_gcn_conv import ClusterGCNConv
from poptorch_geometric.ops.hetero_linear import HeteroLinear
from poptorch_geometric.ops.instance_norm import InstanceNorm
from poptorch_geometric.ops.knn import knn
from poptorch_geometric.ops.knn_graph import knn_graph
from poptorch_geometric.ops.knn_interpolate import knn_interpolate
from poptorch_geometric.ops.layers import weighted_self_loops
from poptorch_geometric.ops.mf_conv import MFConv
from poptorch_geometric.ops.radius import radius, radius_graph

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
