"""The models that the functions of this room look at."""

from __future__ import annotations

from typing import Any

import torch

from poptorch.errors import createPoptorchError
from poptorch.executor.executor import PoplarExecutor
from poptorch.executor.session import Session
from poptorch.executor.wrapping import inferenceModel


def prepared(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Session, list[torch.Tensor]]:
    """The compiled program of a wrapped model, and the tensors of a call; a plain module is wrapped for inference."""
    if isinstance(model, torch.nn.Module):
        model = inferenceModel(model)
    if not isinstance(model, PoplarExecutor):
        raise createPoptorchError(
            f"Expected a model wrapped by poptorch.trainingModel or poptorch.inferenceModel, not {type(model)}"
        )
    return model.sessionFor(*args, **kwargs)
