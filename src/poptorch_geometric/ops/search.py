"""Nearest neighbours among points, with shapes that depend on shapes only; -1 marks a neighbour that is missing."""

from __future__ import annotations

from typing import Any

import torch

_EXACT = "donot_use_mm_for_euclid_dist"
"""The faster way by a matrix product would round close neighbours apart."""


def knn(
    x: torch.Tensor,
    y: torch.Tensor,
    k: int,
    batch_x: torch.Tensor | None = None,
    batch_y: torch.Tensor | None = None,
    cosine: bool = False,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """For each ``y`` the ``k`` nearest ``x`` of the same batch number, nearest first: pairs (y's index, x's index).

    >>> knn(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0.9]), 2).tolist()
    [[0, 0], [1, 0]]
    """
    distances = _distances(x, y, batch_x, batch_y, cosine)
    return _pairs(distances, k, float("inf"))


def radius(
    x: torch.Tensor,
    y: torch.Tensor,
    r: float,
    batch_x: torch.Tensor | None = None,
    batch_y: torch.Tensor | None = None,
    max_num_neighbors: int = 32,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """For each ``y`` the ``x`` of the same batch number nearer than ``r``: pairs (y's index, x's index).

    >>> radius(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0.9]), 0.5).tolist()
    [[0, -1, -1], [1, -1, -1]]
    """
    distances = _distances(x, y, batch_x, batch_y, cosine=False)
    return _pairs(distances, min(distances.shape[1], max_num_neighbors), r)


def knn_graph(
    x: torch.Tensor,
    k: int,
    batch: torch.Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Edges from the ``k`` nearest neighbours of each point to the point."""
    if loop:
        return _directed(knn(x, x, k, batch, batch, cosine), flow)
    if _is_captured():
        return _directed(_pairs(_others(_distances(x, x, batch, batch, cosine)), k, float("inf")), flow)
    return _directed(_without_missing(knn(x, x, k + 1, batch, batch, cosine), loops=False), flow)


def radius_graph(
    x: torch.Tensor,
    r: float,
    batch: torch.Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Edges from all neighbours nearer than ``r`` to each point."""
    if loop:
        return _directed(radius(x, x, r, batch, batch, max_num_neighbors), flow)
    if _is_captured():
        distances = _others(_distances(x, x, batch, batch, cosine=False))
        return _directed(_pairs(distances, min(distances.shape[1], max_num_neighbors), r), flow)
    return _directed(_without_missing(radius(x, x, r, batch, batch, max_num_neighbors + 1), loops=False), flow)


def knn_interpolate(
    x: torch.Tensor,
    pos_x: torch.Tensor,
    pos_y: torch.Tensor,
    batch_x: torch.Tensor | None = None,
    batch_y: torch.Tensor | None = None,
    k: int = 3,
    num_workers: int = 1,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Features at the points ``pos_y``: those of the nearest ``pos_x``, weighted by the inverse squared distance."""
    with torch.no_grad():
        neighbours = knn(pos_x, pos_y, k, batch_x, batch_y)[1]
        index = neighbours.clamp(min=0)
        difference = pos_x[index].reshape(len(index), -1) - pos_y.repeat_interleave(k, 0).reshape(len(index), -1)
        weights = 1.0 / difference.square().sum(1, keepdim=True).clamp(min=1e-16)
        weights = torch.where(neighbours[:, None] < 0, 0.0, weights).reshape(-1, k, 1)
    features = x[index].reshape(-1, k, *x.shape[1:]) * weights.reshape(-1, k, *[1] * (x.dim() - 1))
    return features.sum(1) / weights.sum(1).reshape(-1, *[1] * (x.dim() - 1))


def without_missing(pairs: torch.Tensor) -> torch.Tensor:
    """The pairs that are there, as PyG returns them."""
    return _without_missing(pairs, loops=True)


def _without_missing(pairs: torch.Tensor, loops: bool) -> torch.Tensor:
    there = pairs[1] >= 0
    return pairs[:, there if loops else there & (pairs[0] != pairs[1])]


def _is_captured() -> bool:
    from poptorch._impl import isDispatchTracing

    return bool(isDispatchTracing())


def _distances(
    x: torch.Tensor, y: torch.Tensor, batch_x: torch.Tensor | None, batch_y: torch.Tensor | None, cosine: bool
) -> torch.Tensor:
    """From each ``y`` to each ``x``; infinite between different batch numbers."""
    x, y = (points.unsqueeze(1) if points.dim() == 1 else points for points in (x, y))
    assert x.dim() == 2, f"x must have one or two dimensions, not {x.dim()}"
    assert y.dim() == 2, f"y must have one or two dimensions, not {y.dim()}"
    assert x.shape[1] == y.shape[1], f"x and y must have as many features: {x.shape[1]} and {y.shape[1]}"
    for name, points, batch in (("x", x, batch_x), ("y", y, batch_y)):
        assert batch is None or (batch.dim() == 1 and len(batch) == len(points)), (
            f"batch_{name} must have one number for each of the {len(points)} rows of {name}"
        )
    x, y = (points.detach().to(torch.promote_types(points.dtype, torch.float32)) for points in (x, y))
    if cosine:
        distances = 1 - torch.nn.functional.normalize(y, dim=1) @ torch.nn.functional.normalize(x, dim=1).t()
    else:
        distances = torch.cdist(y, x, compute_mode=_EXACT)
    if batch_x is None and batch_y is None:
        return distances
    numbers_x = torch.zeros(len(x)) if batch_x is None else batch_x
    numbers_y = torch.zeros(len(y)) if batch_y is None else batch_y
    return distances.masked_fill(numbers_y[:, None] != numbers_x[None, :], float("inf"))


def _others(distances: torch.Tensor) -> torch.Tensor:
    """Without those of points to themselves."""
    return distances.masked_fill(torch.eye(len(distances), dtype=torch.bool), float("inf"))


def _pairs(distances: torch.Tensor, k: int, limit: float) -> torch.Tensor:
    """The indices of the ``k`` smallest ones of each row, where they are below a limit."""
    found = distances.topk(min(k, distances.shape[1]), dim=1, largest=False, sorted=True)
    missing = k - found.indices.shape[1]
    there = torch.nn.functional.pad(found.values < limit, (0, missing), value=False)
    column = torch.where(there, torch.nn.functional.pad(found.indices, (0, missing)), -1)
    row = torch.where(there, torch.arange(len(distances))[:, None], -1)
    return torch.stack([row.flatten(), column.flatten()])


def _directed(pairs: torch.Tensor, flow: str) -> torch.Tensor:
    """Pairs of a point and its neighbour as edges."""
    assert flow in ("source_to_target", "target_to_source"), f"unknown flow {flow!r}"
    return pairs.flip(0) if flow == "source_to_target" else pairs
