"""ResNet-50 as it is trained on single IPUs: 8-bit images, and all but the sums of blocks computed again."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from poptorch.ops import identity_loss, recomputationCheckpoint


class Bottleneck(nn.Module):
    """Three convolutions; the one in the middle has the stride (version 1.5)."""

    def __init__(self, inputs: int, width: int, stride: int, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.first = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.third = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the sum for the backward pass; in the last group of blocks, everything."""
        y = self.norm1(self._kept(self.first(x))).relu()
        y = self.norm2(self._kept(self.second(y))).relu()
        y = self.norm3(self._kept(self.third(y)))
        return recomputationCheckpoint((y + self.short(x)).relu())

    def _kept(self, x: torch.Tensor) -> torch.Tensor:
        return recomputationCheckpoint(x) if self.keeps else x


class ResNet50(nn.Module):
    """Version 1.5, from 8-bit images to the loss."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))
        self.register_buffer("scale", torch.ones(1, 3, 1, 1))
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        inputs = 64
        for group, (count, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
            for block in range(count):
                stride = 2 if group and not block else 1
                blocks.append(Bottleneck(inputs, width, stride, keeps=group == 3))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = (images.to(self.head.weight.dtype) - self.get_buffer("mean")) * self.get_buffer("scale")
        x = functional.max_pool2d(self.norm(self.stem(x)).relu(), 3, 2, 1)
        x = self.blocks(recomputationCheckpoint(x)).mean((2, 3))
        return identity_loss(functional.cross_entropy(self.head(x), labels), "none")


__all__ = ["Bottleneck", "ResNet50"]
