"""Checkpoints of wrapped models in the format of ``torch.distributed.checkpoint``: whole, and readable elsewhere."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_saver import save

from poptorch.errors import createPoptorchError
from poptorch.executor.executor import PoplarExecutor

_RANDOM = "poptorch_random"


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Without torch's warning that there is one process only, as there should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)", UserWarning)
        yield


def save_checkpoint(
    folder: str | Path, model: PoplarExecutor, optimizer: torch.optim.Optimizer | None = None, **extra: Any
) -> None:
    """Write the weights, the optimizer's state, the random numbers of the device, and whatever else is given.

    The entries are ``model``, ``optimizer`` and those of ``extra``. ``torch.distributed.checkpoint.load`` reads them
    into a plain module; ``torch.distributed.checkpoint.format_utils`` makes one file of them. Of several processes, all
    call this, and the first one writes.

    >>> import poptorch, tempfile
    >>> folder, model = tempfile.mkdtemp(), torch.nn.Linear(2, 1)
    >>> save_checkpoint(folder, poptorch.inferenceModel(model), epoch=3)
    >>> state = {"model": torch.nn.Linear(2, 1).state_dict()}
    >>> torch.distributed.checkpoint.load(state, checkpoint_id=folder)
    >>> torch.equal(state["model"]["weight"], model.weight)
    True
    """
    taken = {"model", "optimizer", _RANDOM} & set(extra)
    if taken:
        raise createPoptorchError(f"save_checkpoint: {sorted(taken)[0]!r} is the name of an entry of its own.")
    state: dict[str, Any] = {"model": model.model.state_dict(), **extra}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    if model.isCompiled() and (words := model.rng_state) is not None:
        state[_RANDOM] = {"state": list(words)}
    if model.options.Distributed.processId == 0:
        with _one_process():
            save(state, checkpoint_id=str(folder), no_dist=True)


def load_checkpoint(
    folder: str | Path, model: PoplarExecutor, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Read what :func:`save_checkpoint` has written, or a checkpoint with an entry ``model``; returns the others.

    Random numbers go on where they were if the model is compiled: call ``model.compile(...)`` before.

    >>> import poptorch, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> model = poptorch.inferenceModel(torch.nn.Linear(2, 1))
    >>> save_checkpoint(folder, model, epoch=3)
    >>> load_checkpoint(folder, model)
    {'epoch': 3}
    """
    if not (Path(folder) / ".metadata").exists():
        raise FileNotFoundError(f"{folder} has no checkpoint of torch.distributed.checkpoint: there is no .metadata")
    with _one_process():
        state = _load_state_dict_from_keys(checkpoint_id=str(folder))
    if "model" not in state:
        raise createPoptorchError(f"The checkpoint in {folder} has no entry 'model', only {sorted(state)}.")
    if optimizer is not None and "optimizer" not in state:
        raise createPoptorchError(f"The checkpoint in {folder} has no optimizer: it was saved without one.")
    model.load_state_dict(state.pop("model"))
    saved = state.pop("optimizer", None)
    if optimizer is not None:
        optimizer.load_state_dict({"state": {}, **saved})  # the format keeps no empty dictionaries
    random = state.pop(_RANDOM, None)
    if random is not None and model.isCompiled():
        model.rng_state = random["state"]
    return dict(state)
