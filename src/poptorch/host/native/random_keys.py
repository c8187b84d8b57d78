"""Random operations as custom operators with their key as a tensor operand, for code that cannot pass generators.

``aten::bernoulli.p(self, p)`` on stream 3 becomes ``poptorch_random::bernoulli_p(random_key, 3, self, p)``. It seeds
a generator from key and stream exactly as the interpret level does, so that both levels draw the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from poptorch.executable.groups import group_size_of
from poptorch.host.interpret.generators import with_generator
from poptorch.host.native.derived import DerivedOperators
from poptorch.program.opinfo import info_of
from poptorch.program.program import Program
from poptorch.runtime.values.random_source import RandomSource


def _register(operators: DerivedOperators, overload: Any) -> Any:
    name = re.sub(r"\W", "_", overload.name().removeprefix("aten::"))
    function = with_generator(overload)

    def draw(random_key: torch.Tensor, random_stream: int, *args: Any, **kwargs: Any) -> Any:
        return function(*args, generator=RandomSource.of_tensor(random_key)(random_stream), **_original(kwargs))

    def describe(random_key: torch.Tensor, random_stream: int, *args: Any, **kwargs: Any) -> Any:
        return overload(*args, **_original(kwargs))

    return operators.define(name, _signature(overload), draw, describe)


_keyed = DerivedOperators("poptorch_random", _register)


def keyed(overload: Any) -> Any:
    """The custom operator for one random ATen overload."""
    return _keyed.of(overload)


def _signature(overload: Any) -> str:
    """The overload's own signature with the key in front and without the generator."""
    schema = str(overload._schema)
    arguments = schema[schema.index("(") :]
    arguments = re.sub(r",\s*\*?,?\s*Generator\? generator=None", _keep_star, arguments)
    arguments = re.sub(r"\*\s*,\s*\)", ")", arguments).replace(", *)", ")")
    arguments = re.sub(_KEYWORD, rf"\1{_RENAMED}", arguments)
    head = "(Tensor random_key, SymInt random_stream"
    return head + (arguments[1:] if arguments.startswith("()") else ", " + arguments[1:])


_KEYWORD, _RENAMED = r"(\w\??\s+)from\b", "from_"
"""``uniform(Tensor self, float from=0, ...)``: torch cannot describe a function in Python with a word of the
language as the name of an argument, and its compiler asks for the description."""


def _renamed(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {_RENAMED if name == "from" else name: value for name, value in kwargs.items()}


def _original(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"from" if name == _RENAMED else name: value for name, value in kwargs.items()}


def _keep_star(match: re.Match[str]) -> str:
    return ", *" if "*" in match.group(0) else ""


def fake_key(program: Program) -> torch.Tensor:
    """What the key of a program looks like: :meth:`RandomSource.as_tensor`."""
    size = group_size_of(program)
    return torch.empty(() if size == 1 else (size,), dtype=torch.int64)


def with_keys(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph with one more placeholder at the end, the key, and all random operations drawing by it."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    for node in placeholders:
        values[node] = graph.node_copy(node, lambda n: values[n])
    key = graph.placeholder("random_key")
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            continue
        stream = info_of(node).random
        if stream is not None and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            args = fx.node.map_arg(node.args, lambda n: values[n])
            kwargs = fx.node.map_arg({k: v for k, v in node.kwargs.items() if k != "generator"}, lambda n: values[n])
            values[node] = graph.call_function(keyed(node.target), (key, stream, *args), _renamed(kwargs))
            values[node].meta = dict(node.meta)
        else:
            values[node] = graph.node_copy(node, lambda n: values[n])
    return fx.GraphModule(graph_module, graph)
