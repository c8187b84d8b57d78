"""Interpolation between nearest neighbours."""

from poptorch_geometric.ops.search import knn_interpolate

__all__ = ["knn_interpolate"]
