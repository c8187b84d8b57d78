"""Loading data: batches of the size that a model consumes, ahead of time if wanted."""

from poptorch.data.accessor import AsynchronousDataAccessor
from poptorch.data.loader import DataLoader
from poptorch.data.waiting import WaitReport

__all__ = ["AsynchronousDataAccessor", "DataLoader", "WaitReport"]
