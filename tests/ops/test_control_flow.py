"""``for_loop`` and ``cond``, captured, replayed and differentiated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums
from poptorch.ambient import CaptureSettings
from poptorch.ops import control_flow
from poptorch.ops.subgraph import graph_from_text, graph_to_text, subgraphs

BOTH_MODES = pytest.mark.parametrize("mode", ["fake", "real"])


def _operations(graph: Any) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def _agree(capture: Any, function: Any, *inputs: torch.Tensor, mode: str = "fake") -> None:
    """The captured program and plain PyTorch give the same results."""
    graph = capture(function, *[x.clone() for x in inputs], mode=mode)
    found, expected = graph(*inputs), function(*[x.clone() for x in inputs])
    for a, b in zip(found, expected, strict=True):
        assert_close_sums(a, b.detach(), terms=64)


# ---- loops -------------------------------------------------------------------------------------------------------


def test_ten_thousand_iterations_are_one_operation(capture) -> None:
    calls = []

    def body(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 0.5 + 1

    graph = capture(lambda x: poptorch.for_loop(10_000, body, [x]), torch.zeros(2))
    assert len(calls) == 1
    assert _operations(graph).count("poptorch.for_loop.default") == 1
    assert len(graph.graph.nodes) < 6
    (result,) = graph(torch.zeros(2))
    assert_close_sums(result, torch.full((2,), 2.0), terms=2)
    assert len(calls) == 1


@BOTH_MODES
def test_pinned_numbers(capture, mode: str) -> None:
    _agree(capture, lambda x: poptorch.for_loop(10, lambda v: x * 0 + v * 2, [x]), torch.ones(1), mode=mode)
    assert poptorch.for_loop(10, lambda x: x * 2, [torch.ones(1)])[0].item() == 1024

    def recurrence(x, y, z, w):
        return x * y, y + z, x * w, w + 1

    inputs = [torch.tensor([float(i)]) for i in range(1, 5)]
    _agree(capture, lambda *v: poptorch.for_loop(6, recurrence, list(v)), *inputs, mode=mode)


@BOTH_MODES
def test_in_place_changes_stay_inside(capture, mode: str) -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        def body(y: torch.Tensor) -> torch.Tensor:
            y += 1
            y += 1
            y[0] *= 2
            return y

        x.mul_(3)
        (y,) = poptorch.for_loop(3, body, [x])
        x.add_(1)
        return [x, y]

    graph = capture(forward, torch.ones(2), mode=mode)
    x, y = graph(torch.ones(2))
    assert x.tolist() == [4.0, 4.0]
    assert y.tolist() == [((3 + 2) * 2 + 2) * 2 * 2 + 4, 9.0]


def test_outer_tensors_layers_and_constants_may_be_used(capture) -> None:
    weight = torch.randn(3, 3)

    def forward(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        shift = w.sum(0)

        def body(v: torch.Tensor, n: torch.Tensor):
            v = F.linear(F.linear(v, w), w) + shift + torch.tensor([1.0, 2.0, 3.0])
            return v.tanh(), n + 1

        return poptorch.for_loop(4, body, [x, torch.zeros((), dtype=torch.int32)])

    _agree(capture, forward, torch.randn(2, 3), weight)


def test_a_changed_outer_tensor_is_a_copy(capture) -> None:
    def forward(x: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
        def body(v: torch.Tensor) -> torch.Tensor:
            other.add_(1)
            return v + other

        return [*poptorch.for_loop(2, body, [x]), other]

    y, other = capture(forward, torch.zeros(1), torch.zeros(1))(torch.zeros(1), torch.zeros(1))
    assert (y.item(), other.item()) == (2.0, 0.0)


def test_zero_iterations_and_swapped_results(capture) -> None:
    x, y = torch.ones(2), torch.zeros(2)
    graph = capture(lambda a, b: poptorch.for_loop(0, lambda p, q: (q, p), [a, b]), x, y)
    a, b = graph(x, y)
    assert torch.equal(a, x)
    assert a.data_ptr() != x.data_ptr()
    a, b = capture(lambda a, b: poptorch.for_loop(3, lambda p, q: (q, p), [a, b]), x, y)(x, y)
    assert torch.equal(a, y)
    assert torch.equal(b, x)
    assert {a.data_ptr(), b.data_ptr()}.isdisjoint({x.data_ptr(), y.data_ptr()})


@BOTH_MODES
def test_gradients_of_loops(capture, mode: str) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()

        def body(v: torch.Tensor, n: torch.Tensor, total: torch.Tensor):
            v = torch.tanh(v @ w) + 0
            v += 0.5
            return v, n + 1, total + v.sum() * w.mean()

        start = [x, torch.zeros((), dtype=torch.int32), torch.zeros(())]
        y, n, total = poptorch.for_loop(4, body, start)
        loss = y.square().sum() + total
        return [loss, n, *torch.autograd.grad(loss, [x, w])]

    inputs = torch.randn(2, 3), torch.randn(3, 3)
    graph = capture(step, *inputs, mode=mode, training=True)
    assert "poptorch.for_loop_backward.default" in _operations(graph)
    _agree(capture, step, *inputs, mode=mode)


def test_gradients_of_nested_loops(capture) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        w = w.detach().requires_grad_()

        def inner(v: torch.Tensor) -> torch.Tensor:
            return torch.sin(v * w)

        def outer(v: torch.Tensor) -> torch.Tensor:
            return poptorch.for_loop(2, inner, [v + 1])[0] * w

        (y,) = poptorch.for_loop(3, outer, [x])
        return [y, *torch.autograd.grad(y.sum(), [w])]

    _agree(capture, step, torch.randn(3), torch.randn(3))


def test_random_numbers_are_the_same_in_backward(capture) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        w = w.detach().requires_grad_()
        (y,) = poptorch.for_loop(3, lambda v: F.dropout(v * w, 0.5) + v, [x])
        return [y, *torch.autograd.grad(y.sum(), [w])]

    inputs = torch.rand(50) + 1, torch.rand(50) + 1
    graph = capture(step, *inputs)
    assert "poptorch.random_for_loop.default" in _operations(graph)
    torch.manual_seed(3)
    found = graph(*inputs)
    torch.manual_seed(3)
    for a, b in zip(found, step(*inputs), strict=True):
        assert_close_sums(a, b.detach(), terms=64)


def test_prints_in_a_body_print_once_per_iteration(capture, capfd) -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        (y,) = poptorch.for_loop(2, lambda v: poptorch.ipu_print_tensor(v * v, "v"), [x])
        return [y, *torch.autograd.grad(y.sum(), [x])]

    graph = capture(step, torch.ones(1))
    capfd.readouterr()
    value, gradient = graph(torch.full((1,), 2.0))
    assert (value.item(), gradient.item()) == (16.0, 32.0)
    titles = [line.split(":")[0] for line in capfd.readouterr().err.splitlines()]
    assert titles == ["v", "v", "v_gradient", "v_gradient"]


def test_losses_inside_a_body_mark_nothing() -> None:
    from poptorch import ambient

    with ambient.capturing(ambient.CaptureContext()) as context:
        poptorch.for_loop(2, lambda v: poptorch.identity_loss(v, "none"), [torch.ones(2)])
    assert context is not None
    assert context.losses == []


@pytest.mark.parametrize(
    ("inputs", "phrase"),
    [
        ((torch.ones(1),), r"\(Object is not list\)"),
        (torch.ones(1), r"\(Object is not list\)"),
        ([torch.ones(1), 2], r"\(Object contained in list at index 1 is not torch.tensor\)"),
    ],
)
def test_inputs_must_be_a_list_of_tensors(inputs: Any, phrase: str) -> None:
    with pytest.raises(ValueError, match=phrase):
        poptorch.for_loop(2, lambda *x: x, inputs)


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        (lambda x: (x, x), "takes 1 tensors but returns 2"),
        (lambda x: x.sum(), "shapes and types must stay the same"),
        (lambda x: x.half(), "shapes and types must stay the same"),
        (lambda x: 3, "must return a tensor"),
    ],
)
def test_bodies_must_return_what_they_take(capture, captured: bool, body: Any, phrase: str) -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return poptorch.for_loop(2, body, [x])

    with pytest.raises(poptorch.Error, match=phrase):
        capture(run, torch.ones(2)) if captured else run(torch.ones(2))


@pytest.mark.parametrize("count", [-1, 2.0, True, torch.tensor(3)])
def test_the_count_is_an_integer(count: Any) -> None:
    with pytest.raises(ValueError, match="count must be an integer"):
        poptorch.for_loop(count, lambda x: x, [torch.ones(1)])


def test_an_exception_in_the_body_passes(capture) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(lambda x: poptorch.for_loop(2, body, [x]), torch.ones(1))


# ---- branches ----------------------------------------------------------------------------------------------------


@BOTH_MODES
def test_the_branch_is_chosen_at_run_time(capture, mode: str) -> None:
    def forward(c: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return poptorch.cond(c, lambda a, b: [a + b, a], [x, y], lambda: (x * y, y), [])

    inputs = torch.randn(3), torch.randn(3)
    graph = capture(forward, torch.tensor([True]), *inputs, mode=mode)
    assert _operations(graph).count("poptorch.cond.default") == 1
    for condition in (torch.tensor([True]), torch.tensor([False])):
        for a, b in zip(graph(condition, *inputs), forward(condition, *inputs), strict=True):
            assert torch.equal(a, b)


def test_nested_branches_and_the_same_body_twice(capture) -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        def shrink(v: torch.Tensor) -> list[torch.Tensor]:
            return poptorch.cond(v.sum() > 10, lambda a: a / 10, [v], lambda a: a * x, [v])

        return poptorch.cond(x.sum() > 0, shrink, [x], shrink, [-x])

    graph = capture(forward, torch.ones(2))
    for x in (torch.tensor([20.0, 1.0]), torch.tensor([1.0, 1.0]), torch.tensor([-20.0, 1.0])):
        assert torch.equal(graph(x)[0], forward(x)[0])


def test_values_enter_branches_by_copy(capture) -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        def body(a: torch.Tensor) -> torch.Tensor:
            a.add_(5)
            y.mul_(2)
            return a + y

        return [*poptorch.cond(x.sum() > 0, body, [x], lambda: y, []), x, y]

    z, x, y = capture(forward, torch.ones(1), torch.ones(1))(torch.ones(1), torch.ones(1))
    assert (z.item(), x.item(), y.item()) == (8.0, 1.0, 1.0)


def test_gradients_of_branches(capture) -> None:
    def step(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> list[torch.Tensor]:
        x, w, u = (t.detach().requires_grad_() for t in (x, w, u))
        scaled = x * 3
        (y,) = poptorch.cond(
            x.sum() > 0, lambda a: torch.sin(a @ w), [scaled], lambda a, b: a.exp() * b + u, [scaled, x]
        )
        return [y, *torch.autograd.grad(y.square().sum(), [x, w, u], allow_unused=True, materialize_grads=True)]

    w, u = torch.randn(2, 2), torch.randn(2)
    for x in (torch.rand(3, 2), -torch.rand(3, 2)):
        _agree(capture, step, x, w, u)


def test_random_numbers_of_a_branch_are_the_same_in_backward(capture) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        w = w.detach().requires_grad_()
        (y,) = poptorch.cond(
            x.sum() > 0, lambda a: F.dropout(a * w, 0.5), [x], lambda a: F.dropout(a - w, 0.2) * torch.rand(1), [x]
        )
        return [y, *torch.autograd.grad(y.sum(), [w])]

    w = torch.rand(50) + 1
    graph = capture(step, torch.ones(50), w)
    for x in (torch.ones(50), -torch.ones(50)):
        torch.manual_seed(5)
        found = graph(x, w)
        torch.manual_seed(5)
        for a, b in zip(found, step(x, w), strict=True):
            assert_close_sums(a, b.detach(), terms=64)


def test_wrong_branches(capture) -> None:
    x = torch.ones(2)
    with pytest.raises(ValueError, match=r"\(Object is not list\)"):
        poptorch.cond(x.sum() > 0, lambda a: a, x, lambda a: a, [x])
    with pytest.raises(ValueError, match=r"\(Object is not list\)"):
        poptorch.cond(x.sum() > 0, lambda a: a, [x], lambda a: a, (x,))
    with pytest.raises(poptorch.Error, match="one element"):
        poptorch.cond(x > 0, lambda a: a, [x], lambda a: a, [x])
    with pytest.raises(poptorch.Error, match="one element"):
        poptorch.cond(True, lambda a: a, [x], lambda a: a, [x])
    for other in (lambda a: (a, a), lambda a: a.sum(), lambda a: a.int()):
        with pytest.raises(poptorch.Error, match="both bodies must return the same"):
            capture(lambda v, other=other: poptorch.cond(v.sum() > 0, lambda a: a, [v], other, [v]), x)


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("for_loop", lambda x: poptorch.for_loop(2, lambda a: a, [x])),
        ("cond", lambda x: poptorch.cond(x.sum() > 0, lambda a: a, [x], lambda a: a, [x])),
    ],
)
def test_strict_compatibility_keeps_them_out_of_training(capture, function: str, call: Any) -> None:
    strict = CaptureSettings(strict=True)
    with pytest.raises(poptorch.Error, match=rf"poptorch.{function}\(\) is only supported in inference"):
        capture(call, torch.ones(1), training=True, settings=strict)
    capture(call, torch.ones(1), training=False, settings=strict)
    capture(call, torch.ones(1), training=True, settings=CaptureSettings())


# ---- bodies as text ----------------------------------------------------------------------------------------------


def test_the_text_of_a_body_reads_back_as_the_same_graph(capture) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        values, _ = (x.to(torch.float64) * float("inf")).nan_to_num(2.0).sort(descending=True)
        return values.to(torch.float32).contiguous()[..., ::1].masked_fill(x > 0, -float("inf"))

    graph = capture(lambda x: poptorch.for_loop(1, body, [x]), torch.ones(3))
    (node,) = [n for n in graph.graph.nodes if n.target is control_flow.FOR_LOOP]
    (inner,) = subgraphs(node)
    assert graph_to_text(inner) == node.args[3]
    assert str(graph_from_text(graph_to_text(inner))) == str(inner)


def test_loops_run_on_several_threads(capture) -> None:
    from concurrent.futures import ThreadPoolExecutor

    graph = capture(lambda x: poptorch.for_loop(50, lambda v: v + 1, [x]), torch.zeros(4))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: graph(torch.full((4,), float(i)))[0][0].item(), range(40)))
    assert results == [i + 50.0 for i in range(40)]
