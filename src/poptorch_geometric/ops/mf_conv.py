"""The MF layer."""

from poptorch_geometric.ops.layers import MFConv

__all__ = ["MFConv"]
