"""Published throughputs of training, with the models and options that they were measured with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from poptorch.enums import AutoStage
from poptorch.ipu_model.estimation import estimate
from poptorch.ipu_model.result import Estimate
from poptorch.ipu_model.validation.residual import ResNet50
from poptorch.ipu_model.validation.transformers import (
    BASE,
    BASE_POPART,
    LARGE,
    LARGE_POPART,
    VISION,
    AnsweringBert,
    PretrainingBert,
    Size,
    VisionTransformer,
)
from poptorch.optim import LAMB, SGD, Adam
from poptorch.options import Options, PipelinedExecution, TensorLocationSettings

_PIPELINE, _EVERYTHING = 3, 4  # values of the option autoRecomputation
_IPUS_OF_A_PROCESS = 64


@dataclass(frozen=True)
class Training:
    """What options say about a training run."""

    micro_batch: int
    accumulation: int
    replicas: int
    proportions: tuple[float, ...]
    """Of the memory of each IPU of a replica."""

    recomputation: int = _PIPELINE
    state_off_chip: bool = False
    sharded_state: bool = False

    @property
    def batch(self) -> int:
        """Samples of one call of all processes."""
        return self.micro_batch * self.accumulation * self.replicas

    @property
    def processes(self) -> int:
        """How many run such a model: each has at most 64 IPUs."""
        return max(1, self.replicas * len(self.proportions) // _IPUS_OF_A_PROCESS)

    def options(self) -> Options:
        """The same as options."""
        options = Options()
        options.setExecutionStrategy(PipelinedExecution(AutoStage.AutoIncrement))
        options.replicationFactor(self.replicas // self.processes)
        if self.processes > 1:
            options.Distributed.configureProcessId(0, self.processes)
        options.broadcastBuffers(False)
        options.Training.gradientAccumulation(self.accumulation)
        options.Precision.setPartialsType(torch.float16)
        options.setAvailableMemoryProportion({f"IPU{i}": share for i, share in enumerate(self.proportions)})
        options._Popart.set("autoRecomputation", self.recomputation)
        where = TensorLocationSettings().useOnChipStorage(not self.state_off_chip)
        options.TensorLocations.setOptimizerLocation(where.useReplicatedTensorSharding(self.sharded_state))
        return options


@dataclass(frozen=True)
class Application:
    """One published throughput."""

    row: str
    name: str
    certainty: str
    published: float
    """Items per second."""

    arch: str
    training: Training
    model: Callable[[], nn.Module] = field(repr=False)
    inputs: Callable[[int], Sequence[torch.Tensor]] = field(repr=False)
    """Of a batch with so many samples."""

    optimizer: Callable[[Any], torch.optim.Optimizer] = field(repr=False)
    items: float = 1.0
    """That are counted for each sample: a packed sample holds several sequences."""

    @property
    def configuration(self) -> object:
        """What decides about the estimate: two published numbers may have the same."""
        return self.model, self.training, self.arch

    def estimate(self) -> Estimate:
        """What the IPU Model says, without any memory for weights."""
        with torch.device("meta"):
            model = self.model().half()
            inputs = self.inputs(self.training.batch // self.training.processes)
        model.train()
        optimizer = self.optimizer(model.parameters())
        return estimate(model, self.training.options(), *inputs, optimizer=optimizer, arch=self.arch)

    def predicted(self, found: Estimate) -> float:
        """Items per second."""
        return found.throughput * self.items


def _indices(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32)


def _pretraining_inputs(length: int, masked: int, sequences: int) -> Callable[[int], Sequence[torch.Tensor]]:
    def inputs(batch: int) -> Sequence[torch.Tensor]:
        tokens = [_indices(batch, length) for _ in range(4)]
        long = torch.empty(batch, masked, dtype=torch.int64)
        firsts = torch.empty(batch, sequences, dtype=torch.int64)
        return [*tokens, long, long.clone(), firsts, firsts.clone()]

    return inputs


def _answering_inputs(batch: int) -> Sequence[torch.Tensor]:
    labels = [torch.empty(batch, dtype=torch.int64) for _ in range(2)]
    return [*(_indices(batch, 384) for _ in range(4)), *labels]


def _image_inputs(batch: int) -> Sequence[torch.Tensor]:
    return [torch.empty(batch, 3, 224, 224, dtype=torch.float16), torch.empty(batch, dtype=torch.int64)]


def _byte_image_inputs(batch: int) -> Sequence[torch.Tensor]:
    return [torch.empty(batch, 3, 224, 224, dtype=torch.uint8), torch.empty(batch, dtype=torch.int64)]


def _lamb(parameters: Any) -> torch.optim.Optimizer:
    return LAMB(parameters, lr=0.006, bias_correction=False, accum_type=torch.float16)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    half = torch.float16
    return Adam(parameters, lr=1e-4, accum_type=half, first_order_momentum_accum_type=half,
                second_order_momentum_accum_type=torch.float32)  # fmt: skip


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-5, use_combined_accum=True)


def _pretraining(
    row: str,
    name: str,
    published: float,
    size: Size,
    layers: Sequence[float],
    training: Training,
    length: int = 128,
    masked: int = 20,
    packing: float = 1.0,
    arch: str = "bow",
    certainty: str = "B",
    head_steps: int = 5,
    counted: float | None = None,
) -> Application:
    packed = packing > 1
    return Application(
        row, name, certainty, published, arch, training,
        lambda: PretrainingBert(size, layers, head_steps, packed),
        _pretraining_inputs(length, masked, 3 if packed else 1),
        _lamb,
        packing if counted is None else counted,
    )  # fmt: skip


def _residual(
    row: str, name: str, published: float, training: Training, arch: str = "bow", cert: str = "B"
) -> Application:
    return Application(row, name, cert, published, arch, training, ResNet50, _byte_image_inputs, _sgd)


_OFF_CHIP = {"state_off_chip": True, "sharded_state": True}
_LARGE_SHARES = (0.15, 0.25, 0.25, 0.25)

APPLICATIONS: tuple[Application, ...] = (
    _residual(
        "1", "ResNet-50, MLPerf 1.1, 16 Mk2", 29_650, Training(20, 10, 16, (0.15,), _EVERYTHING), "mk2", "A"
    ),
    _residual("3", "ResNet-50, MLPerf 2.0, 16 Bow", 43_280, Training(22, 10, 16, (0.15,), _EVERYTHING), cert="A"),
    _residual("4", "ResNet-50, MLPerf 2.0, 64 Bow", 149_800, Training(20, 4, 64, (0.15,), _EVERYTHING), cert="A"),
    _pretraining(
        "5", "BERT-Large SL512 packed, MLPerf 1.1, 16 Mk2", 1_526, LARGE_POPART, (4.5, 6.5, 6.5, 6.5),
        Training(2, 192, 4, (0.23,) * 4, **_OFF_CHIP), 512, 79, 2.0, "mk2", "A",
    ),
    _pretraining(
        "9", "BERT-Large SL128 packed, PopART, 16 Bow", 6_044, LARGE_POPART, (3, 7, 7, 7),
        Training(8, 1712, 4, _LARGE_SHARES, **_OFF_CHIP), masked=23, packing=1.17,
    ),
    _pretraining(
        "11", "BERT-Base SL128, PopART, 16 Bow", 16_391, BASE_POPART, (0, 4, 4, 4),
        Training(32, 512, 4, (0.28,) * 4, **_OFF_CHIP),
    ),
    Application(
        "13", "BERT-Large SQuAD SL384, PopART, 16 Bow", "B", 1_183, "bow",
        Training(4, 32, 2, (0.1, 0.3, 0.32, 0.34, 0.36, 0.38, 0.4, 0.32), sharded_state=True),
        lambda: AnsweringBert(LARGE, (2, 3, 3, 3, 3, 3, 3, 4)), _answering_inputs, _adam,
    ),
    _pretraining(
        "14", "BERT-Large SL128 packed, PyTorch, 16 Bow", 5_600, LARGE, (3, 7, 7, 7),
        Training(8, 1752, 4, _LARGE_SHARES, **_OFF_CHIP), masked=23, packing=1.17, head_steps=2,
    ),
    _pretraining(
        "16", "BERT-Base SL128, PyTorch, 16 Bow", 15_911, BASE, (0, 4, 4, 4),
        Training(32, 512, 4, (0.25,) * 4, **_OFF_CHIP), head_steps=2,
    ),
    _residual("22", "ResNet-50, PyTorch, 16 Bow", 37_061, Training(18, 57, 16, (0.16,), _EVERYTHING)),
    _residual("23a", "ResNet-50, TF1, 16 Bow", 44_059, Training(22, 10, 16, (0.15,), _EVERYTHING)),
    _residual("23b", "ResNet-50, TF1, 64 Bow", 153_205, Training(20, 4, 64, (0.15,), _EVERYTHING)),
    _residual("23c", "ResNet-50, TF1, 256 Bow", 456_906, Training(20, 2, 256, (0.15,), _EVERYTHING)),
    Application(
        "28", "ViT-B/16, PyTorch, 16 Bow", "B", 7_615, "bow",
        Training(8, 2048, 4, (0.3,) * 4, sharded_state=True),
        lambda: VisionTransformer(VISION, (3, 3, 3, 3)), _image_inputs, _lamb,
    ),
)  # fmt: skip
"""All rows with a full configuration."""

__all__ = ["APPLICATIONS", "Application", "Training"]
