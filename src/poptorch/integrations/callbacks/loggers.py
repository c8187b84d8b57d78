"""Loss, learning rate and time of each step, in the loggers that people use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from poptorch.executor.callbacks import Callback, Event
from poptorch.integrations.requirements import require

Values = Callable[[Event], Mapping[str, float]]


def values_of(event: Event) -> dict[str, float]:
    """What is logged unless you say otherwise: ``loss``, ``learning_rate`` and ``seconds``.

    The loss is the entry ``loss`` of the result or, where it has none, its last floating-point tensor, as models return
    it; of several micro-batches it is their mean. Inference has seconds only.
    """
    found = {"seconds": event.seconds}
    if event.optimizer is None:
        return found
    if (loss := _loss_of(event.result)) is not None:
        found["loss"] = float(loss.float().mean())
    found["learning_rate"] = float(event.optimizer.param_groups[0]["lr"])
    return found


def _loss_of(result: Any) -> torch.Tensor | None:
    if isinstance(result, Mapping) and "loss" in result:
        loss: torch.Tensor = result["loss"]
        return loss
    floating = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return floating[-1] if floating else None


class _Logger(Callback):
    """Writes the values of every n-th step."""

    def __init__(self, values: Values = values_of, every: int = 1, prefix: str = "") -> None:
        self._values, self._every, self._prefix = values, every, prefix

    def on_compile(self, event: Event) -> None:
        """Write how long the compilation took."""
        self._write({f"{self._prefix}compile_seconds": event.seconds}, event.step)

    def on_step(self, event: Event) -> None:
        """Write the values of a step."""
        if event.step % self._every == 0:
            self._write({f"{self._prefix}{name}": value for name, value in self._values(event).items()}, event.step)

    def on_end(self, event: Event) -> None:
        """Close the log."""
        self.close()

    def _write(self, values: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Write everything that waits, and close the log."""
        raise NotImplementedError


class TensorBoard(_Logger):
    """Scalars of TensorBoard.

    Args:
        log_dir: The folder of the log.
        values: What to write for a step, as :func:`values_of`.
        every: Write each n-th step.
        prefix: Stands before each name.
    """

    def __init__(self, log_dir: str | Path, values: Values = values_of, every: int = 1, prefix: str = "") -> None:
        require("callbacks", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(values, every, prefix)
        self._log: Any = SummaryWriter(str(log_dir))

    def _write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._log.add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything that waits, and close the log."""
        self._log.close()


class WandB(_Logger):
    """A run of Weights & Biases.

    Args:
        values: What to write for a step, as :func:`values_of`.
        every: Write each n-th step.
        prefix: Stands before each name.
        run: A run of yours, which stays open; by default one is made and ended.
        **settings: What ``wandb.init`` takes, such as ``project="..."`` and ``mode="offline"``.
    """

    def __init__(
        self, values: Values = values_of, every: int = 1, prefix: str = "", run: Any = None, **settings: Any
    ) -> None:
        require("callbacks", "wandb")
        import wandb

        super().__init__(values, every, prefix)
        self._owns = run is None
        self.run: Any = wandb.init(**settings) if run is None else run
        """The run, for what else you want to do with it."""

    def _write(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run, if it was made here."""
        if self._owns:
            self.run.finish()


class MLflow(_Logger):
    """A run of MLflow.

    Args:
        values: What to write for a step, as :func:`values_of`.
        every: Write each n-th step.
        prefix: Stands before each name.
        tracking_uri: Where runs are kept: a server, or a folder as ``file:...``; by default as MLflow is set up.
        experiment: The name of the experiment.
        run_id: A run of yours, which stays open; by default one is made and ended.
    """

    def __init__(
        self,
        values: Values = values_of,
        every: int = 1,
        prefix: str = "",
        tracking_uri: str | None = None,
        experiment: str = "poptorch",
        run_id: str | None = None,
    ) -> None:
        require("callbacks", "mlflow")
        from mlflow.tracking import MlflowClient

        super().__init__(values, every, prefix)
        self._client: Any = MlflowClient(tracking_uri)
        self._owns = run_id is None
        self.run_id = self._new_run(experiment) if run_id is None else run_id
        """The run, for what else you want to do with it."""

    def _new_run(self, experiment: str) -> str:
        known = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if known is None else known.experiment_id
        run_id: str = self._client.create_run(number).info.run_id
        return run_id

    def _write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self.run_id, name, value, step=step)

    def close(self) -> None:
        """End the run, if it was made here."""
        if self._owns:
            self._client.set_terminated(self.run_id)
