"""Normalisation, recurrent, linear, sparse and attention layers (section 3.7)."""

from __future__ import annotations

from typing import Any

import torch
from op_samples import between, bools, ints, layer, normal, op
from torch import Tensor, nn
from torch.nn import functional as F

LINE = normal(3, 4, 6)
IMAGE = normal(3, 4, 5, 6)
VOLUME = normal(2, 4, 3, 4, 2)
SHAPES = {1: LINE, 2: IMAGE, 3: VOLUME}
BATCH = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "no affine": {"affine": False},
    "no statistics": {"track_running_stats": False},
    "neither": {"affine": False, "track_running_stats": False},
    "momentum": {"momentum": 0.5, "eps": 1e-3},
    "cumulative": {"momentum": None},
}
SEQUENCE = normal(2, 3, 4)
RECURRENT: dict[str, type[nn.RNNBase]] = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
RECURRENT_VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "no bias": {"bias": False},
    "two layers": {"num_layers": 2},
    "bidirectional": {"bidirectional": True},
    "everything": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


class WithState(nn.Module):
    """A recurrent layer that is given its first state and called twice."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(4, 6)
        self.cells = 2 if kind is nn.LSTM else 1

    def forward(self, x: Tensor, state: Tensor) -> Any:
        first = (state, state * 0.5) if self.cells == 2 else state
        y, after = self.layer(x, first)
        z, last = self.layer(x.flip(0), after)
        return y, z, last


class Bag(nn.Module):
    """An embedding bag over constant offsets."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 3, mode=mode)

    def forward(self, indices: Tensor) -> Tensor:
        return self.bag(indices, torch.tensor([0, 2, 5]))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.decoder = nn.Linear(4, 7, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, indices: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.embedding(indices)))


