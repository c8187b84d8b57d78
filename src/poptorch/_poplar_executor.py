"""A private module of the original whose classes libraries use; see ``poptorch.compat``."""

from poptorch.compat.overwriting import _OverwriteContextManager
from poptorch.executor.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "_OverwriteContextManager"]
