"""Nearest neighbours."""

from poptorch_geometric.ops.search import knn

__all__ = ["knn"]
