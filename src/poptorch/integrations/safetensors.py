"""Weights of wrapped models in files of safetensors, which other programs read and which run no code when read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from poptorch.executor import instrumentation
from poptorch.executor.executor import PoplarExecutor
from poptorch.integrations.requirements import require

require("safetensors", "safetensors")

import safetensors.torch  # noqa: E402

Model = torch.nn.Module | PoplarExecutor


def save_model(model: Model, filename: str | Path, metadata: dict[str, str] | None = None) -> None:
    """Write the weights and buffers of a module, or of a wrapped one the newest of them, to a file.

    Weights that a model uses twice are written once. The file is the one that ``safetensors.torch.save_model`` writes
    for the plain module.

    >>> import pathlib, poptorch, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> save_model(poptorch.trainingModel(torch.nn.Linear(2, 1)), path)
    >>> sorted(safetensors.torch.load_file(path))
    ['bias', 'weight']
    """
    safetensors.torch.save_model(_module_of(model), str(path_of(filename)), metadata)


def load_model(model: Model, filename: str | Path, strict: bool = True) -> tuple[list[str], list[str]]:
    """Read weights and buffers into a module; into a wrapped one and, if it is loaded, onto its device.

    Returns the names that the file does not have, and those that the model does not have; with ``strict`` there may be
    none. The file is mapped into memory, so each weight is copied once.

    >>> import pathlib, poptorch, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> save_model(torch.nn.Linear(2, 1), path)
    >>> load_model(poptorch.inferenceModel(torch.nn.Linear(2, 1)), path)
    ([], [])
    """
    executor = executor_of(model)
    target: Any = _module_of(model) if executor is None else executor
    missing, unexpected = safetensors.torch.load_model(target, str(path_of(filename)), strict=strict)
    return sorted(missing), sorted(unexpected)


def path_of(filename: str | Path) -> Path:
    """The path, with the user's home folder spelt out."""
    return Path(filename).expanduser()


def _module_of(model: Model) -> torch.nn.Module:
    return model.model if isinstance(model, PoplarExecutor) else model


def executor_of(model: Model) -> PoplarExecutor | None:
    """The executor of a wrapped model: itself, or the one that trains a module."""
    if isinstance(model, PoplarExecutor):
        return model
    found = instrumentation.executor_of(model)
    return found if isinstance(found, PoplarExecutor) else None
