"""Callables that reach an overload are looked for once, however many programs are compiled."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from poptorch.host.interpret import bindings
from poptorch.host.interpret.bindings import Bindings


def node_of_a_sum(dtype: torch.dtype) -> fx.Node:
    traced = make_fx(torch.add, tracing_mode="fake")(torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype))
    (node,) = (node for node in traced.graph.nodes if node.op == "call_function")
    return node


def test_another_program_finds_what_the_first_one_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_known", {})
    tried = []

    def reaches(candidate: object, node: fx.Node) -> bool:
        tried.append(node.meta["val"].dtype)
        return True

    monkeypatch.setattr(bindings, "_reaches", reaches)
    found = [Bindings().find(node_of_a_sum(torch.float32)) for _ in range(2)]
    assert found == [torch._C._VariableFunctions.add] * 2
    assert tried == [torch.float32]
    Bindings().find(node_of_a_sum(torch.int64))
    assert tried == [torch.float32, torch.int64], "arguments of other types may reach something else"
