"""Slices that begin at the value of a tensor (section 5.2): one program, many starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from op_samples import Alone, normal
from torch import Tensor

import poptorch
from closeness import assert_close_sums

X = normal(8, 6)

SLICES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda x, s: x[s : s + 4],
    "first, offset": lambda x, s: x[s + 1 : s + 3],
    "first, subtracted": lambda x, s: x[s - 1 : s + 1],
    "second": lambda x, s: x[:, s : s + 2],
    "last": lambda x, s: x[..., s : s + 3],
    "step": lambda x, s: x[s : s + 4 : 2],
    "both": lambda x, s: x[s : s + 2, s + 1 : s + 3],
    "with an integer": lambda x, s: x[2, s : s + 2],
    "with a new dimension": lambda x, s: x[None, s : s + 4, 1:3],
    "chained offsets": lambda x, s: x[(s + 1) + 1 : s + 2 + 2],
    "converted": lambda x, s: x[s.int() : s.int() + 2],
    "of an element": lambda x, s: x[s[0] : s[0] + 2] if s.ndim else x[s : s + 2],
    "constant tensor": lambda x, s: x[torch.tensor(1) : torch.tensor(3)] + s,
}


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("name", SLICES)
def test_the_start_may_differ_between_calls(name: str, shape: tuple[int, ...]) -> None:
    model = poptorch.inferenceModel(Alone(SLICES[name]))
    for start in (1, 2, 3):
        s = torch.full(shape, start)
        assert_close_sums(model(X, s).as_subclass(Tensor), SLICES[name](X, s), terms=1)


def test_a_slice_past_the_end_continues_at_the_beginning() -> None:
    model = poptorch.inferenceModel(Alone(lambda x, s: x[s : s + 4]))
    assert torch.equal(model(X, torch.tensor([6])).as_subclass(Tensor), torch.cat([X[6:], X[:2]]))


def test_an_ordinary_slice_stays_static() -> None:
    model = poptorch.inferenceModel(Alone(lambda x: x[2 : x.shape[0] - 1]))
    assert torch.equal(model(X).as_subclass(Tensor), X[2:7])


def test_with_the_dispatcher_other_bounds_are_frozen() -> None:
    options = poptorch.Options()
    options.Jit.traceModel(False)
    model = poptorch.inferenceModel(Alone(lambda x, s: x[:s]), options)
    with pytest.warns(UserWarning, match="frozen into the program"):
        first = model(X, torch.tensor(3))
    assert torch.equal(first.as_subclass(Tensor), X[:3])
    assert model(X, torch.tensor(5)).shape == (3, 6)
