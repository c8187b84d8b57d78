"""What libraries find behind ``executor._model``: in the original, an object around the model and its optimizer."""

from __future__ import annotations

from typing import Any

from torch import nn


class OptimizerWrapper(nn.Module):
    """Has the user's model as ``model``; whatever else is asked of it is asked of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._modules["model"] = model  # as it is: nobody is to hear of another module in the model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {})
        if "model" not in modules:
            raise AttributeError(name)
        return modules["model"] if name == "model" else getattr(modules["model"], name)


def private_model(model: nn.Module, user_model: nn.Module) -> nn.Module:
    """The object for a model that trains. A library's own module around the user's model may be one already.

    >>> layer = nn.ReLU()
    >>> private_model(layer, layer).model is layer
    True
    """
    if model is not user_model and "model" in dict(model.named_children()):
        return model
    return OptimizerWrapper(user_model)