class Attention(nn.Module):
    """Self-attention with its weights returned."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **settings)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x)


ROWS = [
    *(
        layer(f"BatchNorm{d}d {name}", lambda d=d, v=v: BATCH[d](4, **v), SHAPES[d])
        for d in (1, 2, 3)
        for name, v in VARIANTS.items()
    ),
    *(layer(f"BatchNorm{d}d evaluated", lambda d=d: BATCH[d](4).eval(), SHAPES[d]) for d in (1, 2, 3)),
    layer("BatchNorm1d two dims", lambda: nn.BatchNorm1d(4), normal(6, 4)),
    *(
        layer(f"InstanceNorm{d}d {name}", lambda d=d, v=v: INSTANCE[d](4, **v), SHAPES[d])
        for d in (1, 2, 3)
        for name, v in (("plain", {}), ("affine", {"affine": True}), ("statistics", {"track_running_stats": True}))
    ),
    layer("LayerNorm", lambda: nn.LayerNorm(6), LINE),
    layer("LayerNorm two dims", lambda: nn.LayerNorm((4, 6)), LINE),
    layer("LayerNorm no affine", lambda: nn.LayerNorm(6, elementwise_affine=False), LINE),
    layer("RMSNorm", lambda: nn.RMSNorm(6), LINE),
    layer("GroupNorm", lambda: nn.GroupNorm(2, 4), IMAGE),
    layer("GroupNorm flat", lambda: nn.GroupNorm(2, 4), normal(3, 4)),
    layer("GroupNorm no affine", lambda: nn.GroupNorm(4, 4, affine=False), IMAGE),
    layer("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), IMAGE),
    layer("weight_norm", lambda: nn.utils.weight_norm(nn.Linear(6, 3)), LINE),
    layer("weight_norm parametrisation", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), LINE),
    layer("spectral_norm evaluated", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)).eval(), LINE),
    layer("orthogonal", lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), normal(3, 4)),
    # recurrent
    *(
        layer(f"{name} {variant}", lambda k=k, v=v: k(4, 6, **v), SEQUENCE)
        for name, k in RECURRENT.items()
        for variant, v in RECURRENT_VARIANTS.items()
    ),
    layer("RNN relu", lambda: nn.RNN(4, 6, nonlinearity="relu"), SEQUENCE),
    *(layer(f"{n} with state", lambda k=k: WithState(k), SEQUENCE, normal(1, 3, 6)) for n, k in RECURRENT.items()),
    layer("LSTM projection", lambda: nn.LSTM(4, 6, proj_size=3), SEQUENCE),
    layer("LSTM unbatched", lambda: nn.LSTM(4, 6), SEQUENCE[:, 0]),
    layer("GRUCell", lambda: nn.GRUCell(4, 6), normal(3, 4), normal(3, 6)),
    layer("LSTMCell", lambda: nn.LSTMCell(4, 6), normal(3, 4)),
    layer("RNNCell", lambda: nn.RNNCell(4, 6), normal(3, 4)),
    # linear
    layer("Identity", nn.Identity, LINE),
    layer("Linear", lambda: nn.Linear(6, 3), LINE),
    layer("Linear no bias", lambda: nn.Linear(6, 3, bias=False), LINE),
    layer("Linear vector", lambda: nn.Linear(6, 3), normal(6)),
    layer("Bilinear", lambda: nn.Bilinear(4, 5, 3), normal(2, 4), normal(2, 5)),
    layer("Bilinear no bias", lambda: nn.Bilinear(4, 5, 3, bias=False), normal(2, 4), normal(2, 5)),
    layer("Flatten", lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 2)), LINE),
    layer("Unflatten", lambda: nn.Unflatten(1, (2, 2)), LINE),
    layer("ModuleList", lambda: nn.Sequential(*nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])), LINE),
    layer("CosineSimilarity", lambda: nn.CosineSimilarity(dim=1), normal(3, 4), normal(3, 4, seed=1)),
    layer("PairwiseDistance", lambda: nn.PairwiseDistance(p=3), normal(3, 4), normal(3, 4, seed=1)),
    layer("PixelShuffle", lambda: nn.PixelShuffle(2), IMAGE),
    # dropout that does nothing
    layer("Dropout evaluated", lambda: nn.Dropout(0.5).eval(), LINE),
    layer("Dropout2d evaluated", lambda: nn.Dropout2d(0.5).eval(), IMAGE),
    layer("Dropout3d evaluated", lambda: nn.Dropout3d(0.5).eval(), VOLUME),
    layer("Dropout nothing", lambda: nn.Dropout(0.0), LINE),
    # sparse
    layer("Embedding", lambda: nn.Embedding(7, 3), ints(0, 7, 2, 5)),
    layer("Embedding int32", lambda: nn.Embedding(7, 3), ints(0, 7, 2, 5, dtype=torch.int32)),
    layer("Embedding padding_idx", lambda: nn.Embedding(7, 3, padding_idx=2), torch.tensor([[0, 2, 2], [6, 2, 1]])),
    layer("Embedding scaled by frequency", lambda: nn.Embedding(7, 3, scale_grad_by_freq=True), ints(0, 7, 2, 5)),
    layer("Embedding max_norm", lambda: nn.Embedding(7, 3, max_norm=1.0), ints(0, 7, 2, 5), grad=False),
    *(
        layer(f"EmbeddingBag {m}", lambda m=m: nn.EmbeddingBag(7, 3, mode=m), ints(0, 7, 2, 5))
        for m in ("sum", "mean", "max")
    ),
    *(layer(f"EmbeddingBag {m} offsets", lambda m=m: Bag(m), ints(0, 7, 8)) for m in ("sum", "mean", "max")),
    op(
        "EmbeddingBag per_sample_weights",
        lambda i, w, s: F.embedding_bag(i, w, per_sample_weights=s, mode="sum"),
        ints(0, 7, 2, 5),
        normal(7, 3),
        normal(2, 5),
    ),
    layer("EmbeddingBag padding_idx", lambda: nn.EmbeddingBag(7, 3, padding_idx=2, mode="sum"), ints(0, 7, 2, 5)),
    layer("tied weights", Tied, ints(0, 7, 2, 3)),
    # attention
    op(
        "scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        normal(2, 2, 4, 3),
        normal(2, 2, 5, 3),
        normal(2, 2, 5, 3, seed=1),
    ),
    op(
        "scaled_dot_product_attention causal",
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        normal(2, 2, 4, 3),
    ),
    op(
        "scaled_dot_product_attention mask",
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m | torch.eye(4, dtype=torch.bool)),
        normal(2, 2, 4, 3),
        bools(4, 4),
    ),
    layer("MultiheadAttention", Attention, normal(5, 2, 8)),
    layer("MultiheadAttention batch_first", lambda: Attention(batch_first=True), normal(2, 5, 8)),
    layer("MultiheadAttention bias_kv", lambda: Attention(add_bias_kv=True), normal(5, 2, 8)),
    layer("MultiheadAttention evaluated", lambda: Attention(batch_first=True).eval(), normal(2, 5, 8)),
    layer(
        "TransformerEncoderLayer",
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        normal(2, 5, 8),
    ),
    layer(
        "TransformerEncoderLayer evaluated",
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
        normal(2, 5, 8),
    ),
    layer("Transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0), normal(5, 2, 8), normal(4, 2, 8)),
    op(
        "batch_norm function",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        LINE,
        normal(4),
        normal(4, seed=1),
    ),
    op("layer_norm function", lambda x, w: F.layer_norm(x, (6,), w), LINE, between(0.5, 1.5, 6)),
]
