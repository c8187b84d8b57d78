"""Graphs of nearest neighbours."""

from poptorch_geometric.ops.search import knn_graph

__all__ = ["knn_graph"]
