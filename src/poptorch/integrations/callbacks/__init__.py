"""Callbacks for executors, and those that write to TensorBoard, Weights & Biases and MLflow.

Each imports its library when it is made.
"""

from poptorch.executor.callbacks import Callback, Event
from poptorch.integrations.callbacks.loggers import MLflow, TensorBoard, WandB, values_of

__all__ = ["Callback", "Event", "MLflow", "TensorBoard", "WandB", "values_of"]
