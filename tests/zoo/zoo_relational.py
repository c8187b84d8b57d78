"""Networks about relations: recommendation, graphs, pairs and triplets; experts, dynamics and latent arrays."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from zoo_architecture import Architecture, Tensors
from zoo_vision import CLASSES, classification

import poptorch

NODES, EDGES = 6, 10


class Recommender(nn.Module):
    """Bags of items and a user's numbers, combined by all pairwise products."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.seen = nn.EmbeddingBag(20, width, mode="mean")
        self.liked = nn.EmbeddingBag(20, width, mode="sum")
        self.user = nn.Sequential(nn.Linear(4, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 3, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, numbers: torch.Tensor, seen: torch.Tensor, liked: torch.Tensor) -> torch.Tensor:
        user = self.user(numbers)
        vectors = torch.stack([user, self.seen(seen), self.liked(liked)], 1)  # (B, 3, w)
        products = torch.bmm(vectors, vectors.mT)
        rows, columns = torch.tril_indices(3, 3, offset=-1)
        return self.top(torch.cat([user, products[:, rows, columns]], -1)).squeeze(-1)


class MessagePassing(nn.Module):
    """Graph convolution: messages along edges are added up at their targets by scatter."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.update = nn.ModuleList(nn.GRUCell(width, width) for _ in range(2))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        rows, count, _ = nodes.shape
        offsets = torch.arange(rows)[:, None] * count
        source, target = (edges[:, 0] + offsets).flatten(), (edges[:, 1] + offsets).flatten()
        h = self.embed(nodes).flatten(0, 1)  # (B·N, w)
        for message, update in zip(self.message, self.update, strict=True):
            sent = F.relu(message(torch.cat([h[source], h[target]], -1)))
            received = torch.zeros_like(h).index_add_(0, target, sent)
            h = update(received, h)
        return self.head(h.view(rows, count, -1).mean(1))


class GraphAttention(nn.Module):
    """Attention over incoming edges: softmax by scatter_reduce and scatter_add."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.project = nn.Linear(3, width, bias=False)
        self.score = nn.Parameter(torch.randn(2 * width) / 4)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h = self.project(nodes)  # (B, N, w)
        index = edges.unsqueeze(-1).expand(-1, -1, -1, h.shape[-1])
        source, target = h.gather(1, index[:, 0]), h.gather(1, index[:, 1])
        scores = F.leaky_relu(torch.cat([source, target], -1) @ self.score, 0.2)  # (B, E)
        where = edges[:, 1]
        largest = torch.full(nodes.shape[:2], -1e9).scatter_reduce(1, where, scores.detach(), "amax")
        weights = (scores - largest.gather(1, where)).exp()
        total = torch.zeros(nodes.shape[:2]).scatter_add(1, where, weights)
        weights = weights / total.gather(1, where).clamp_min(1e-9)
        gathered = torch.zeros_like(h).scatter_add(1, index[:, 1], weights.unsqueeze(-1) * source)
        return self.head(F.elu(gathered).sum(1))


def _tower() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.PReLU(), nn.Linear(12, 4))


