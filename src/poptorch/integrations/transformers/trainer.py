"""``IPUTrainer``: the trainer of ``transformers`` with training and evaluation steps that run on IPUs."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer
from transformers.training_args import ParallelMode

from poptorch.errors import createPoptorchError
from poptorch.executor.wrapping import rewrap_model, unwrap_model
from poptorch.integrations import optimizers
from poptorch.integrations.transformers.compiled import EvaluationModel, TrainingModel, rows_of
from poptorch.integrations.transformers.config import IPUConfig
from poptorch.integrations.transformers.stepping import ITEMS
from poptorch.integrations.transformers.training_args import IPUTrainingArguments

_RANDOM_STATE = "ipu_rng_state.json"


class IPUTrainer(Trainer):
    """The trainer of ``transformers`` on IPUs: everything that is not said here is as in its own documentation.

    A step of this trainer is one call of the compiled program: with D device iterations it has D updates. ``args`` of
    the trainer speak of whole calls, so its batch sizes are those that you gave times the micro-batches of a call.

    Args:
        model: The model, with a head that returns a loss.
        args: The training arguments; ``per_device_*_batch_size`` are micro-batches.
        ipu_config: How the model uses IPUs; by default one IPU.
        **kwargs: Anything else that ``transformers.Trainer`` takes.
    """

    optimizer: Any
    _created_lr_scheduler: bool

    def __init__(
        self,
        model: nn.Module | None = None,
        args: IPUTrainingArguments | None = None,
        ipu_config: IPUConfig | None = None,
        **kwargs: Any,
    ) -> None:
        args = IPUTrainingArguments(output_dir="tmp_trainer") if args is None else args
        if not isinstance(args, IPUTrainingArguments):
            raise createPoptorchError(
                f"IPUTrainer needs IPUTrainingArguments, not {type(args).__name__}: they take the same arguments."
            )
        if args.parallel_mode == ParallelMode.DISTRIBUTED:
            raise createPoptorchError(
                "IPUTrainer runs in one process. Train several replicas with IPUConfig(replication_factor=...)."
            )
        ipu_config = IPUConfig() if ipu_config is None else copy.copy(ipu_config)
        if args.gradient_accumulation_steps > 1:
            ipu_config.gradient_accumulation_steps = args.gradient_accumulation_steps
        self.ipu_config = ipu_config
        self._micro_batches = (args.per_device_eval_batch_size, args.per_device_train_batch_size)
        args = copy.copy(args)
        args.gradient_accumulation_steps = 1  # the program accumulates; the trainer's loop makes calls
        args.per_device_train_batch_size *= ipu_config.micro_batches(training=True)
        args.per_device_eval_batch_size *= ipu_config.micro_batches(training=False)
        self._training: TrainingModel | None = None
        self._evaluation: EvaluationModel | None = None
        self._flops: float | None = None
        self._random_state: list[int] | None = None
        super().__init__(model, args, **kwargs)

    def micro_batch(self, training: bool) -> int:
        """Rows that one replica takes through the model at a time."""
        return self._micro_batches[training]

    # -- data --------------------------------------------------------------------------------------------------------

    def _get_dataloader(self, *args: Any, is_training: bool = False, **kwargs: Any) -> Any:
        """Training leaves out an incomplete last batch: a compiled program has a fixed size."""
        wanted = self.args.dataloader_drop_last
        self.args.dataloader_drop_last = wanted or is_training
        try:
            return super()._get_dataloader(*args, is_training=is_training, **kwargs)
        finally:
            self.args.dataloader_drop_last = wanted

    # -- the loss ----------------------------------------------------------------------------------------------------

    def loss_of(self, model: nn.Module, inputs: dict[str, Any], items: Any, return_outputs: bool = False) -> Any:
        """What a step computes: ``compute_loss``, of this class or of yours."""
        return self.compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=items)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """As ``Trainer.compute_loss``; for a model that is evaluated on IPUs, the result of its program."""
        if isinstance(model, EvaluationModel):
            loss, outputs = model.losses_and_outputs(inputs, counts=num_items_in_batch is not None)
            return (loss, outputs) if return_outputs else loss
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def weight_of_accumulation(self, counted: bool) -> int:
        """By what the loss of a micro-batch is multiplied, because the program averages over micro-batches.

        The trainer adds up the losses of accumulated batches where they are divided by the labels of all of them.
        """
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            scaled = (self.model_accepts_loss_kwargs and counted) or self.compute_loss_func is not None
        return self.ipu_config.gradient_accumulation_steps if scaled else 1

    def items_of(
        self, inputs: Mapping[str, Any], updates: int, accumulated: int = 1, replicas: int = 1
    ) -> torch.Tensor | None:
        """For each micro-batch of a call the number of labels by which its summed loss is divided.

        A call has ``updates`` parts with ``accumulated × replicas`` micro-batches each, whose losses are added up over
        the accumulated ones and averaged over the replicas.
        """
        rows = rows_of(inputs) // updates
        counts = []
        for update in range(updates):
            part = {
                name: value[update * rows : (update + 1) * rows]
                for name, value in inputs.items()
                if isinstance(value, torch.Tensor) and value.ndim
            }
            count = self._get_num_items_in_batch([part], self.args.device)
            if count is None:
                return None
            counts += [float(count) / replicas] * (accumulated * replicas)
        return torch.tensor(counts)

    # -- training ----------------------------------------------------------------------------------------------------

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The optimizer of the training arguments, as one of ``poptorch.optim``."""
        made = self.optimizer is None
        optimizer = super().create_optimizer(model)
        scaling = self.args.loss_scaling or 1.0
        if made and (self.args.lamb or self.args.lamb_no_bias):
            optimizer = optimizers.lamb(optimizer, scaling, bias_correction=not self.args.lamb_no_bias)
        self.optimizer = optimizers.on_device(optimizer, self.args.max_grad_norm, scaling)
        return self.optimizer

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        """Make optimizer and schedule, and wrap the model: nothing here is for other devices to prepare."""
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self._end_evaluation()
        self.create_optimizer()
        self.create_scheduler(num_training_steps=max_steps)
        if resume_from_checkpoint is not None:
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
            self._load_random_state(Path(resume_from_checkpoint))
        self._training = TrainingModel(self, self.model, self.optimizer)
        self._training.random_state = self._random_state
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        handler.train_dataloader = train_dataloader
        return self._training, train_dataloader

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Train; afterwards the model is an ordinary one again, with the trained weights."""
        try:
            return super()._inner_training_loop(*args, **kwargs)
        finally:
            if self._training is not None:
                self._training.executor.destroy()
                self._training = None
            self._end_evaluation()

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One call of the compiled program; returns the mean loss of its micro-batches."""
        inputs = self._prepare_inputs(inputs)
        self.model.train()
        if num_items_in_batch is not None:
            config = self.ipu_config
            items = self.items_of(
                inputs, config.device_iterations, config.gradient_accumulation_steps, config.replication_factor
            )
            inputs = {**inputs, ITEMS: items}
        return model(**inputs).float().mean().detach()

    def _clip_grad_norm(self, model: Any) -> None:
        """The optimizer limits the norm on the device."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        """Gradients stay on the device."""

    def floating_point_ops(self, inputs: Any) -> float:
        """Of one call; all have one size, and counting looks at all weights."""
        if self._flops is None:
            self._flops = float(super().floating_point_ops(inputs))
        return self._flops

    # -- evaluation --------------------------------------------------------------------------------------------------

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> Any:
        if training:
            return model
        if self._training is not None:
            self._training.pause()
        if self._evaluation is None or self._evaluation.model is not self.model:
            self._end_evaluation()
            self._evaluation = EvaluationModel(self, self.model)
        return self._evaluation

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """As in the trainer; afterwards the IPUs are free, and the programs wait for the next evaluation."""
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            if self._evaluation is not None:
                self._evaluation.release()

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            self._evaluation.release()
            self._evaluation = None

    # -- files -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _plain_model(self) -> Iterator[None]:
        unwrap_model(self.model)
        try:
            yield
        finally:
            rewrap_model(self.model)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        with self._plain_model():
            super()._save(output_dir, state_dict)
        self.ipu_config.save_pretrained(output_dir if output_dir is not None else self.args.output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._training is not None and self._training.executor.isCompiled():
            state = self._training.executor.rng_state
            (Path(output_dir) / _RANDOM_STATE).write_text(json.dumps(state), encoding="utf-8")

    def _load_random_state(self, checkpoint: Path) -> None:
        file = checkpoint / _RANDOM_STATE
        self._random_state = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
