"""Networks that make things up: auto-encoders, generators, flows, diffusion."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from zoo_architecture import Architecture, Tensors

import poptorch


class Vae(nn.Module):
    """Variational auto-encoder; the noise is an input, so that two runs can be compared."""

    def __init__(self, pixels: int = 16, latent: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, 12), nn.Softplus(), nn.Linear(12, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 12), nn.Softplus(), nn.Linear(12, pixels))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> dict[str, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + noise * torch.exp(0.5 * log_variance)
        return {"logits": self.decoder(z), "mean": mean, "log_variance": log_variance}


def evidence(out: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The negative evidence lower bound: two terms, declared as one loss."""
    reconstruction = F.binary_cross_entropy_with_logits(out["logits"], x, reduction="sum") / x.shape[0]
    divergence = -0.5 * (1 + out["log_variance"] - out["mean"].square() - out["log_variance"].exp())
    return poptorch.identity_loss(reconstruction + divergence.sum(-1).mean(), reduction="none")


def generator() -> nn.Module:
    """A DCGAN generator: noise to image by transposed convolutions."""
    return nn.Sequential(
        nn.Unflatten(1, (6, 1, 1)),
        nn.ConvTranspose2d(6, 8, 4, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


class Adversary(nn.Module):
    """A generator trained against a frozen discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = generator()
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 4, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 1)
        )
        self.discriminator.requires_grad_(False)

    def forward(self, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.generator(noise)
        return image, self.discriminator(image)


class Coupling(nn.Module):
    """One affine coupling layer of RealNVP: half of the features scale and shift the other half."""

    def __init__(self, features: int, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(features // 2, 10), nn.ReLU(), nn.Linear(10, features))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.flip:
            x = x.flip(-1)
        fixed, moved = x.chunk(2, -1)
        shift, log_scale = self.net(fixed).chunk(2, -1)
        log_scale = torch.tanh(log_scale)
        return torch.cat([fixed, moved * log_scale.exp() + shift], -1), log_scale.sum(-1)


class Flow(nn.Module):
    def __init__(self, features: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(features, flip=i % 2 == 1) for i in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        determinant = torch.zeros(x.shape[0])
        for layer in self.layers:
            x, change = layer(x)
            determinant = determinant + change
        return x, determinant


def negative_log_likelihood(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    z, determinant = out
    normal = torch.distributions.Normal(torch.zeros(()), torch.ones(()), validate_args=False)
    return poptorch.identity_loss(-(normal.log_prob(z).sum(-1) + determinant), reduction="mean")


class DiffusionBlock(nn.Module):
    """A U-Net block that knows the time step and attends over its pixels; predicts the noise."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.begin = nn.Conv2d(1, width, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.norm = nn.GroupNorm(4, width)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.end = nn.Conv2d(2 * width, 1, 3, padding=1)

    def _encode(self, step: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(100.0) * torch.arange(half) / half)
        angles = step.float()[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], -1)

    def forward(self, noisy: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        x = self.begin(noisy)
        scale, shift = self.time(self._encode(step))[:, :, None, None].chunk(2, 1)
        low = self.down(F.silu(self.norm(x) * (1 + scale) + shift))  # (B, w, 3, 3)
        tokens = low.flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        low = low + mixed.transpose(1, 2).reshape(low.shape)
        up = F.interpolate(low, scale_factor=2, mode="nearest")
        return self.end(torch.cat([x, up], 1))


class MaskedConvolution(nn.Conv2d):
    """PixelCNN's convolution: a pixel sees only those before it."""

    def __init__(self, channels: int, out: int, size: int, see_itself: bool) -> None:
        super().__init__(channels, out, size, padding=size // 2)
        mask = torch.ones(size, size)
        mask[size // 2, size // 2 + see_itself :] = 0
        mask[size // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(x, self.weight * self.mask, self.bias)


def pixel_cnn() -> nn.Module:
    return nn.Sequential(
        MaskedConvolution(1, 6, 5, False), nn.ReLU(), MaskedConvolution(6, 6, 3, True), nn.ReLU(), nn.Conv2d(6, 1, 1)
    )


def _with_noise(rows: int) -> tuple[Tensors, Tensors]:
    x = torch.rand(rows, 16)
    return (x, torch.randn(rows, 3)), (x.clone(),)


def _noise(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 6),), (torch.ones(rows, 1),)


def _points(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 6),), ()


def _noisy_images(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 1, 6, 6), torch.randint(100, (rows,))), (torch.randn(rows, 1, 6, 6),)


def _binary_images(rows: int) -> tuple[Tensors, Tensors]:
    x = torch.rand(rows, 1, 7, 7).round()
    return (x,), (x.clone(),)


ARCHITECTURES = [
    Architecture("vae", Vae, _with_noise, evidence, cuts=("decoder",)),
    Architecture(
        "gan_generator",
        Adversary,
        _noise,
        lambda out, real: F.binary_cross_entropy_with_logits(out[1], real),
        cuts=("discriminator",),
    ),
    Architecture("normalising_flow", Flow, _points, negative_log_likelihood, cuts=("layers.1", "layers.2")),
    Architecture("diffusion_unet_block", DiffusionBlock, _noisy_images, F.mse_loss, cuts=("down", "end")),
    Architecture("pixel_cnn", pixel_cnn, _binary_images, F.binary_cross_entropy_with_logits, cuts=("2", "4")),
]
