"""``IPUStrategy``: the steps of a ``LightningModule`` as programs for IPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.plugins.precision import HalfPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils._pytree import tree_leaves

from poptorch.data.plan import batch_factor
from poptorch.enums import OutputMode
from poptorch.errors import createPoptorchError
from poptorch.executor.executor import PoplarExecutor
from poptorch.executor.wrapping import inferenceModel
from poptorch.integrations import optimizers
from poptorch.integrations.lightning.loading import with_rows
from poptorch.integrations.lightning.stepping import Step, overridden
from poptorch.options import Options
from poptorch.placement.strategies import ShardedExecution

_RANDOM_STATE = "poptorch_rng_state"


class IPUStrategy(SingleDeviceStrategy):
    """Compiles ``training_step``, ``validation_step``, ``test_step`` and ``predict_step``.

    ``Trainer(accelerator="ipu", devices=4)`` has four replicas, or two if a replica takes two IPUs. The batch size of a
    ``DataLoader`` is the micro-batch of a replica; the strategy makes batches for whole calls of it.

    Args:
        training_options: Options of training, such as device iterations; replicas and accumulation come from the
            trainer.
        inference_options: Options of validation, test and prediction.
        ipus_per_replica: IPUs that a model takes that is divided into blocks.
        loss_scaling: Factor of the loss, for half precision.
        **kwargs: What every strategy takes.
    """

    strategy_name = "ipu"
    optimizers: list[Any]

    def __init__(
        self,
        training_options: Options | None = None,
        inference_options: Options | None = None,
        ipus_per_replica: int = 1,
        loss_scaling: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__("cpu", **kwargs)
        self.parallel_devices: list[torch.device] = []  # the trainer puts one entry for each IPU here
        self._given = (inference_options, training_options)
        self._ipus_per_replica, self._loss_scaling = ipus_per_replica, loss_scaling
        self._options: dict[bool, Options] = {}
        self._training: PoplarExecutor | None = None
        self._training_step: Step | None = None
        self._settings: list[dict[str, Any]] = []
        self._inference: dict[Any, tuple[PoplarExecutor, Step]] = {}
        self._random_state: list[int] | None = None

    # -- what is asked of the trainer --------------------------------------------------------------------------------

    def setup(self, trainer: Any) -> None:
        """Refuse what cannot be compiled, and take over from the trainer what the program does by itself."""
        self._check(trainer)
        replicas = len(self.parallel_devices) // self._ipus_per_replica
        for training, given in enumerate(self._given):
            options = (Options() if given is None else given.clone()).outputMode(OutputMode.All)
            if not options.exists("random_seed"):  # what seed_everything() has set
                options.randomSeed(torch.initial_seed() % 2**32)
            self._options[bool(training)] = options.replicationFactor(replicas).autoRoundNumIPUs(True)
        self._options[True].Training.gradientAccumulation(trainer.accumulate_grad_batches)
        trainer.accumulate_grad_batches = 1
        super().setup(trainer)

    def _check(self, trainer: Any) -> None:
        module, ipus = self.lightning_module, len(self.parallel_devices)
        assert module is not None
        if ipus % self._ipus_per_replica:
            raise createPoptorchError(
                f"Trainer(devices={ipus}) is no multiple of ipus_per_replica={self._ipus_per_replica}"
            )
        if not module.automatic_optimization:
            raise createPoptorchError(
                f"{type(module).__name__} optimises by hand (automatic_optimization=False), and that cannot be "
                "compiled: forward, backward and update are one program. Return the loss from training_step and let "
                "configure_optimizers return one optimizer."
            )
        if type(self.precision_plugin) not in (Precision, HalfPrecision) or trainer.precision == "bf16-true":
            raise createPoptorchError(
                f"Trainer(precision={trainer.precision!r}) is not for IPUs: use '32-true', or '16-true' with "
                "IPUStrategy(loss_scaling=...)."
            )
        if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
            raise createPoptorchError(
                "gradient_clip_algorithm='value' is not supported: IPUs limit the norm of all gradients, 'norm'."
            )
        for user, base in ((module, LightningModule), *((callback, Callback) for callback in trainer.callbacks)):
            if isinstance(user, GradientAccumulationScheduler):
                raise createPoptorchError(
                    "The accumulation of a compiled program is fixed: use Trainer(accumulate_grad_batches=...) "
                    "instead of a GradientAccumulationScheduler."
                )
            if found := overridden(user, base):
                raise createPoptorchError(
                    f"{type(user).__name__} has the hook {found[0]}(), which is in the middle of a compiled training "
                    "step: it would never be called. Remove it; on_train_batch_start and on_train_batch_end are called."
                )

    def setup_optimizers(self, trainer: Any) -> None:
        """Optimizers that run on the device, for the schedulers of the user's own."""
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            count = len(self.optimizers)
            raise createPoptorchError(f"IPUs train with one optimizer: configure_optimizers gave {count}.")
        (given,) = self.optimizers
        made = optimizers.on_device(given, trainer.gradient_clip_val or 0.0, self._loss_scaling)
        self.optimizers = [made]
        for config in self.lr_scheduler_configs:
            optimizers.rebind(config.scheduler, given, made)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Batches for whole calls; training leaves out an incomplete last one, because programs have a fixed size."""
        assert self.lightning_module is not None
        training = bool(self.lightning_module.trainer.training)
        return with_rows(dataloader, batch_factor(self._options[training]), drop_last=training)

    # -- training ----------------------------------------------------------------------------------------------------

    def training_step(self, batch: Any, *batch_idx: int) -> Any:
        """One call of the compiled program: forward, backward, updates."""
        self._release(self._inference.values())
        (optimizer,) = self.optimizers
        if self._training is None:
            self._training_step = Step(self.lightning_module, "training_step")
            self._training = PoplarExecutor(
                self._training_step, self._options[True], training=True, optimizer=optimizer,
                user_model=self.lightning_module,
            )  # fmt: skip
            self._settings = optimizers.settings_of(optimizer)
        inputs = (batch, *self._indices(batch_idx, self._options[True]))
        if not self._training.isCompiled():
            self._training.compile(*inputs)
            if self._random_state is not None:
                self._training.rng_state = self._random_state
        if self._settings != (settings := optimizers.settings_of(optimizer)):
            self._training.setOptimizer(optimizer)
            self._settings = settings
        step, found = self._training_step, self._training(*inputs)
        assert step is not None
        step.log_values(found["logged"])
        loss = found["loss"].float().mean()
        return {"loss": loss, **step.as_returned(found["result"])} if "result" in found else loss

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The program did it."""
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """The program updates the weights: what is left is to run it."""
        return closure()

    @staticmethod
    def _indices(given: tuple[Any, ...], options: Options, micro_batches: int | None = None) -> list[torch.Tensor]:
        """The number of the batch, for each micro-batch."""
        count = batch_factor(options) if micro_batches is None else micro_batches
        return [torch.full((count,), index, dtype=torch.int32) for index in given[:1]]

    # -- inference ---------------------------------------------------------------------------------------------------

    def validation_step(self, *args: Any) -> Any:
        """One call of the compiled ``validation_step``."""
        return self._infer("validation_step", *args)

    def test_step(self, *args: Any) -> Any:
        """One call of the compiled ``test_step``."""
        return self._infer("test_step", *args)

    def predict_step(self, *args: Any) -> Any:
        """One call of the compiled ``predict_step``."""
        return self._infer("predict_step", *args)

    def _infer(self, method: str, batch: Any, *indices: int) -> Any:
        shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))
        key = (method, indices[1:], shapes)
        if self._training is not None and self._training.isAttachedToDevice():
            self._training.detachFromDevice()
        options = self._options[False]
        whole = not shapes or not shapes[0] or shapes[0][0] % batch_factor(options) == 0
        inputs = (batch, *self._indices(indices, options, None if whole else 1))
        if key not in self._inference:
            step = Step(self.lightning_module, method, indices[1:])
            if not whole:  # the rows that are left at the end are one micro-batch
                options = options.clone().deviceIterations(1).replicationFactor(1)
                options.setExecutionStrategy(ShardedExecution())
            self._inference[key] = (inferenceModel(step, options), step)
        executor, step = self._inference[key]
        self._release(other for name, other in self._inference.items() if name != key)
        found = executor(*inputs)
        step.log_values(found["logged"])
        return step.as_returned(found["result"]) if "result" in found else None

    @staticmethod
    def _release(programs: Any) -> None:
        for executor, _ in programs:
            if executor.isAttachedToDevice():
                executor.detachFromDevice()

    # -- checkpoints and the end -------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """With the position of the device's random numbers."""
        if self._training is not None and self._training.isCompiled():
            checkpoint = {**checkpoint, _RANDOM_STATE: self._training.rng_state}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Remember the position of the random numbers for the program that will be compiled."""
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        self._random_state = checkpoint.get(_RANDOM_STATE)
        return checkpoint

    def teardown(self) -> None:
        """Free the IPUs; the module is an ordinary one again, with the trained weights."""
        self._release(self._inference.values())
        self._inference = {}
        if self._training is not None:
            self._training.destroy()
            self._training = self._training_step = None
        super().teardown()
