"""Operations on point clouds: farthest-point sampling and nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from poptorch.errors import createPoptorchError
from poptorch.ops._library import define

_CHUNK = 1 << 22
"""Most distances held at a time by ``nearest``."""


def _sample_sizes(ptr: Sequence[int], ratio: float) -> list[int]:
    # In float32, because the rounding decides whether e.g. 100 * 0.07 needs 7 points or 8.
    counts = np.diff(np.asarray(ptr)).astype(np.float32) * np.float32(ratio)
    return [int(count) for count in np.ceil(counts)]


def _farthest_points(src: torch.Tensor, ptr: Sequence[int], ratio: float, random_start: bool) -> torch.Tensor:
    chosen = []
    points = src.flatten(1).to(torch.float32 if src.dtype == torch.float16 else src.dtype)
    for (begin, end), count in zip(pairwise(ptr), _sample_sizes(ptr, ratio), strict=True):
        sample = points[begin:end]
        index = int(torch.randint(end - begin, ()).item()) if random_start and count else 0
        distance = torch.full((end - begin,), float("inf"), dtype=points.dtype)
        for _ in range(count):
            chosen.append(begin + index)
            distance = torch.minimum(distance, (sample - sample[index]).square().sum(1))
            distance[index] = -1.0  # a chosen point is never chosen again, even among duplicates
            index = int(distance.argmax())
    return torch.tensor(chosen, dtype=torch.int32)


def _farthest_shape(src: torch.Tensor, ptr: Sequence[int], ratio: float, random_start: bool) -> torch.Tensor:
    return src.new_empty(sum(_sample_sizes(ptr, ratio)), dtype=torch.int32)


FPS = define("fps(Tensor src, int[] ptr, float ratio, bool random_start) -> Tensor", _farthest_points, _farthest_shape)
RANDOM_FPS = define(
    "random_fps(Tensor src, int[] ptr, float ratio, bool random_start) -> Tensor",
    _farthest_points,
    _farthest_shape,
    tags=[torch.Tag.nondeterministic_seeded],
)


def fps(src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> torch.Tensor:
    """Indices of points that lie far from each other, ``ceil(ratio * size)`` of every sample.

    ``ptr`` holds the boundaries of the samples in ``src``. Each sample starts with its first point (or a
    random one), then always takes the point with the largest distance to those chosen.

    >>> fps(torch.tensor([[0.0], [1.0], [5.0], [2.0]]), [0, 4], ratio=0.5)
    tensor([0, 2], dtype=torch.int32)
    """
    if not isinstance(src, torch.Tensor):
        raise createPoptorchError(f"fps: src of type {type(src).__name__} is not supported; it must be a torch.Tensor.")
    if not isinstance(ptr, list) or any(not isinstance(p, int) or isinstance(p, bool) for p in ptr):
        raise createPoptorchError(f"fps: ptr must be a list of integers, not {ptr!r}.")
    if len(ptr) < 2:
        raise createPoptorchError(f"fps: ptr must be a list of integers with at least 2 boundaries, not {ptr!r}.")
    if not isinstance(ratio, float):
        raise createPoptorchError(f"fps: ratio must be of float type, not {type(ratio).__name__}.")
    if not isinstance(random_start, bool):
        raise createPoptorchError(f"fps: random_start must be of bool type, not {type(random_start).__name__}.")
    if not 0.0 < ratio <= 1.0:
        raise createPoptorchError(f"fps: ratio must be in (0, 1], not {ratio}.")
    if ptr[0] != 0 or ptr[-1] != src.shape[0] or any(a > b for a, b in pairwise(ptr)):
        raise createPoptorchError(f"fps: ptr must rise from 0 to {src.shape[0]}, the number of points; got {ptr!r}.")
    operator = RANDOM_FPS if random_start else FPS
    return operator(src.detach(), ptr, ratio, random_start)


def _nearest(
    x: torch.Tensor, y: torch.Tensor, batch_x: torch.Tensor | None, batch_y: torch.Tensor | None
) -> torch.Tensor:
    if x.dtype == torch.float16:
        x, y = x.float(), y.float()
    rows = max(1, _CHUNK // max(1, y.shape[0]))
    found = []
    for begin in range(0, x.shape[0], rows):
        # Exact differences: the faster |x|² - 2xy + |y|² would round close neighbours apart.
        distance = torch.cdist(x[begin : begin + rows], y, compute_mode="donot_use_mm_for_euclid_dist")
        if batch_x is not None and batch_y is not None:
            distance.masked_fill_(batch_x[begin : begin + rows, None] != batch_y[None, :], float("inf"))
        found.append(distance.argmin(1))
    return torch.cat(found).to(torch.int32)


def _nearest_shape(x: torch.Tensor, y: torch.Tensor, batch_x: Any, batch_y: Any) -> torch.Tensor:
    return x.new_empty(x.shape[0], dtype=torch.int32)


NEAREST = define("nearest(Tensor x, Tensor y, Tensor? batch_x, Tensor? batch_y) -> Tensor", _nearest, _nearest_shape)


def nearest(x: torch.Tensor, y: torch.Tensor, batch_x: Any = None, batch_y: Any = None) -> torch.Tensor:
    """For each row of ``x`` the index of the closest row of ``y`` among those with the same batch number.

    >>> nearest(torch.tensor([[0.1], [2.6]]), torch.tensor([[0.0], [2.0], [3.0]]))
    tensor([0, 2], dtype=torch.int32)
    """
    for name, tensor in (("x", x), ("y", y)):
        if not isinstance(tensor, torch.Tensor):
            raise createPoptorchError(
                f"nearest: {name} of type {type(tensor).__name__} is not supported; it must be a torch.Tensor."
            )
        if not tensor.dtype.is_floating_point:
            raise createPoptorchError(f"nearest: {name} of type {tensor.dtype} is not supported; use a floating type.")
    x = x.detach().unsqueeze(1) if x.dim() == 1 else x.detach()
    y = y.detach().unsqueeze(1) if y.dim() == 1 else y.detach()
    if x.dim() != 2 or y.dim() != 2:
        raise ValueError(f"nearest: x and y must have one or two dimensions, not {x.dim()} and {y.dim()}.")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"nearest: x.size(1) == y.size(1) does not hold: {x.shape[1]} and {y.shape[1]} features.")
    _check_batches(x, y, batch_x, batch_y)
    numbers_x, numbers_y = _batch_tensors(x, y, batch_x, batch_y)
    return NEAREST(x, y.to(x.dtype), numbers_x, numbers_y)


def _check_batches(x: torch.Tensor, y: torch.Tensor, batch_x: Any, batch_y: Any) -> None:
    for name, points, batch in (("x", x, batch_x), ("y", y, batch_y)):
        if batch is None:
            continue
        if not isinstance(batch, (list, torch.Tensor)):
            raise createPoptorchError(
                f"nearest: batch_{name} of type {type(batch).__name__} is not supported; use a list or a tensor."
            )
        length = len(batch) if isinstance(batch, list) else batch.numel()
        if length != points.shape[0]:
            raise ValueError(
                f"nearest: {name}.size(0) == batch_{name}.size(0) does not hold: {points.shape[0]} and {length}."
            )
        if isinstance(batch, list):
            if any(not isinstance(number, int) for number in batch):
                raise createPoptorchError(f"nearest: batch_{name} must hold integers; other types are not supported.")
            if any(a > b for a, b in pairwise(batch)):
                raise ValueError(f"nearest: batch_{name} is not sorted: {batch}.")
    values_x = batch_x if isinstance(batch_x, list) else [0] if batch_x is None else None
    values_y = batch_y if isinstance(batch_y, list) else [0] if batch_y is None else None
    if values_x is not None and values_y is not None and set(values_x) != set(values_y):
        alone = sorted(set(values_x) ^ set(values_y))
        raise ValueError(f"nearest: the batch numbers {alone} are present in only one of batch_x and batch_y.")


def _batch_tensors(
    x: torch.Tensor, y: torch.Tensor, batch_x: Any, batch_y: Any
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if batch_x is None and batch_y is None:
        return None, None
    dtype = next((batch.dtype for batch in (batch_x, batch_y) if isinstance(batch, torch.Tensor)), torch.int64)

    def as_tensor(batch: Any, points: torch.Tensor) -> torch.Tensor:
        if batch is None:
            return torch.zeros(points.shape[0], dtype=dtype)
        return batch if isinstance(batch, torch.Tensor) else torch.tensor(batch, dtype=dtype)

    return as_tensor(batch_x, x), as_tensor(batch_y, y)
