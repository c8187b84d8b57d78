"""A private module of the original that libraries and programs use; see ``poptorch.compat``."""

from poptorch.ambient import isRunningOnIpu as isDispatchTracing
from poptorch.executor.wrapping import rewrap_model as rewrapModelIfNecessary
from poptorch.executor.wrapping import unwrap_model as unwrapModelIfNecessary

__all__ = ["isDispatchTracing", "rewrapModelIfNecessary", "unwrapModelIfNecessary"]
