"""Any nesting of arguments and results goes through a wrapped model as through the model itself."""

from __future__ import annotations

import collections
import copy
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch
from poptorch.capture.structure import flatten, unflatten, walk


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Record:
    value: Any
    note: str = "note"


class Tagged(collections.OrderedDict):
    """A mapping of the user's own."""


class Box:
    """A container that only its parser understands; ``label`` is no tensor."""

    def __init__(self, content, label):
        self.content, self.label = content, label


class BoxParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield from struct.content

    def reconstruct(self, original_structure, tensor_iterator):
        return Box([next(tensor_iterator) for _ in original_structure.content], original_structure.label)


@pytest.fixture(autouse=True, scope="module")
def _parser():
    poptorch.registerCustomArgParser(Box, BoxParser())
    yield
    poptorch.registerCustomArgParser(Box, None)


# --- structures ---------------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.bool, torch.uint8]
LAYOUTS = ["plain", "transposed", "strided", "expanded", "0-d"]


@st.composite
def tensors(draw, rows=None):
    """A small tensor; ``rows`` fixes its first dimension."""
    dtype, layout = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))
    values = torch.arange(12) % draw(st.integers(2, 5))
    if layout == "0-d" and rows is None:
        return values[1].to(dtype)
    first = rows or draw(st.integers(1, 3))
    base = values.repeat(first)[: first * 4].view(first, 4).to(dtype)
    if layout == "transposed":
        return base.t().contiguous().t()
    if layout == "strided":
        return base[:, ::2]
    if layout == "expanded":
        return base[:, :1].expand(first, 3)
    return base


constants = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False, width=32), st.text(max_size=3)
)
keys = st.one_of(st.text("abcz", min_size=1, max_size=3), st.integers(0, 9))


def containers(children):
    """One level of nesting."""
    lists = st.lists(children, max_size=3)
    return st.one_of(
        lists,
        lists.map(tuple),
        st.dictionaries(keys, children, max_size=3),
        st.dictionaries(keys, children, max_size=3).map(collections.OrderedDict),
        st.dictionaries(keys, children, max_size=2).map(Tagged),
        st.builds(Pair, children, children),
        st.builds(Record, children, st.text(max_size=2)),
    )


def structures(leaf):
    boxes = st.builds(Box, st.lists(leaf, min_size=1, max_size=2), st.text(max_size=2))
    return st.recursive(st.one_of(leaf, constants, boxes), containers, max_leaves=6)


NARROW = {torch.float64: torch.float32, torch.int64: torch.int32}


def assert_same(actual, expected):
    """Types, keys in order, constants and values agree, after narrowing."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        assert actual.shape == expected.shape
        assert actual.dtype is NARROW.get(expected.dtype, expected.dtype)
        assert actual.is_contiguous()
        assert torch.equal(actual.to(expected.dtype), expected)
        return
    assert type(actual) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, (Record, Box)):
        assert_same(vars(actual), vars(expected))
    else:
        assert actual == expected


def changed(value):
    """The structure with an operation applied to every tensor, as ``forward`` would write it."""
    found, structure = flatten(value)
    return unflatten(structure, [(t.logical_not() if t.dtype is torch.bool else t + 1) for t in found])


class Model(nn.Module):
    """Returns its arguments, passed through and changed, and one of the tensors twice."""

    def forward(self, *args, **kwargs):
        result = changed((args, kwargs))
        found, _ = flatten(result)
        return {"changed": result, "same": args, "twice": [found[0], found[0]] if found else None, "nothing": None}


quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@quick
@given(
    args=st.lists(structures(tensors()), max_size=3),
    kwargs=st.dictionaries(st.sampled_from("abc"), structures(tensors()), max_size=2),
)
def test_arguments_and_results_as_in_eager(args, kwargs):
    model = Model()
    executor = poptorch.inferenceModel(model)
    before = copy.deepcopy(args)
    for _ in range(2):
        assert_same(executor(*args, **kwargs), model(*args, **kwargs))
    found, wanted = flatten(args)[0], flatten(before)[0]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@quick
@given(args=st.lists(structures(tensors(rows=4)), min_size=1, max_size=2))
def test_every_tensor_is_divided_into_micro_batches(args):
    """With four iterations, row *i* of each result belongs to row *i* of its argument."""
    model = Model()
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(4))
    result, expected = executor(*args), model(*args)
    assert_same(result["same"], expected["same"])
    assert_same(result["changed"], expected["changed"])


@quick
@given(args=st.lists(structures(tensors()), min_size=1, max_size=2), data=st.data())
def test_a_changed_tensor_is_noticed_and_named(args, data):
    found, structure = flatten(tuple(args))
    if not found:
        return
    executor = poptorch.inferenceModel(Model())
    first = executor(*args)
    index = data.draw(st.integers(0, len(found) - 1))
    path = [place for place, leaf in walk(structure) if not hasattr(leaf, "value")][index]
    position, rest = path[1:].split("]", 1)
    other = list(found)
    other[index] = torch.ones(7, 7, 7, dtype=found[index].dtype)
    with pytest.raises(poptorch.Error) as error:
        executor(*unflatten(structure, other))
    assert f"Shape mismatch for *args[{position}]{rest}: expected" in str(error.value)
    assert_same(executor(*args), first)


@quick
@given(
    mapping=st.dictionaries(st.text("abcdef", min_size=1, max_size=2), tensors(), min_size=2, max_size=5),
    data=st.data(),
)
def test_the_order_of_keys_does_not_matter(mapping, data):
    order = data.draw(st.permutations(list(mapping)))
    shuffled = {key: mapping[key] for key in order}
    executor = poptorch.inferenceModel(Model())
    expected = executor({"inner": mapping}, **mapping)
    actual = executor({"inner": shuffled}, **shuffled)
    assert_same(actual["changed"], expected["changed"])


@settings(max_examples=100, deadline=None)
@given(value=structures(tensors()))
def test_flatten_and_unflatten_are_inverse(value):
    found, structure = flatten(value)
    rebuilt = unflatten(structure, found)
    again, _ = flatten(rebuilt)
    assert len(again) == len(found)
    assert all(a is b for a, b in zip(again, found, strict=True))
    assert len(list(walk(structure))) >= len(found)


def test_values_of_a_key_that_is_no_string():
    executor = poptorch.inferenceModel(Model())
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert executor({(1, 2): one, None: two})["changed"][0][0][None].item() == 3


def test_recursive_and_shared_values():
    shared = torch.ones(2)
    model = Model()
    executor = poptorch.inferenceModel(model)
    assert_same(executor([shared, (shared,)], shared), model([shared, (shared,)], shared))
