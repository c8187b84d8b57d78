"""Networks for images and plain features."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from zoo_architecture import Architecture, Tensors

CLASSES = 5


def images(channels: int, size: int):
    """Random images with a class each."""

    def data(rows: int) -> tuple[Tensors, Tensors]:
        return (torch.randn(rows, channels, size, size),), (torch.randint(CLASSES, (rows,)),)

    return data


def classification(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target.long())


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 5))


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 5, padding=2)
        self.second = nn.Conv2d(6, 8, 5)
        self.head = nn.Sequential(nn.Linear(8 * 4, 20), nn.ReLU(), nn.Linear(20, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.sigmoid(self.first(x)), 2)  # (B, 6, 8, 8)
        x = F.avg_pool2d(torch.relu(self.second(x)), 2)  # (B, 8, 2, 2)
        return self.head(x.flatten(1))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(channels, out, 1, stride) if stride > 1 or channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.first(x)), inplace=True)
        y = self.norm2(self.second(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        ResidualBlock(6, 6, 1),
        ResidualBlock(6, 8, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


class DenseBlock(nn.Module):
    def __init__(self, channels: int = 4, growth: int = 3, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + i * growth),
                nn.ReLU(inplace=True),
                nn.Conv2d(channels + i * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )
        self.head = nn.Linear(channels + layers * growth, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, dim=1)))
        return self.head(torch.cat(features, dim=1).mean(dim=(2, 3)))


class MobileBlock(nn.Module):
    """Inverted residual with depthwise convolution and squeeze-and-excitation."""

    def __init__(self, channels: int = 4, expansion: int = 2) -> None:
        super().__init__()
        wide = channels * expansion
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6()
        )
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 2, 1), nn.ReLU(), nn.Conv2d(2, wide, 1), nn.Hardsigmoid()
        )
        self.project = nn.Conv2d(wide, channels, 1)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.expand(x))
        y = x + self.project(y * self.excite(y))
        return self.head(y.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down1 = self._double(1, width)
        self.down2 = self._double(width, 2 * width)
        self.bottom = self._double(2 * width, 2 * width)
        self.up2 = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
        self.join2 = self._double(4 * width, width)
        self.join1 = self._double(2 * width, width)
        self.mask = nn.Conv2d(width, 1, 1)

    @staticmethod
    def _double(channels: int, out: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, out, 3, padding=1), nn.InstanceNorm2d(out, affine=True), nn.LeakyReLU(0.1),
            nn.Conv2d(out, out, 3, padding=1), nn.LeakyReLU(0.1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)  # (B, w, 16, 16)
        two = self.down2(F.max_pool2d(one, 2))  # (B, 2w, 8, 8)
        low = self.bottom(F.max_pool2d(two, 2))  # (B, 2w, 4, 4)
        y = self.join2(torch.cat([self.up2(low), two], 1))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return self.mask(self.join1(torch.cat([y, one], 1)))


class ConvNeXtBlock(nn.Module):
    """Channels last in the middle, with a learned scale per channel."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x)
        y = self.depthwise(x).permute(0, 2, 3, 1)  # (B, H, W, C)
        y = self.scale * self.narrow(F.gelu(self.wide(self.norm(y))))
        return self.head((x + y.permute(0, 3, 1, 2)).mean((-1, -2)))


class MixerBlock(nn.Module):
    """Mixes patches, then channels."""

    def __init__(self, patches: int = 16, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Unfold(4, stride=4)
        self.project = nn.Linear(16, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 12), nn.GELU("tanh"), nn.Linear(12, patches))
        self.channels = nn.Sequential(nn.Linear(width, 12), nn.SiLU(), nn.Linear(12, width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(self.embed(x).mT)  # (B, patches, width)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        return self.head(x.amax(1))


class SpatialTransformer(nn.Module):
    """Learns how to shear and shift the image before it looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
        self.look = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ELU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES))
        self.register_buffer("identity", torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        theta = self.identity + 0.1 * torch.tanh(self.where(x))
        grid = F.affine_grid(theta.view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.look(F.grid_sample(x, grid, align_corners=False))


def _features(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 12),), (torch.randint(5, (rows,)),)


def _masks(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 1, 16, 16),), (torch.rand(rows, 1, 16, 16).round(),)


ARCHITECTURES = [
    Architecture("mlp", mlp, _features, classification, cuts=("3",)),
    Architecture("lenet", LeNet, images(1, 16), classification, cuts=("second", "head")),
    Architecture("resnet_block", resnet, images(3, 8), classification, cuts=("1", "2")),
    Architecture("densenet_block", DenseBlock, images(4, 6), classification, cuts=("layers.1", "head")),
    Architecture("mobilenet_block", MobileBlock, images(4, 6), classification, cuts=("depthwise", "head")),
    Architecture("unet", UNet, _masks, F.binary_cross_entropy_with_logits, cuts=("bottom", "join1")),
    Architecture("convnext_block", ConvNeXtBlock, images(3, 16), classification, cuts=("norm",)),
    Architecture("mlp_mixer", MixerBlock, images(1, 16), classification, cuts=("tokens", "channels")),
    Architecture("spatial_transformer", SpatialTransformer, images(1, 8), classification, cuts=("look",)),
]
