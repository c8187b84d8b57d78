"""Helpers: sizes of aggregations, and training on the CPU beside poptorch."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import MessagePassing

from poptorch.executor.wrapping import inferenceModel, trainingModel
from poptorch.optim import Adam
from poptorch.options import Options
from poptorch_geometric.common import DataBatch, HeteroDataBatch
from poptorch_geometric.levels import Level, kinds_of

__all__ = ["AttributeTypeCache", "DataBatch", "HeteroDataBatch", "TrainingStepper", "set_aggregation_dim_size"]


class AttributeTypeCache:
    """Remembers which attributes of graphs have a row for each node or edge, as loaders of release 3.2 did.

    What the first graph says of a name counts for all that follow. ``store_key`` is a type of a graph with types.

    >>> from torch_geometric.data import Data
    >>> graph = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    >>> cache = AttributeTypeCache()
    >>> cache.is_node_attr(graph, "x"), cache.is_edge_attr(graph, "x")
    (True, False)
    """

    def __init__(self) -> None:
        self._levels: dict[tuple[Any, str], Level] = {}

    def is_node_attr(self, graph: Any, name: str, store_key: Any = None) -> bool:
        """Whether there is a row for each node."""
        return self._level(graph, name, store_key) is Level.NODE

    def is_edge_attr(self, graph: Any, name: str, store_key: Any = None) -> bool:
        """Whether there is a row, or for ``edge_index`` a column, for each edge."""
        return self._level(graph, name, store_key) is Level.EDGE

    def _level(self, graph: Any, name: str, store_key: Any) -> Level:
        if (store_key, name) not in self._levels:
            self._levels[store_key, name] = kinds_of([graph], {})[store_key].levels[name]
        return self._levels[store_key, name]


def set_aggregation_dim_size(model: nn.Module, dim_size: int) -> None:
    """Fix how many rows the aggregations of all message passing in ``model`` return; at least the number of nodes."""

    def fix(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs[-1]["dim_size"] = dim_size
        return inputs

    for module in model.modules():
        if isinstance(module, MessagePassing):
            module.register_aggregate_forward_pre_hook(fix)


class TrainingStepper:
    """Trains copies of a model on the CPU and through poptorch, and compares."""

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.001,
        optimizer: Any = Adam,
        options: Options | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        enable_fp_exception: bool = True,
        equal_nan: bool = False,
    ) -> None:
        model.train()
        self.lr = lr
        self.rtol = rtol
        self.atol = atol
        self.enable_fp_exception = enable_fp_exception
        self.equal_nan = equal_nan
        self.options = Options() if options is None else options
        if enable_fp_exception:
            self.options.Precision.enableFloatingPointExceptions(True)
        self.cpu_model, self.ipu_model = copy.deepcopy(model), copy.deepcopy(model)
        has_parameters = any(True for _ in model.parameters())
        self.optimizer = optimizer(self.cpu_model.parameters(), lr=lr) if has_parameters else None
        self.training_model = None
        if has_parameters:
            device_optimizer = optimizer(self.ipu_model.parameters(), lr=lr)
            self.training_model = trainingModel(self.ipu_model, self.options, device_optimizer)
        self.inference_model = inferenceModel(self.ipu_model, self.options)
        self.check_parameters()

    def cpu_step(self, batch: Sequence[Any]) -> tuple[Any, torch.Tensor]:
        """One step on the CPU: output and loss."""
        assert self.optimizer is not None, "Training model was not created: the model has no parameters."
        self.optimizer.zero_grad()
        out, loss = self.cpu_model(*batch)
        loss.backward()
        self.optimizer.step()
        return out, loss

    def ipu_step(self, batch: Sequence[Any], copy_weights: bool = True) -> tuple[Any, torch.Tensor]:
        """One step through poptorch: output and loss."""
        assert self.training_model is not None, "Training model was not created: the model has no parameters."
        out, loss = self.training_model(*batch)
        if copy_weights:
            self.training_model.copyWeightsToHost()
        return out, loss

    def run(self, steps: int, *batches: Sequence[Any]) -> None:
        """Train both for some steps on the same batch, or on one each, and compare outputs, parameters and losses."""
        if len(batches) not in (1, 2):
            raise TypeError(f"run() takes the number of steps and one or two batches, not {len(batches)}.")
        assert self.training_model is not None, "Training model was not created: the model has no parameters."
        losses: list[list[torch.Tensor]] = [[], []]
        for _ in range(steps):
            cpu_out, cpu_loss = self.cpu_step(batches[0])
            ipu_out, ipu_loss = self.ipu_step(batches[-1])
            if len(batches) == 2:
                rows = min(len(cpu_out), len(ipu_out))
                cpu_out, ipu_out = cpu_out[:rows], ipu_out[:rows]
            self.assert_close(ipu_out, cpu_out, "Output")
            self.check_parameters()
            losses[0].append(cpu_loss.detach())
            losses[1].append(ipu_loss.detach().reshape(cpu_loss.shape))
        self.assert_close(torch.stack(losses[1]), torch.stack(losses[0]), "loss")

    def run_inference(self, batch: Sequence[Any]) -> None:
        """Compare outputs without training."""
        self.cpu_model.eval()
        with torch.no_grad():
            expected = self.cpu_model(*batch)
        self.cpu_model.train()
        out = self.inference_model(*batch)
        self.assert_close(_first(out), _first(expected), "inference")

    def check_parameters(self) -> None:
        """Compare all parameters by name."""
        others = dict(self.ipu_model.named_parameters())
        for name, parameter in self.cpu_model.named_parameters():
            self.assert_close(others[name], parameter, name)

    def assert_close(self, actual: Any, expected: Any, id: str) -> None:
        """Compare with the tolerances of this stepper."""
        torch.testing.assert_close(
            actual,
            expected,
            rtol=self.rtol,
            atol=self.atol,
            equal_nan=self.equal_nan,
            check_dtype=False,
            msg=lambda text: f"{id} was not equal:\n\n{text}\n",
        )

    def benchmark(self, steps: int, batch: Sequence[Any], devices: Sequence[str] | str = ("ipu",)) -> dict[str, float]:
        """Seconds for some steps after a first one, by device."""
        runs = {"cpu": lambda: self.cpu_step(batch), "ipu": lambda: self.ipu_step(batch, copy_weights=False)}
        result = {}
        for device in (devices,) if isinstance(devices, str) else devices:
            if device not in runs:
                raise NotImplementedError(f"Benchmarks on {device!r} are not possible: devices are 'cpu' and 'ipu'.")
            runs[device]()
            started = time.perf_counter()
            for _ in range(steps):
                runs[device]()
            result[f"{device}_time"] = time.perf_counter() - started
        return result


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) else value
