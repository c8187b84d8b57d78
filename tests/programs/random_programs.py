"""Random small programs, each made from one number: layers, division over IPUs, optimizer, options and data.

    program = Program.from_seed(17)
    print(program)

:mod:`float64_reference` computes what such a program must return.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from poptorch import OutputMode

WIDTH = 4
ROWS = 2
CALLS = 2


class Scale(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Residual(nn.Module):
    """A branch, cut off or kept by dropout, beside its input."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.branch, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(probability)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.tanh(self.branch(x)))


class Convolution(nn.Module):
    """A convolution along the features."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.unsqueeze(1)).sum(1)


class Attention(nn.Module):
    """Features attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x.unsqueeze(-1)).chunk(3, -1)
        return (torch.softmax(q @ k.transpose(1, 2), -1) @ v).squeeze(-1)


class Sequence(nn.Module):
    """The features are the steps of a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(1, 1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.unsqueeze(-1))[0].squeeze(-1)


class Shared(nn.Module):
    """One weight, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(x)))


# Norms with a large ``eps``: they divide by differences of few numbers, and rounding errors must not become results.
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "bottleneck": lambda: nn.Sequential(nn.Linear(WIDTH, 2, bias=False), nn.GELU(), nn.Linear(2, WIDTH)),
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "layer norm": lambda: nn.LayerNorm(WIDTH, eps=0.1),
    "group norm": lambda: nn.GroupNorm(2, WIDTH, eps=0.5),
    "scale": Scale,
    "residual": lambda: Residual(0.0),
    "cut off": lambda: Residual(1.0),
    "convolution": Convolution,
    "attention": Attention,
    "sequence": Sequence,
    "shared": Shared,
}

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[..., torch.optim.Optimizer]]] = {
    "SGD": (lambda p: poptorch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (
        lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    ),
    "combined": (
        lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.5, use_combined_accum=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5),
    ),
    "Adam": (lambda p: poptorch.optim.Adam(p, lr=0.02, eps=0.01), lambda p: torch.optim.Adam(p, lr=0.02, eps=0.01)),
    "AdamW": (lambda p: poptorch.optim.AdamW(p, lr=0.02, eps=0.01), lambda p: torch.optim.AdamW(p, lr=0.02, eps=0.01)),
    "RMSprop": (
        lambda p: poptorch.optim.RMSprop(p, lr=0.02, eps=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.02, eps=0.1),
    ),
    "torch": (
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    ),
}
"""Each as the program uses it, and as the reference does. Large ``eps``: rounding errors must not become steps."""


