"""What the trainer holds in place of a model while it trains or evaluates: steps that were compiled for IPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from poptorch.errors import createPoptorchError
from poptorch.executor.executor import PoplarExecutor
from poptorch.executor.wrapping import inferenceModel
from poptorch.integrations.optimizers import settings_of
from poptorch.integrations.transformers.placing import placed
from poptorch.integrations.transformers.stepping import ITEMS, EvaluationStep, PredictionStep, TrainingStep
from poptorch.placement.strategies import ShardedExecution

if TYPE_CHECKING:
    from poptorch.integrations.transformers.trainer import IPUTrainer


def rows_of(inputs: Mapping[str, Any]) -> int:
    """Rows of a batch."""
    return next((len(value) for value in inputs.values() if isinstance(value, torch.Tensor) and value.ndim), 0)


def shapes_of(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a program is compiled for."""
    return tuple((name, tuple(value.shape)) for name, value in sorted(inputs.items()) if hasattr(value, "shape"))


class TrainingModel:
    """A model that trains on IPUs, as the trainer's loop wants it: with ``train()``, ``zero_grad()``, ``parameters()``.

    Gradients live and die on the device, so there is nothing to reset.
    """

    def __init__(self, trainer: IPUTrainer, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._trainer, self.model, self._optimizer = trainer, model, optimizer
        options = trainer.ipu_config.to_options(seed=trainer.args.seed)
        self.executor = PoplarExecutor(
            TrainingStep(trainer, model), options, training=True, optimizer=optimizer, user_model=model
        )
        self._shapes: tuple[Any, ...] = ()
        self._settings = settings_of(optimizer)
        self.random_state: list[int] | None = None
        """What the device's random numbers are to go on from."""

    def __call__(self, **inputs: Any) -> torch.Tensor:
        """The losses of the micro-batches of one call."""
        if not self.executor.isCompiled():
            with placed(self.model, self._trainer.ipu_config, training=True):
                self.executor.compile(**inputs)
            self._shapes = shapes_of(inputs)
            if self.random_state is not None:
                self.executor.rng_state = self.random_state
        elif self._shapes != (found := shapes_of(inputs)):
            raise createPoptorchError(
                f"This batch has other shapes than the first one: {dict(found)} instead of {dict(self._shapes)}. "
                "A compiled program has fixed sizes: pad to one length, as with padding='max_length' of the tokenizer "
                "or pad_to_multiple_of in the collator, and set dataloader_drop_last."
            )
        if (settings := settings_of(self._optimizer)) != self._settings:
            self.executor.setOptimizer(self._optimizer)
            self._settings = settings
        losses: torch.Tensor = self.executor(**inputs)
        return losses

    def pause(self) -> None:
        """Leave the IPUs to somebody else; the next call takes them again."""
        if self.executor.isAttachedToDevice():
            self.executor.detachFromDevice()

    def train(self, mode: bool = True) -> None:
        """Training is all that it can."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing to do: gradients do not outlive an update."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class EvaluationModel:
    """A model that is evaluated on IPUs: a program for full batches, and others for the rows left over."""

    def __init__(self, trainer: IPUTrainer, model: nn.Module) -> None:
        self._trainer, self.model = trainer, model
        self._micro_batch = trainer.micro_batch(training=False)
        self._executors: dict[tuple[Any, ...], PoplarExecutor] = {}

    def losses_and_outputs(self, inputs: dict[str, Any], counts: bool) -> tuple[torch.Tensor, Any]:
        """The mean loss over the rows of a batch, and its outputs."""
        found = []
        for rows, piece in self._pieces(inputs):
            micro_batches = max(rows // self._micro_batch, 1)
            if counts:
                piece[ITEMS] = self._trainer.items_of(piece, micro_batches)
            loss, outputs = self._run(EvaluationStep, rows, piece)
            found.append((rows, loss.float().mean(), outputs))
        total = sum(rows for rows, _, _ in found)
        mean = sum((loss * (rows / total) for rows, loss, _ in found), torch.tensor(0.0))
        outputs = _joined([outputs for _, _, outputs in found])
        return mean, outputs if isinstance(outputs, dict) else (mean, *outputs)

    def __call__(self, **inputs: Any) -> Any:
        """The outputs of a batch."""
        return _joined([self._run(PredictionStep, rows, piece) for rows, piece in self._pieces(inputs)])

    def _pieces(self, inputs: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """A full batch as it is; of an incomplete one its micro-batches and then the rest."""
        rows = rows_of(inputs)
        full = self._micro_batch * self._trainer.ipu_config.micro_batches(training=False)
        if rows == full:
            return [(rows, dict(inputs))]
        return [
            (end - begin, {name: _rows(value, begin, end, rows) for name, value in inputs.items()})
            for begin in range(0, rows, self._micro_batch)
            for end in [min(begin + self._micro_batch, rows)]
        ]

    def _run(self, kind: Any, rows: int, inputs: dict[str, Any]) -> Any:
        key = (kind, shapes_of(inputs))
        if key not in self._executors:
            self._executors[key] = self._compiled(kind, rows, inputs)
        for other in self._executors.values():
            if other is not self._executors[key] and other.isAttachedToDevice():
                other.detachFromDevice()
        return self._executors[key](**inputs)

    def _compiled(self, kind: Any, rows: int, inputs: dict[str, Any]) -> PoplarExecutor:
        config = self._trainer.ipu_config
        options = config.to_options(for_inference=True, seed=self._trainer.args.seed)
        if rows != self._micro_batch * config.micro_batches(training=False):
            options.deviceIterations(1).replicationFactor(1).setExecutionStrategy(ShardedExecution())
        executor = inferenceModel(kind(self._trainer, self.model), options)
        with placed(self.model, config, training=False):
            executor.compile(**inputs)
        return executor

    def release(self) -> None:
        """Free the IPUs, so that training can go on; the programs are kept."""
        for executor in self._executors.values():
            if executor.isAttachedToDevice():
                executor.detachFromDevice()

    def eval(self) -> None:
        """The model itself goes to evaluation mode."""
        self.model.eval()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def _rows(value: Any, begin: int, end: int, rows: int) -> Any:
    return value[begin:end] if isinstance(value, torch.Tensor) and value.ndim and len(value) == rows else value


def _joined(outputs: list[Any]) -> Any:
    """Outputs of several programs, one after the other."""
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, dict):
        return {name: _joined([each[name] for each in outputs]) for name in first}
    if isinstance(first, (tuple, list)):
        return type(first)(_joined(list(each)) for each in zip(*outputs, strict=True))
    return torch.cat(outputs)
