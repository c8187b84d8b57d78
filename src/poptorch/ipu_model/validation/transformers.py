"""BERT and ViT as they are trained on IPUs: pipelined, with a checkpoint for recomputation after every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

from poptorch.enums import MatMulSerializationMode
from poptorch.ops import identity_loss, recomputationCheckpoint, serializedMatMul
from poptorch.placement import Block


@dataclass(frozen=True)
class Size:
    """The sizes of a transformer."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    dropout: float = 0.1
    """Of the results of attention and of the feed-forward network."""

    attention_dropout: float = 0.1
    """Of the shares of attention."""

    inner_dropout: float = 0.0
    """Between the two products of the feed-forward network."""


LARGE = Size(1024, 24, 16, 4096)
BASE = Size(768, 12, 12, 3072)
LARGE_POPART = replace(LARGE, attention_dropout=0.0)
BASE_POPART = replace(BASE, attention_dropout=0.0)
"""The public configurations of pretraining with PopART switch dropout of attention off."""

VISION = replace(BASE, inner_dropout=0.1)
"""ViT has dropout after its GELU, too."""

VOCABULARY = 30400
MOST_POSITIONS = 512


class Attention(nn.Module):
    """Attention of all heads, with its residual connection."""

    def __init__(self, size: Size, before: bool) -> None:
        super().__init__()
        self.heads, self.before, self.attention_dropout = size.heads, before, size.attention_dropout
        # BERT projects for queries, keys and values at once; ViT, which normalises before, one after the other.
        widths = [size.hidden] * 3 if before else [3 * size.hidden]
        self.projections = nn.ModuleList(nn.Linear(size.hidden, width) for width in widths)
        self.output = nn.Linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Normalise before or after, as the model does."""
        batch, length, hidden = x.shape
        y = self.norm(x) if self.before else x
        q, k, v = (
            part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for projection in self.projections
            for part in projection(y).split(hidden, -1)
        )
        scores = torch.matmul(q, k.transpose(-1, -2)) / (hidden // self.heads) ** 0.5
        if mask is not None:
            scores = scores + mask
        shares = functional.softmax(scores, dim=-1)
        if self.attention_dropout:
            shares = functional.dropout(shares, self.attention_dropout, self.training)
        mixed = torch.matmul(shares, v)
        y = self.dropout(self.output(mixed.transpose(1, 2).reshape(batch, length, hidden)))
        return x + y if self.before else self.norm(x + y)


class FeedForward(nn.Module):
    """The two products with a GELU between them, with their residual connection."""

    def __init__(self, size: Size, before: bool) -> None:
        super().__init__()
        self.before, self.inner_dropout = before, size.inner_dropout
        self.wide = nn.Linear(size.hidden, size.feed_forward)
        self.narrow = nn.Linear(size.feed_forward, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise before or after, as the model does."""
        y = self.norm(x) if self.before else x
        y = functional.gelu(self.wide(y), approximate="tanh")
        if self.inner_dropout:
            y = functional.dropout(y, self.inner_dropout, self.training)
        y = self.dropout(self.narrow(y))
        return x + y if self.before else self.norm(x + y)


