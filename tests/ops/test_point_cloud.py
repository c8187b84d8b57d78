"""``fps`` and ``nearest`` against straightforward references."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch


def _reference_fps(points: list[list[float]], count: int) -> list[int]:
    chosen = [0]
    while len(chosen) < count:
        gaps = [min(math.dist(p, points[c]) for c in chosen) for p in points]
        chosen.append(max((i for i in range(len(points)) if i not in chosen), key=lambda i: (gaps[i], -i)))
    return chosen


@given(st.integers(0, 1000), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.sampled_from([0.3, 0.5, 1.0]))
@settings(max_examples=30, deadline=None)
def test_fps_takes_the_farthest_point_of_each_sample(seed: int, sizes: list[int], ratio: float) -> None:
    points = torch.randn(sum(sizes), 2, generator=torch.Generator().manual_seed(seed))
    ptr = [0]
    for size in sizes:
        ptr.append(ptr[-1] + size)
    expected = []
    for begin, size in zip(ptr, sizes, strict=False):
        chosen = _reference_fps(points[begin : begin + size].tolist(), math.ceil(size * ratio))
        expected += [begin + index for index in chosen]
    found = poptorch.fps(points, ptr, ratio)
    assert found.dtype == torch.int32
    assert found.tolist() == expected


def test_fps_with_random_start_is_a_permutation(capture) -> None:
    points = torch.randn(7, 3)
    graph = capture(lambda p: poptorch.fps(p, [0, 3, 7], 1.0, True), points)
    starts = set()
    for _ in range(20):
        found = graph(points).tolist()
        assert sorted(found[:3]) == [0, 1, 2]
        assert sorted(found[3:]) == [3, 4, 5, 6]
        starts.add(found[0])
    assert len(starts) > 1


def test_fps_of_equal_points_and_half(capture) -> None:
    assert sorted(poptorch.fps(torch.zeros(4, 2), [0, 4], 1.0).tolist()) == [0, 1, 2, 3]
    points = torch.tensor([[0.0], [3.0], [1.0], [2.0]], dtype=torch.float16)
    assert capture(lambda p: poptorch.fps(p, [0, 4], 0.5), points)(points).tolist() == [0, 1]
    assert len(poptorch.fps(torch.randn(100, 1), [0, 100], 0.07)) == 7


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (([1.0], [0, 1]), "src.*is not supported"),
        ((torch.ones(3, 1), (0, 3)), "must be a list of integers"),
        ((torch.ones(3, 1), [0, 1.5]), "must be a list of integers"),
        ((torch.ones(3, 1), [0]), "at least 2"),
        ((torch.ones(3, 1), [0, 3], 1), "must be of float type"),
        ((torch.ones(3, 1), [0, 3], 0.5, 1), "must be of bool type"),
        ((torch.ones(3, 1), [0, 3], 1.5), "ratio must be in"),
        ((torch.ones(3, 1), [0, 2]), "ptr must rise from 0 to 3"),
    ],
)
def test_wrong_arguments_of_fps(arguments: tuple, phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.fps(*arguments)


@pytest.mark.parametrize("form", ["lists", "tensors", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nearest_looks_in_the_same_batch(form: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(n, 3, generator=generator).to(dtype) for n in (6, 8))
    batch_x, batch_y = [0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 2, 2, 2]
    expected = [
        min((j for j in range(8) if batch_y[j] == batch_x[i]), key=lambda j: math.dist(x[i].tolist(), y[j].tolist()))
        for i in range(6)
    ]
    given_x = torch.tensor(batch_x) if form != "lists" else batch_x
    given_y = torch.tensor(batch_y) if form == "tensors" else batch_y
    found = poptorch.nearest(x, y, given_x, given_y)
    assert found.dtype == torch.int32
    assert found.tolist() == expected


def test_nearest_without_batches_and_of_vectors(capture) -> None:
    x, y = torch.tensor([0.2, 5.0, 2.4]), torch.tensor([2.0, 0.0, 4.0])
    assert poptorch.nearest(x, y).tolist() == [1, 2, 0]
    graph = capture(lambda a, b: poptorch.nearest(a, b, torch.zeros(3, dtype=torch.int32), None), x, y)
    assert graph(x, y).tolist() == [1, 2, 0]


def test_nearest_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from poptorch.ops import point_cloud

    x, y = torch.randn(50, 2), torch.randn(20, 2)
    whole = poptorch.nearest(x, y)
    monkeypatch.setattr(point_cloud, "_CHUNK", 64)
    assert torch.equal(poptorch.nearest(x, y), whole)


@pytest.mark.parametrize(
    ("arguments", "error", "phrase"),
    [
        ((torch.ones(2, 1), torch.ones(2, 1), [1, 0], [0, 1]), ValueError, "batch_x is not sorted"),
        ((torch.ones(2, 1), torch.ones(2, 1), [0, 1], [1, 0]), ValueError, "batch_y is not sorted"),
        ((torch.ones(2, 1), torch.ones(2, 1), [0, 1], [0, 2]), ValueError, r"\[1, 2\] are present in only one"),
        ((torch.ones(2, 1), torch.ones(2, 1), [0, 1], None), ValueError, "present in only one"),
        ((torch.ones(2, 1), torch.ones(2, 1), [0], [0, 0]), ValueError, r"x.size\(0\) == batch_x.size\(0\)"),
        ((torch.ones(2, 1), torch.ones(2, 2)), ValueError, "features"),
        ((torch.ones(2, 1, 1), torch.ones(2, 1)), ValueError, "one or two dimensions"),
        (([1.0], torch.ones(2, 1)), poptorch.Error, "is not supported"),
        ((torch.ones(2, 1), torch.ones(2, 1), (0, 0), [0, 0]), poptorch.Error, "is not supported"),
        ((torch.ones(2, 1).int(), torch.ones(2, 1)), poptorch.Error, "is not supported"),
    ],
)
def test_wrong_arguments_of_nearest(arguments: tuple, error: type[Exception], phrase: str) -> None:
    with pytest.raises(error, match=phrase):
        poptorch.nearest(*arguments)
