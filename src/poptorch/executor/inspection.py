"""What users may ask a compiled model about itself: names, anchored values, times and counters."""

from __future__ import annotations

import datetime

import torch

from poptorch.compiler.passes.anchors import traced_names, value_names
from poptorch.compiler.update_anchors import held_names
from poptorch.errors import createPoptorchError
from poptorch.executor.session import Session
from poptorch.options import Options
from poptorch.runtime import counters


def tensor_names(session: Session | None) -> list[str]:
    """The names of all tensors of the compiled graph."""
    assert session is not None, "Model must be compiled before calling getTensorNames"
    traced = session.is_traced and session.program.training
    names = traced_names(session.program) if traced else list(value_names(session.program))
    device = session.executable.device
    if device.update is not None and device.interface.optimizer is not None:
        names += held_names(device.update, device.interface.optimizer, traced=traced)
    return names


def anchored_tensor(session: Session | None, short_name: str) -> torch.Tensor:
    """The value that an anchored tensor had in the latest call."""
    anchored = session.anchored if session is not None else {}
    assert short_name in anchored, (
        f"No tensor with name {short_name} found. Call Options.anchorTensor() before the model is wrapped, and run it."
    )
    return anchored[short_name]


def cycle_count(session: Session | None, options: Options) -> int:
    """Device cycles of a run, as the IPU Model predicts them: every run of a program takes the same."""
    if not options._Popart.options.get("instrumentWithHardwareCycleCounter"):
        raise createPoptorchError("Cycle count logging is disabled. Please set option logCycleCount to True to enable.")
    if session is None or not session.has_run:
        raise createPoptorchError("Please run the model at least once before obtaining cycle count.")
    return session.estimate.cycles


def compilation_time(session: Session | None, options: Options) -> datetime.timedelta:
    """How long the last compilation took."""
    if session is None:
        raise createPoptorchError("Please compile the model before obtaining compilation time.")
    if not options._show_compilation_progress_bar:
        raise createPoptorchError("Please set showCompilationProgressBar option to obtain compilation time.")
    return session.compile_time


def perf_counters(session: Session | None) -> dict[str, list[list[float]]]:
    """Time stamps of the inputs and outputs of the last call."""
    if session is None:
        return {key: [[]] for key in counters.EMPTY}
    return session.counters
