"""``CPU``: leaving the program for Python and coming back."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch

import poptorch
from closeness import assert_close_sums
from poptorch.ops import host
from poptorch.ops.host import HOST_CALL


def test_outside_of_a_model_the_function_is_called() -> None:
    assert poptorch.CPU(lambda x, y: x + y, "sum")(torch.ones(1), torch.ones(1)).item() == 2


def test_a_call_is_one_operation_with_actual_values(capture) -> None:
    seen: list[list[float]] = []

    def host(x: torch.Tensor) -> torch.Tensor:
        assert x.device.type == "cpu"
        seen.append(x.tolist())
        return torch.from_numpy(x.numpy().cumsum())  # not an operation that any tracer knows

    op = poptorch.CPU(host, "cumsum")
    graph = capture(lambda x: op(x * 2) + 1, torch.ones(3))
    assert seen == [[0.0, 0.0, 0.0]]
    assert [node.target for node in graph.graph.nodes].count(HOST_CALL) == 1
    assert graph(torch.tensor([1.0, 2.0, 3.0])).tolist() == [3.0, 7.0, 13.0]
    assert seen[1:] == [[2.0, 4.0, 6.0]]


def test_results_keep_their_number(capture) -> None:
    several = poptorch.CPU(lambda x: (x + 1, x.sum()), "several")
    graph = capture(lambda x: [type(several(x)) is list, *several(x)], torch.ones(2))
    is_list, first, second = graph(torch.ones(2))
    assert is_list
    assert first.tolist() == [2.0, 2.0]
    assert second.item() == 2.0
    single = poptorch.CPU(lambda x: x.max(), "single")
    assert capture(lambda x: single(x), torch.ones(2))(torch.tensor([1.0, 5.0])).item() == 5.0


def test_internal_attributes() -> None:
    op = poptorch.CPU(lambda x: x * 2, "attributes")
    op.inputs = [torch.ones(2)]
    op.registerPersistentData()
    op.execute()
    assert op.outputs[0].tolist() == [2.0, 2.0]


def test_learned_shapes(capture) -> None:
    op = poptorch.CPU(lambda x: x.sum(0), "shapes")
    capture(lambda x: op(x), torch.ones(2, 3))
    assert op.in_shapes == [torch.Size([2, 3])]
    assert op.out_shapes == [torch.Size([3])]


def test_a_module_is_frozen() -> None:
    layer = torch.nn.Linear(2, 2)
    poptorch.CPU(layer, "frozen")
    assert not any(parameter.requires_grad for parameter in layer.parameters())


def test_exceptions_come_back_as_they_are(capture) -> None:
    class MyError(Exception):
        pass

    def host(x: torch.Tensor) -> torch.Tensor:
        if x.any():
            raise MyError("at run time")
        return x

    op = poptorch.CPU(host, "raises")
    graph = capture(lambda x: op(x), torch.ones(1))
    with pytest.raises(MyError, match="at run time"):
        graph(torch.ones(1))
    assert graph(torch.zeros(1)).item() == 0.0


def test_inputs_are_copies_and_results_are_fresh(capture) -> None:
    def host(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x

    op = poptorch.CPU(host, "in place")
    x = torch.ones(2)
    result = capture(lambda v: op(v), x)(x)
    assert result.tolist() == [2.0, 2.0]
    assert x.tolist() == [1.0, 1.0]


def test_no_gradient_passes(capture) -> None:
    def step(x: torch.Tensor) -> Any:
        x = x.requires_grad_()
        y = poptorch.CPU(lambda v: v * 5, "detached")(x)
        assert not y.requires_grad
        return torch.autograd.grad((y * x).sum(), x)[0]

    assert capture(step, torch.ones(2))(torch.ones(2)).tolist() == [5.0, 5.0]


def test_the_first_registration_of_an_id_wins_in_one_capture(capture) -> None:
    first, second = poptorch.CPU(lambda x: x + 1, "twice"), poptorch.CPU(lambda x: x + 2, "twice")
    graph = capture(lambda x: [first(x), second(x)], torch.zeros(1))
    assert [value.item() for value in graph(torch.zeros(1))] == [1.0, 1.0]
    # another model may use the ID for something else
    assert capture(lambda x: second(x), torch.zeros(1))(torch.zeros(1)).item() == 2.0
    assert graph(torch.zeros(1))[0].item() == 1.0


def test_poptorch_operations_inside_are_native(capture) -> None:
    def host(x: torch.Tensor) -> torch.Tensor:
        assert not poptorch.isRunningOnIpu()
        return poptorch.ipu_print_tensor(poptorch.nop(x)) + 1

    op = poptorch.CPU(host, "native inside")
    graph = capture(lambda x: op(x) * 2, torch.zeros(1))
    operators = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert [op for op in operators if getattr(op, "namespace", "") == "poptorch"] == [HOST_CALL]
    assert graph(torch.zeros(1)).item() == 2.0


def test_host_operations_do_not_nest(capture) -> None:
    inner = poptorch.CPU(lambda x: x, "inner")
    outer = poptorch.CPU(lambda x: inner(x), "outer")
    with pytest.raises(poptorch.Error, match="CPU ops must not overlap"):
        capture(lambda x: outer(x), torch.ones(1))
    assert capture(lambda x: inner(x), torch.ones(1))(torch.ones(1)).item() == 1.0


def test_calls_from_several_threads_take_turns(capture) -> None:
    active, most = 0, 0

    def host(x: torch.Tensor) -> torch.Tensor:
        nonlocal active, most
        active += 1
        most = max(most, active)
        threading.Event().wait(0.002)
        active -= 1
        return x + 1

    op = poptorch.CPU(host, "turns")
    graph = capture(lambda x: op(x), torch.ones(1))
    threads = [threading.Thread(target=graph, args=(torch.ones(1),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_changed_shapes_are_reported(capture) -> None:
    op = poptorch.CPU(lambda x: x[: int(x.sum()) + 1], "changing")
    graph = capture(lambda x: op(x), torch.ones(3))
    with pytest.raises(poptorch.Error, match="Shapes and types are fixed at compilation"):
        graph(torch.ones(3))


def test_an_unknown_operation_says_what_to_do() -> None:
    with pytest.raises(poptorch.Error, match=r"poptorch.CPU\(function, ID='never'\)"):
        HOST_CALL([torch.ones(1)], "never", "[]")


def test_wrong_arguments(capture) -> None:
    with pytest.raises(poptorch.Error, match="cannot be called"):
        poptorch.CPU(3, "x")
    with pytest.raises(poptorch.Error, match="ID must be a string"):
        poptorch.CPU(print, 3)
    with pytest.raises(poptorch.Error, match="is not supported"):
        capture(lambda x: poptorch.CPU(lambda v: v, "arg")(3), torch.ones(1))
    with pytest.raises(poptorch.Error, match="must return a tensor"):
        capture(lambda x: poptorch.CPU(lambda v: 3, "ret")(x), torch.ones(1))


def test_unused_calls_are_kept(capture) -> None:
    calls = []

    def host(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x

    def forward(x: torch.Tensor) -> torch.Tensor:
        poptorch.CPU(host, "unused")(x)
        return x + 1

    graph = capture(forward, torch.ones(1))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    graph(torch.ones(1))
    assert len(calls) == 2


class WithHost(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.host = torch.nn.Linear(2, 2)
        self.op = poptorch.CPU(self.host, "copied linear")

    def forward(self, x: torch.Tensor) -> Any:
        return self.op(x) + 1


def test_a_copy_of_a_model_calls_its_own_function() -> None:
    torch.manual_seed(0)
    first = WithHost()
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.host.weight.add_(1.0)
    x = torch.ones(1, 2)
    for model in (first, second):
        assert_close_sums(poptorch.inferenceModel(model)(x), model.host(x).detach() + 1, terms=3)


def test_a_model_from_a_file_brings_its_functions_along(tmp_path) -> None:
    torch.manual_seed(0)
    model = WithHost()
    x = torch.ones(1, 2)
    path = str(tmp_path / "model.poptorch")
    executor = poptorch.inferenceModel(model)
    expected = executor(x)
    executor.save(path)
    known = dict(host._functions)
    host._functions.clear()  # as in another process
    try:
        torch.testing.assert_close(poptorch.load(path)(x), expected)
    finally:
        host._functions.update(known)
