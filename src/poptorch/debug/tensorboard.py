"""Anchored tensors as scalars and histograms of TensorBoard, where it is installed."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from poptorch.errors import createPoptorchError
from poptorch.executor.executor import PoplarExecutor


class AnchorWriter:
    """Writes the anchored tensors of a model to a log of TensorBoard, after any call that you choose.

    A tensor with one element becomes a scalar. Of any other one the finite elements become a histogram, and two
    scalars say how large it is (``<name>/norm``) and how many elements are not finite (``<name>/non_finite``).

    ``tensorboard`` must be installed; it is imported when a writer is made. A writer is a context manager, which
    closes the log at its end.
    """

    def __init__(self, log_dir: str | Path) -> None:
        self._writer = _summary_writer(log_dir)

    def write(self, model: PoplarExecutor, step: int, names: list[str] | None = None) -> None:
        """Write the values of the latest call; ``names`` are short names of anchors, by default all of them."""
        for name in model.options.anchored_tensors if names is None else names:
            self._write(name, model.getAnchoredTensor(name).detach(), step)

    def _write(self, name: str, tensor: torch.Tensor, step: int) -> None:
        if tensor.numel() == 1:
            self._writer.add_scalar(name, tensor.item(), step)
            return
        values = tensor.float().flatten()
        finite = values[values.isfinite()]
        if finite.numel():
            self._writer.add_histogram(name, finite, step)
        self._writer.add_scalar(f"{name}/norm", finite.norm().item(), step)
        self._writer.add_scalar(f"{name}/non_finite", values.numel() - finite.numel(), step)

    def close(self) -> None:
        """Write everything that waits, and close the log."""
        self._writer.close()

    def __enter__(self) -> AnchorWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _summary_writer(log_dir: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise createPoptorchError(
            f"poptorch.debug.AnchorWriter needs TensorBoard, which cannot be imported ({error}). Install it: pip "
            "install tensorboard"
        ) from None
    return SummaryWriter(str(log_dir))
