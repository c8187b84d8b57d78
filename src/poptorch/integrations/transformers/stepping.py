"""One training or evaluation step of the trainer as a module that can be compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from poptorch.ops import identity_loss

if TYPE_CHECKING:
    from poptorch.integrations.transformers.trainer import IPUTrainer

ITEMS = "num_items_in_batch"
"""The argument by which losses are divided: how many labels the rows of an update have."""


class Step(nn.Module):
    """Runs ``compute_loss`` of a trainer, whoever wrote it, on a model."""

    def __init__(self, trainer: IPUTrainer, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._compute_loss = trainer.loss_of  # a bound method is no attribute that would be captured

        self._weight = trainer.weight_of_accumulation

    def _items(self, inputs: dict[str, Any]) -> Any:
        items = inputs.pop(ITEMS, None)
        return None if items is None else items.squeeze()


class TrainingStep(Step):
    """The loss of one micro-batch."""

    def forward(self, **inputs: Any) -> Any:
        """The loss, to be minimised as it is."""
        items = self._items(inputs)
        loss = self._compute_loss(self.model, inputs, items) * self._weight(items is not None)
        return identity_loss(loss, reduction="none")


class EvaluationStep(Step):
    """Loss and outputs of one micro-batch."""

    def forward(self, **inputs: Any) -> Any:
        """The loss, if there are labels, and the outputs by their names."""
        items = self._items(inputs)
        loss, outputs = self._compute_loss(self.model, inputs, items, return_outputs=True)
        outputs = {k: v for k, v in outputs.items() if k != "loss"} if isinstance(outputs, dict) else outputs[1:]
        return loss, _tensors(outputs)


class PredictionStep(Step):
    """Outputs of one micro-batch without labels."""

    def forward(self, **inputs: Any) -> Any:
        """The outputs by their names."""
        return _tensors(self.model(**inputs))


def _tensors(outputs: Any) -> Any:
    """What can leave a program: tensors by name, without caches and other objects."""
    if not isinstance(outputs, dict):
        return outputs
    return {name: value for name, value in outputs.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, torch.Tensor)
