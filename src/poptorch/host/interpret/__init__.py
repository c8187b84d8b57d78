"""The graph as straight-line Python calls of ATen functions."""
