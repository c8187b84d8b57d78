"""The base of aggregations."""

from poptorch_geometric.ops.layers import Aggregation

__all__ = ["Aggregation"]
