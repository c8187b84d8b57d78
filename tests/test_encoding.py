"""Values and graphs as JSON: what goes in comes out, and what cannot go in says so."""

from __future__ import annotations

import json
import math
import operator
from collections import OrderedDict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from closeness import assert_close_sums
from poptorch.encoding import (
    Decoder,
    Encoder,
    NotEncodable,
    from_plain,
    tensor_bytes,
    tensor_from_bytes,
    to_plain,
)

_COMPLEX = st.complex_numbers(allow_nan=False)
KEYS = st.text() | st.integers() | st.booleans() | st.tuples(st.integers())
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False), _COMPLEX),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
    ),
    max_leaves=12,
)


def passed_on(value):
    """The value after a journey through text."""
    return Decoder().decode(json.loads(json.dumps(Encoder().encode(value), allow_nan=False)))


@given(PLAIN)
def test_plain_values(value):
    got = passed_on(value)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        math.inf, torch.float16, torch.strided, torch.channels_last, torch.device("cpu"), slice(1, None, 2),
        torch.Size([2, 3]), torch.ops.aten.add.Tensor, torch.ops.aten.add, torch.ops.poptorch.nop.default,
        operator.getitem,
    ],
    ids=str,
)  # fmt: skip
def test_settings_and_operators(value):
    got = passed_on(value)
    assert got == value
    assert type(got) is type(value)


def test_not_a_number():
    assert math.isnan(passed_on(math.nan))


def test_immutable_collections_become_plain_ones():
    graph = fx.Graph()
    node = graph.call_function(torch.ops.aten.permute.default, (graph.placeholder("x"), [1, 0]))
    got = passed_on(node.args[1])
    assert got == [1, 0]
    assert type(got) is list


@pytest.mark.parametrize("value", [object(), print, lambda x: x, namedtuple("Pair", "a b")(1, 2), {1}, torch.ones(1)])
def test_other_things_are_refused(value):
    with pytest.raises(NotEncodable, match=type(value).__qualname__):
        Encoder().encode([value])


def test_unknown_entries_are_refused():
    with pytest.raises(NotEncodable, match="unknown kind 'decode'"):
        Decoder().decode({"decode": []})


def example_graph() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("input_0")
    pair = graph.call_function(torch.ops.aten.var_mean.correction, (x, [0]), {"correction": 0.5})
    first = graph.call_function(operator.getitem, (pair, 0))
    total = graph.call_function(torch.ops.aten.cat.default, ([first, first],))
    graph.output((total, [first], None))
    return graph


def test_graphs():
    graph = example_graph()
    entries = json.loads(json.dumps(Encoder().encode_graph(graph)))
    got = Decoder().decode_graph(entries)
    got.lint()
    assert str(got) == str(graph)
    assert Encoder().encode_graph(got) == entries
    x = torch.arange(6.0).reshape(3, 2)
    ours, theirs = (fx.GraphModule({}, g)(x) for g in (got, graph))
    assert_close_sums(ours, theirs, terms=8)


def test_a_graph_with_state_is_refused():
    graph = fx.Graph()
    graph.output(graph.get_attr("weight"))
    with pytest.raises(NotEncodable, match=r"a graph with .*weight"):
        Encoder().encode_graph(graph)


def test_a_node_of_another_graph_is_refused():
    graph = example_graph()
    with pytest.raises(NotEncodable, match="Node"):
        Encoder().encode(next(iter(graph.nodes)))


def test_tensors_apart():
    tensors = []
    value = {"a": [torch.ones(2), 1], 3: (torch.zeros(1), None)}
    entry = json.loads(json.dumps(to_plain(value, tensors)))
    got = from_plain(entry, tensors)
    assert got["a"][0] is tensors[0] is value["a"][0]
    assert got[3] == (tensors[1], None)
    with pytest.raises(NotEncodable, match="object"):
        to_plain([object()], [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_bytes_of_tensors(dtype, shape):
    tensor = torch.ones(shape).to(dtype)
    got = tensor_from_bytes(tensor_bytes(tensor), dtype, shape)
    assert torch.equal(got, tensor)
    assert got.dtype is dtype


def test_bytes_are_in_rows():
    tensor = torch.arange(6).reshape(2, 3)
    assert tensor_bytes(tensor.t()) == tensor_bytes(tensor.t().contiguous()) != tensor_bytes(tensor)
