"""Small models in four blocks, "0" to "3"; without annotations they are the same models on one IPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch

BLOCKS = ("0", "1", "2", "3")


class Blocked(nn.Module):
    """Opens block ``i`` on its IPU, unless it is to run in one piece."""

    def __init__(self, ipus: tuple[int, ...] | None) -> None:
        super().__init__()
        self.ipus = ipus

    def begin(self, block: int) -> None:
        if self.ipus is not None:
            poptorch.Block.start(BLOCKS[block], ipu_id=self.ipus[block])


class Perceptron(Blocked):
    def __init__(self, ipus=None) -> None:
        super().__init__(ipus)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in BLOCKS)

    def forward(self, x, target=None):
        for block, layer in enumerate(self.layers):
            self.begin(block)
            x = torch.tanh(layer(x))
        return x if target is None else (x, nn.functional.mse_loss(x, target))

    @staticmethod
    def data(rows, generator):
        return torch.randn(rows, 8, generator=generator), torch.randn(rows, 8, generator=generator)


class Convolutions(Blocked):
    """Batch normalisation (buffers that are written), dropout, a skip connection over two stages."""

    def __init__(self, ipus=None) -> None:
        super().__init__(ipus)
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.late_norm = nn.BatchNorm2d(4), nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, target=None):
        self.begin(0)
        self.calls.add_(1.0)
        x = torch.relu(self.norm(self.first(x)))
        self.begin(1)
        y = self.dropout(torch.relu(self.second(x)))
        self.begin(2)
        x = self.late_norm((x + y).mean((2, 3)))
        self.begin(3)
        x = self.head(x) * self.calls
        return x if target is None else (x, nn.functional.cross_entropy(x, target))

    @staticmethod
    def data(rows, generator):
        return torch.randn(rows, 2, 5, 5, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


class Language(Blocked):
    """A transformer whose embedding is also its last layer: one weight on the first and on the last IPU."""

    def __init__(self, ipus=None) -> None:
        super().__init__(ipus)
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, target=None):
        self.begin(0)
        x = self.embedding(tokens)
        for block, layer in enumerate(self.layers, 1):
            self.begin(block)
            x = layer(x)
        self.begin(3)
        x = self.head(x)
        return x if target is None else (x, nn.functional.cross_entropy(x.flatten(0, 1), target.flatten()))

    @staticmethod
    def data(rows, generator):
        return tuple(torch.randint(0, 11, (rows, 4), generator=generator) for _ in range(2))


class Recurrent(Blocked):
    """Two inputs that enter at different stages, and several outputs from different stages."""

    def __init__(self, ipus=None) -> None:
        super().__init__(ipus)
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.side, self.mix, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, sequence, side, target=None):
        self.begin(0)
        hidden, _ = self.rnn(sequence)
        self.begin(1)
        joined = hidden[:, -1] + self.side(side)
        self.begin(2)
        mixed = torch.sigmoid(self.mix(joined))
        self.begin(3)
        x = self.out(mixed)
        if target is None:
            return {"x": x, "joined": joined}
        return {"x": x, "joined": joined, "loss": nn.functional.l1_loss(x, target)}

    @staticmethod
    def data(rows, generator):
        return (
            torch.randn(rows, 5, 4, generator=generator),
            torch.randn(rows, 3, generator=generator),
            torch.randn(rows, 2, generator=generator),
        )


class Feedback(Blocked):
    """The first stage reads a buffer that the last one writes: no two micro-batches can overlap."""

    def __init__(self, ipus=None) -> None:
        super().__init__(ipus)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in BLOCKS)
        self.register_buffer("memory", torch.ones(8))

    def forward(self, x, target=None):
        for block, layer in enumerate(self.layers):
            self.begin(block)
            if block == 0:
                x = x + self.memory
            x = torch.tanh(layer(x))
        self.memory.copy_(0.5 * self.memory + x.detach().mean(0))
        return x if target is None else (x, nn.functional.mse_loss(x, target))

    data = staticmethod(Perceptron.data)


MODELS = (Perceptron, Convolutions, Language, Recurrent)


def with_replicas(strategies):
    """Parameters ``kind``, ``strategy`` and ``replicas``: every model with every strategy, without and with replicas.

    One of the two runs always: which one alternates, so that each model and each strategy meets both. The other one
    runs with ``make exhaustive``.
    """
    parameters = []
    for column, strategy in enumerate(strategies):
        for row, kind in enumerate(MODELS):
            for replicas in (1, 2):
                always = (row + column) % 2 == replicas % 2
                marks = [] if always else [pytest.mark.exhaustive]
                name = f"{kind.__name__}-{strategy}-{replicas}"
                parameters.append(pytest.param(kind, strategy, replicas, id=name, marks=marks))
    return pytest.mark.parametrize(("kind", "strategy", "replicas"), parameters)


def stages(ipus):
    return [poptorch.Stage(block).ipu(ipu) for block, ipu in zip(BLOCKS, ipus, strict=True)]


STRATEGIES = {
    "pipelined": ((0, 1, 2, 3), lambda: poptorch.PipelinedExecution()),
    "pipelined, two stages": ((0, 0, 1, 1), lambda: poptorch.PipelinedExecution()),
    "pipelined, back to the first IPU": (
        (0, 1, 0, 1),
        lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
    ),
    "sharded": ((0, 1, 2, 3), lambda: poptorch.ShardedExecution()),
    "sharded, back to the first IPU": ((0, 1, 0, 1), lambda: poptorch.ShardedExecution()),
    "serial phased": (
        (0, 1, 0, 1),
        lambda: poptorch.SerialPhasedExecution(
            poptorch.Phase(*stages((0, 1, 0, 1))[:2]), poptorch.Phase(*stages((0, 1, 0, 1))[2:])
        ),
    ),
    "parallel phased": ((0, 1, 0, 1), lambda: poptorch.ParallelPhasedExecution(*stages((0, 1, 0, 1)))),
}
"""Name -> IPU of each block, and a fresh strategy (strategies remember the blocks of the models they met)."""


def make_options(strategy=None, *, iterations=1, accumulation=8, replicas=1, **popart):
    options = poptorch.Options()
    options.deviceIterations(iterations).replicationFactor(replicas).randomSeed(7).broadcastBuffers(False)
    options.autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(accumulation)
    options.outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(poptorch.ShardedExecution() if strategy is None else strategy)
    for key, value in popart.items():
        options._Popart.set(key, value)
    return options


def make_model(kind, ipus=None):
    torch.manual_seed(3)
    return kind(ipus)


def train(kind, ipus, options, calls=2, rows=2, optimizer=poptorch.optim.AdamW):
    """Outputs of every call, final state, executor."""
    model = make_model(kind, ipus)
    executor = poptorch.trainingModel(model, options, optimizer(model.parameters(), lr=0.05))
    factor = options.device_iterations * options.Training.gradient_accumulation * options.replication_factor
    generator = torch.Generator().manual_seed(1)
    outputs = [executor(*kind.data(rows * factor, generator)) for _ in range(calls)]
    return outputs, {k: v.clone() for k, v in model.state_dict().items()}, executor


def calm_adamw(parameters, lr):
    """Adam divides a gradient by its own size: without this ``eps``, mere rounding errors would become whole steps."""
    return poptorch.optim.AdamW(parameters, lr=lr, eps=0.01)


def train_calmly(kind, ipus, options, calls=2, optimizer=calm_adamw):
    """Enough rows for the norms, and an optimizer that does not turn rounding errors into steps."""
    return train(kind, ipus, options, calls, rows=8, optimizer=optimizer)


def infer(kind, ipus, options, rows=2):
    model = make_model(kind, ipus).eval()
    executor = poptorch.inferenceModel(model, options)
    generator = torch.Generator().manual_seed(1)
    factor = options.device_iterations * options.replication_factor
    return executor(*kind.data(rows * factor, generator)[:-1]), executor
