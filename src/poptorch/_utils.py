"""A private module of the original that graph libraries use; see ``poptorch.compat``."""

from poptorch.compat.batches import combine_batch_tensors_gen

__all__ = ["combine_batch_tensors_gen"]
