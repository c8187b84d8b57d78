"""Adapters for the libraries around PyTorch. Each part imports its library, and none of them is loaded by ``poptorch``.

``poptorch.integrations.transformers``, ``poptorch.integrations.lightning`` and the others are imported by name.
"""
