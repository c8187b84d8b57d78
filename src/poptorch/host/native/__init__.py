"""The graph as C++ kernels, compiled by TorchInductor."""
