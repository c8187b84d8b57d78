"""Neighbours within a radius."""

from poptorch_geometric.ops.search import radius, radius_graph

__all__ = ["radius", "radius_graph"]
