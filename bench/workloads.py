"""The models of the benchmark: small versions of what people train, each with its inputs and its loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # the name everybody uses


@dataclass(frozen=True)
class Workload:
    """A model with example inputs. ``forward(*inputs, target)`` returns the loss, ``forward(*inputs)`` the output."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    target: Callable[[], torch.Tensor]


class Trained(nn.Module):
    """A network and its loss; without a target only the network."""

    def __init__(self, net: nn.Module, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], inputs: int) -> None:
        super().__init__()
        self.net = net
        self.loss = loss
        self.num_inputs = inputs

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        output = self.net(*tensors[: self.num_inputs])
        if len(tensors) == self.num_inputs:
            return output
        return self.loss(output, tensors[-1])


def classify(net: nn.Module, inputs: int = 1) -> nn.Module:
    return Trained(net, F.cross_entropy, inputs)


def mlp(sizes: list[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18(width: int = 16) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [BasicBlock(inputs, outputs, 1 if stage == 0 else 2), BasicBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class SelfAttention(nn.Module):
    """Multi-head attention through torch's scaled dot product."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, hidden))


class TransformerLayer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = SelfAttention(hidden, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Token and position embeddings, layers, and a head over tokens (causal) or over classes."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, length: int, causal: bool, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Parameter(torch.zeros(length, hidden))
        self.layers = nn.Sequential(*[TransformerLayer(hidden, 4, causal) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, classes)
        self.causal = causal

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.layers(self.tokens(ids) + self.positions))
        return self.head(x).transpose(1, 2) if self.causal else self.head(x[:, 0])


class LstmClassifier(nn.Module):
    """An LSTM over features, classified from its last state."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Recommender(nn.Module):
    """Many embedding tables and a small MLP over their concatenation."""

    def __init__(self, tables: int = 8, rows: int = 20000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.mlp = mlp([tables * width, 128, 64, 2])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mlp(torch.cat([t(ids[:, i]) for i, t in enumerate(self.tables)], dim=1))


class UNet(nn.Module):
    """Two levels down, two up, skip connections; a class for each pixel."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def double(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
            )  # fmt: skip

        self.down1, self.down2, self.middle = double(3, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2, self.join1 = double(4 * width, 2 * width), double(2 * width, width)
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.join2(torch.cat([self.up2(c), b], 1))
        return self.head(self.join1(torch.cat([self.up1(b), a], 1)))


def _images(batch: int, size: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(batch, 3, size, size),)


def _classes(batch: int, count: int = 10) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, count, (batch,))


WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp-tiny", lambda: classify(mlp([32, 64, 64, 10])), lambda: (torch.randn(16, 32),), _classes(16)),
        Workload(
            "mlp-large", lambda: classify(mlp([784, 1024, 1024, 10])), lambda: (torch.randn(128, 784),), _classes(128)
        ),
        Workload("resnet18-32", lambda: classify(resnet18()), _images(16, 32), _classes(16)),
        Workload("resnet18-64", lambda: classify(resnet18()), _images(8, 64), _classes(8)),
        Workload(
            "bert-small",
            lambda: classify(Transformer(8000, 256, 4, 128, False, 10)),
            lambda: (torch.randint(0, 8000, (4, 128)),),
            _classes(4),
        ),
        Workload(
            "gpt-mini",
            lambda: classify(Transformer(2000, 256, 4, 128, True, 2000)),
            lambda: (torch.randint(0, 2000, (4, 128)),),
            lambda: torch.randint(0, 2000, (4, 128)),
        ),
        Workload("lstm", lambda: classify(LstmClassifier(64, 128)), lambda: (torch.randn(16, 32, 64),), _classes(16)),
        Workload(
            "recommender",
            lambda: classify(Recommender()),
            lambda: (torch.randint(0, 20000, (256, 8)),),
            _classes(256, 2),
        ),
        Workload("unet", lambda: classify(UNet()), _images(4, 64), lambda: torch.randint(0, 4, (4, 64, 64))),
    )
}