@dataclass(frozen=True)
class Program:
    """One program, as data."""

    seed: int
    layers: tuple[str, ...]
    training: bool
    strategy: str
    ipus: tuple[int, ...]
    iterations: int
    accumulation: int
    replicas: int
    mean: bool
    optimizer: str
    mode: OutputMode
    half: bool
    scaling: bool
    sharded: bool
    noise: bool
    """Whether a last dropout draws masks. The model returns them, so that the reference can use the same."""

    anchor: bool
    """Whether the gradient of the last weight is asked for."""

    period: int = 1
    """Of ``OutputMode.EveryN``."""

    grouped: bool = False
    """Whether each replica has a shift of its own."""

    @staticmethod
    def from_seed(seed: int) -> Program:
        """The program with this number."""
        draw = random.Random(seed)
        training = draw.random() < 0.7
        strategy = draw.choice(["one IPU", "one IPU", "pipelined", "sharded", "phased"])
        count = draw.randint(2, 4)
        # Recurrent layers are the slowest to compile by far.
        weights = [1 if name == "sequence" else 6 for name in LAYERS]
        layers = tuple(draw.choices(list(LAYERS), weights, k=count))
        stages = 1 if strategy == "one IPU" else 2
        cut = draw.randint(1, count - 1)
        ipus = tuple(0 if stages == 1 or position < cut else 1 for position in range(count))
        accumulation = draw.choice([1, 2, 3, 4]) if training else 1
        iterations = draw.choice([1, 2, 4])
        if strategy == "pipelined":
            accumulation, iterations = (draw.choice([3, 4, 6]), 1) if training else (1, draw.choice([2, 4]))
        replicas = draw.choice([1, 1, 1, 2])
        half = draw.random() < 0.25
        noise = draw.random() < 0.15
        modes = [OutputMode.All] if noise else [OutputMode.All, OutputMode.Final, OutputMode.Sum, OutputMode.EveryN]
        mode = draw.choice(modes)
        grouped = replicas > 1 and draw.random() < 0.5
        scaling = half and training and draw.random() < 0.5
        return Program(
            seed=seed,
            layers=layers,
            training=training,
            strategy=strategy,
            ipus=ipus,
            iterations=iterations,
            accumulation=accumulation,
            replicas=replicas,
            mean=draw.random() < 0.8,
            optimizer=draw.choice(list(OPTIMIZERS)),
            mode=mode,
            half=half,
            scaling=scaling,
            sharded=training and replicas > 1 and draw.random() < 0.5,
            noise=noise,
            anchor=training and replicas == 1 and not scaling and draw.random() < 0.2,  # a scaled gradient is returned
            period=draw.choice([p for p in (1, 2, 4) if iterations % p == 0]) if mode is OutputMode.EveryN else 1,
            grouped=grouped,
        )

    @property
    def micro_batches(self) -> int:
        """In one call."""
        return self.iterations * self.accumulation * self.replicas

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16 if self.half else torch.float32

    def model(self) -> Model:
        """The model, with weights of its own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            # float16 weights first, so that the reference starts from the same numbers
            return Model(self).to(self.dtype).train(self.training)

    def data(self, call: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of one call."""
        generator = torch.Generator().manual_seed(self.seed * CALLS + call)
        rows = self.micro_batches * ROWS
        x, target = (torch.randn(rows, WIDTH, generator=generator).to(self.dtype) for _ in range(2))
        return x, target

    def options(self) -> poptorch.Options:
        """What the program asks of poptorch."""
        options = poptorch.Options().deviceIterations(self.iterations).replicationFactor(self.replicas)
        options.outputMode(self.mode, self.period if self.mode is OutputMode.EveryN else None).randomSeed(self.seed)
        training = options.Training.gradientAccumulation(self.accumulation)
        kind = poptorch.ReductionType.Mean if self.mean else poptorch.ReductionType.Sum
        training.accumulationAndReplicationReductionType(kind)
        training.setAutomaticLossScaling(self.scaling)
        if self.sharded:
            location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
            options.TensorLocations.setOptimizerLocation(location.minElementsForReplicatedTensorSharding(0))
        if self.anchor:
            options.anchorTensor("gradient", "Gradient___head.weight", OutputMode.All)
        blocks = [poptorch.Stage(f"part {ipu}").ipu(ipu) for ipu in (0, 1)]
        if self.strategy == "phased":
            options.setExecutionStrategy(poptorch.SerialPhasedExecution(*(poptorch.Phase(block) for block in blocks)))
        elif self.strategy == "pipelined":
            options.setExecutionStrategy(poptorch.PipelinedExecution(*blocks))
        else:
            options.setExecutionStrategy(poptorch.ShardedExecution())
        return options


class Model(nn.Module):
    """Layers in blocks, and a loss; returns also the mask of its last dropout."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        if program.grouped:
            self.shift = nn.Parameter(torch.randn(program.replicas, WIDTH))
        self.layers = nn.ModuleList(LAYERS[name]() for name in program.layers)
        self.head = nn.Linear(WIDTH, WIDTH)
        self.noise = nn.Dropout(0.5 if program.noise else 0.0)
        self.ipus, self.grouped = program.ipus, program.grouped

    def forward(
        self, x: torch.Tensor, target: torch.Tensor, given: torch.Tensor | None = None, replica: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The reference says which mask to use, and for which replica it computes."""
        for layer, ipu in zip(self.layers, self.ipus, strict=True):
            with poptorch.Block(f"part {ipu}", ipu_id=ipu):
                x = layer(x)
        last = self.ipus[-1]
        with poptorch.Block(f"part {last}", ipu_id=last):
            mask = self.noise(torch.ones_like(x)) if given is None else given
            y = self.head(x) * mask
            if self.grouped:
                y = y + (self.shift if replica is None else self.shift[replica])
            return y, F.mse_loss(y, target), mask