class Siamese(nn.Module):
    """One tower for both inputs; compares the two results."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = _tower()

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tower(left), self.tower(right)


class Triplet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = _tower()

    def forward(self, *triplet: torch.Tensor) -> list[torch.Tensor]:
        return [F.normalize(self.tower(x), dim=-1) for x in triplet]


class MixtureOfExperts(nn.Module):
    """Top-two gating with static routing: every expert runs, gates that were not chosen are zero."""

    def __init__(self, experts: int = 4, width: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.first = nn.Parameter(torch.randn(experts, width, 10) / 3)
        self.second = nn.Parameter(torch.randn(experts, 10, width) / 3)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = self.gate(x).softmax(-1)
        best, index = gates.topk(2, -1)
        routed = torch.zeros_like(gates).scatter(-1, index, best / best.sum(-1, keepdim=True))
        hidden = F.relu(torch.einsum("bi,eij->bej", x, self.first))
        answers = torch.einsum("bej,ejo->beo", hidden, self.second)
        return self.head(x + (routed.unsqueeze(-1) * answers).sum(1))


class NeuralOde(nn.Module):
    """A few Runge–Kutta steps of a learned vector field."""

    def __init__(self, width: int = 4, steps: int = 3) -> None:
        super().__init__()
        self.steps = steps
        self.field = nn.Sequential(nn.Linear(width + 1, 10), nn.Tanh(), nn.Linear(10, width))

    def _slope(self, t: float, y: torch.Tensor) -> torch.Tensor:
        return self.field(torch.cat([y, torch.full_like(y[:, :1], t)], -1))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        h = 1.0 / self.steps
        path = [y]
        for i in range(self.steps):
            t = i * h
            k1 = self._slope(t, y)
            k2 = self._slope(t + h / 2, y + h / 2 * k1)
            k3 = self._slope(t + h / 2, y + h / 2 * k2)
            k4 = self._slope(t + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(y)
        return torch.stack(path, 1)


class Perceiver(nn.Module):
    """A small array of latents attends to a long input, then to itself, with the same weights twice."""

    def __init__(self, width: int = 8, latents: int = 3) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, width) / 2)
        self.read = nn.MultiheadAttention(width, 2, kdim=5, vdim=5, batch_first=True)
        self.think = nn.TransformerEncoderLayer(width, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.latents.expand(x.shape[0], -1, -1)
        for _ in range(2):
            z = self.think(z + self.read(z, x, x)[0])
        return self.head(z.mean(1))


class HyperNetwork(nn.Module):
    """One network computes the weights of another, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(3, 4 * CLASSES)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        weight = self.weights(context).view(-1, CLASSES, 4)
        return torch.matmul(weight, x.unsqueeze(-1)).squeeze(-1)


def margin(out: list[torch.Tensor]) -> torch.Tensor:
    return F.triplet_margin_loss(*out, margin=1.0)


def similarity(out: tuple[torch.Tensor, torch.Tensor], same: torch.Tensor) -> torch.Tensor:
    return F.cosine_embedding_loss(*out, same, margin=0.1)


def trajectory(path: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return poptorch.identity_loss((path[:, -1] - target).square() + 0.01 * path.abs().mean(), reduction="mean")


def _clicks(rows: int) -> tuple[Tensors, Tensors]:
    bags = torch.randint(20, (rows, 4)), torch.randint(20, (rows, 3))
    return (torch.randn(rows, 4), *bags), (torch.rand(rows).round(),)


def _graphs(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, NODES, 3), torch.randint(NODES, (rows, 2, EDGES))), (torch.randint(CLASSES, (rows,)),)


def _pairs(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 8), torch.randn(rows, 8)), (torch.randn(rows).sign(),)


def _triplets(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 8), torch.randn(rows, 8), torch.randn(rows, 8)), ()


def _features(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 8),), (torch.randint(CLASSES, (rows,)),)


def _states(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 4),), (torch.randn(rows, 4),)


def _long_inputs(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 12, 5),), (torch.randint(CLASSES, (rows,)),)


def _with_context(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 4), torch.randn(rows, 3)), (torch.randint(CLASSES, (rows,)),)


ARCHITECTURES = [
    Architecture("embedding_bag_recommender", Recommender, _clicks, F.binary_cross_entropy_with_logits, cuts=("top",)),
    Architecture("gnn_scatter", MessagePassing, _graphs, classification, cuts=("message.1", "head")),
    Architecture("graph_attention", GraphAttention, _graphs, classification, cuts=("head",), half_tolerance=None),
    Architecture("siamese", Siamese, _pairs, similarity),
    Architecture("triplet", Triplet, _triplets, margin),
    Architecture("mixture_of_experts", MixtureOfExperts, _features, classification, cuts=("head",)),
    Architecture("neural_ode", NeuralOde, _states, trajectory),
    Architecture("perceiver", Perceiver, _long_inputs, classification, cuts=("head",)),
    Architecture("hyper_network", HyperNetwork, _with_context, classification),
]