class EncoderLayers(nn.Module):
    """All layers; ``places`` says for every half of a layer (attention, feed-forward) which IPU computes it."""

    def __init__(self, size: Size, places: Sequence[int], before: bool = False) -> None:
        super().__init__()
        self.places = list(places)
        kinds = (Attention, FeedForward)
        self.halves = nn.ModuleList(kinds[i % 2](size, before) for i in range(len(self.places)))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Start a block where the IPU changes, and keep the result of every layer."""
        current = None
        for number, (half, ipu) in enumerate(zip(self.halves, self.places, strict=True)):
            if ipu != current:
                Block.start(f"layers on IPU {ipu}", ipu_id=ipu)
                current = ipu
            x = half(x, mask) if isinstance(half, Attention) else half(x)
            if number % 2:
                x = recomputationCheckpoint(x)
        return x


def places(layers: Sequence[float]) -> list[int]:
    """The IPU of every half layer, from the number of layers on each IPU.

    >>> places([1, 0.5, 0.5])
    [0, 0, 1, 2]
    """
    return [ipu for ipu, count in enumerate(layers) for _ in range(round(2 * count))]


class Embeddings(nn.Module):
    """Words, positions and segments."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, size.hidden, padding_idx=0)
        self.positions = nn.Embedding(MOST_POSITIONS, size.hidden)
        self.segments = nn.Embedding(2, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, words: torch.Tensor, segments: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Their sum, normalised."""
        x = self.words(words) + self.segments(segments) + self.positions(positions)
        return self.dropout(self.norm(x))


class PretrainingBert(nn.Module):
    """Masked words and next sentences. The head shares its IPU and its table of words with the embeddings.

    Packed samples hold several sequences: tokens attend only to tokens of the same sequence.
    """

    def __init__(self, size: Size, layers: Sequence[float], head_steps: int = 5, packed: bool = True) -> None:
        super().__init__()
        self.packed, self.head_steps = packed, head_steps
        self.embeddings = Embeddings(size)
        self.encoder = EncoderLayers(size, places(layers))
        self.pool = nn.Linear(size.hidden, size.hidden)
        self.next = nn.Linear(size.hidden, 2)
        self.transform = nn.Linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(
        self,
        words: torch.Tensor,
        sequences: torch.Tensor,
        segments: torch.Tensor,
        positions: torch.Tensor,
        masked: torch.Tensor,
        masked_words: torch.Tensor,
        firsts: torch.Tensor,
        follows: torch.Tensor,
    ) -> torch.Tensor:
        """The loss."""
        Block.start("embeddings", ipu_id=0)
        x = self.embeddings(words, segments, positions)
        if self.packed:
            same = (sequences[:, None, :] == sequences[:, :, None]).unsqueeze(1)
        else:
            same = (sequences > 0)[:, None, None, :]
        mask = (1.0 - same.to(x.dtype)) * -10000.0
        x = self.encoder(x, mask)
        Block.start("head", ipu_id=0)
        hidden = x.shape[-1]
        chosen = torch.gather(x, 1, masked.unsqueeze(-1).expand(-1, -1, hidden)).view(-1, hidden)
        chosen = self.norm(functional.gelu(self.transform(chosen), approximate="tanh"))
        table = self.embeddings.words.weight.t()
        logits = serializedMatMul(chosen, table, MatMulSerializationMode.OutputChannels, self.head_steps) + self.bias
        pooled = torch.tanh(self.pool(torch.gather(x, 1, firsts.unsqueeze(-1).expand(-1, -1, hidden)).view(-1, hidden)))
        words_loss = functional.cross_entropy(logits, masked_words.flatten(), ignore_index=0)
        next_loss = functional.cross_entropy(self.next(pooled), follows.flatten(), ignore_index=-1)
        return identity_loss(words_loss + next_loss, "none")


class AnsweringBert(nn.Module):
    """Questions of SQuAD: where the answer begins and ends. Gives the loss, or in inference both scores.

    A half of the model lacks the embeddings or the head.
    """

    def __init__(self, size: Size, layers: Sequence[float], embeds: bool = True, answers: bool = True) -> None:
        super().__init__()
        self.embeddings = Embeddings(size) if embeds else None
        self.encoder = EncoderLayers(size, places(layers))
        self.head = nn.Linear(size.hidden, 2) if answers else None

    def forward(
        self,
        words: torch.Tensor,
        attended: torch.Tensor,
        segments: torch.Tensor,
        positions: torch.Tensor,
        begin: torch.Tensor | None = None,
        end: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Of the last layers only, ``words`` are the results of the layers before."""
        Block.start("embeddings", ipu_id=0)
        x = words if self.embeddings is None else self.embeddings(words, segments, positions)
        mask = (1.0 - attended.to(x.dtype))[:, None, None, :] * -10000.0
        x = self.encoder(x, mask)
        if self.head is None:
            return x
        scores = self.head(x)
        if begin is None or end is None:
            return scores
        first = functional.cross_entropy(scores[..., 0], begin)
        second = functional.cross_entropy(scores[..., 1], end)
        return identity_loss((first + second) / 2, "none")


class VisionTransformer(nn.Module):
    """ViT with patches of 16x16 pixels."""

    def __init__(self, size: Size, layers: Sequence[float], classes: int = 1000, pixels: int = 224) -> None:
        super().__init__()
        patches = (pixels // 16) ** 2
        self.patches = nn.Conv2d(3, size.hidden, 16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, size.hidden))
        self.positions = nn.Parameter(torch.zeros(1, patches + 1, size.hidden))
        self.dropout = nn.Dropout(size.dropout)
        self.encoder = EncoderLayers(size, places(layers), before=True)
        self.norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        Block.start("embeddings", ipu_id=0)
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        x = self.encoder(self.dropout(x), None)
        logits = self.head(self.norm(x)[:, 0])
        return identity_loss(functional.cross_entropy(logits, labels), "none")


__all__ = [
    "BASE",
    "BASE_POPART",
    "LARGE",
    "LARGE_POPART",
    "VISION",
    "VOCABULARY",
    "AnsweringBert",
    "PretrainingBert",
    "Size",
    "VisionTransformer",
    "places",
]
