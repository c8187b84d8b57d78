"""``for_loop`` and ``cond``: loops and branches that the compiled program decides at run time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops._library import define, separate
from poptorch.ops.bodies import Kind, RecordedBody, as_tensors, kind_of, may_need_gradient, record
from poptorch.ops.subgraph import is_random, runnable

_RANDOM = [torch.Tag.nondeterministic_seeded]


def _empty_like(tensor: torch.Tensor, *leading: int) -> torch.Tensor:
    return tensor.new_empty((*leading, *tensor.shape))


# ---- loops -------------------------------------------------------------------------------------------------


def _loop(
    state: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    count: int,
    body: str,
    backward_body: str,
    saved: int,
    differentiable: Sequence[int],
) -> list[torch.Tensor]:
    """The final state; with a backward body also each iteration's state and saved values, stacked."""
    function, size = runnable(body), len(state)
    values = list(state)
    stashes: list[torch.Tensor] = []
    for iteration in range(count):
        outputs = function(*values, *captured)
        if backward_body:
            kept = [*values, *outputs[size:]]
            stashes = stashes or [_empty_like(tensor, count) for tensor in kept]
            for stash, tensor in zip(stashes, kept, strict=True):
                stash[iteration].copy_(tensor)
        values = list(outputs[:size])
    if backward_body and count == 0:
        stashes = _loop_shapes(state, captured, count, body, backward_body, saved, differentiable)[size:]
    return [*separate(values, [*state, *captured]), *stashes]


def _loop_shapes(
    state: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    count: int,
    body: str,
    backward_body: str,
    saved: int,
    differentiable: Sequence[int],
) -> list[torch.Tensor]:
    final = [_empty_like(tensor) for tensor in state]
    if not backward_body:
        return final
    extra = runnable(body)(*state, *captured)[len(state) :] if saved else ()
    return [*final, *(_empty_like(tensor, count) for tensor in (*state, *extra))]


def _save_loop(ctx: Any, inputs: Any, output: Any) -> None:
    state, captured, ctx.count, _, ctx.backward_body, _, ctx.differentiable = inputs
    ctx.size = len(state)
    ctx.floating = [may_need_gradient(tensor) for tensor in state]
    ctx.captured = len(captured)
    ctx.save_for_backward(*captured, *output[ctx.size :])


def _loop_backward(ctx: Any, gradients: Sequence[torch.Tensor]) -> Any:
    tensors = list(ctx.saved_tensors)
    captured, stashes = tensors[: ctx.captured], tensors[ctx.captured :]
    final = [g for g, floating in zip(gradients[: ctx.size], ctx.floating, strict=True) if floating]
    found = iter(LOOP_BACKWARD(final, stashes, captured, ctx.count, ctx.backward_body, ctx.size, ctx.differentiable))
    by_position = {position: next(found) for position in ctx.differentiable}
    state = [by_position.get(position) for position in range(ctx.size)]
    outer = [by_position.get(ctx.size + position) for position in range(ctx.captured)]
    return state, outer, None, None, None, None, None


def _loop_gradients(
    gradients: Sequence[torch.Tensor],
    stashes: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    count: int,
    backward_body: str,
    size: int,
    differentiable: Sequence[int],
) -> list[torch.Tensor]:
    """Walk the iterations backwards; gradients of the state are handed on, those of outer tensors add up."""
    function = runnable(backward_body)
    of_state = sum(position < size for position in differentiable)
    current = list(gradients)
    totals = [torch.zeros_like(captured[position - size]) for position in differentiable[of_state:]]
    for iteration in reversed(range(count)):
        at = [stash[iteration] for stash in stashes]
        found = function(*at[:size], *captured, *at[size:], *current)
        current = list(found[:of_state])
        for total, gradient in zip(totals, found[of_state:], strict=True):
            total += gradient
    return separate([*current, *totals], [*gradients, *stashes, *captured])


def _loop_gradient_shapes(
    gradients: Sequence[torch.Tensor],
    stashes: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    count: int,
    backward_body: str,
    size: int,
    differentiable: Sequence[int],
) -> list[torch.Tensor]:
    like_state = [stash.new_empty(stash.shape[1:]) for stash in stashes[:size]]
    like = [*like_state, *(_empty_like(tensor) for tensor in captured)]
    return [like[position] for position in differentiable]


_LOOP_ARGUMENTS = (
    "(Tensor[] state, Tensor[] captured, int count, str body, str backward_body, int saved, int[] "
    "differentiable) -> Tensor[]"
)
FOR_LOOP = define("for_loop" + _LOOP_ARGUMENTS, _loop, _loop_shapes, backward=_loop_backward, setup_context=_save_loop)
RANDOM_FOR_LOOP = define(
    "random_for_loop" + _LOOP_ARGUMENTS,
    _loop,
    _loop_shapes,
    backward=_loop_backward,
    setup_context=_save_loop,
    tags=_RANDOM,
)
LOOP_BACKWARD = define(
    "for_loop_backward(Tensor[] gradients, Tensor[] stashes, Tensor[] captured, int count, str "
    "backward_body, int size, int[] differentiable) -> Tensor[]",
    _loop_gradients,
    _loop_gradient_shapes,
)


def for_loop(count: int, body: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run ``body`` ``count`` times; the results of one iteration are the arguments of the next.

    The body takes and returns as many tensors as there are inputs, of the same shapes and types. It receives
    copies, may use outer tensors and layers, and is compiled once, however large ``count`` is.

    >>> for_loop(10, lambda x: x * 2, [torch.ones(1)])
    [tensor([1024.])]
    """
    _require_list(inputs, "for_loop", "inputs")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"poptorch.for_loop: count must be an integer that is not negative, not {count!r}.")
    context = ambient.current()
    if context is None:
        return _loop_in_python(count, body, inputs)
    refuse_if_strict(context, "for_loop")
    with_gradient = torch.is_grad_enabled()
    recorded = record(
        body, inputs, "for_loop", [may_need_gradient(tensor) for tensor in inputs] if with_gradient else None
    )
    _check_state(inputs, recorded.results)
    needed = with_gradient and any(tensor.requires_grad for tensor in (*inputs, *recorded.captured))
    if with_gradient and not needed:
        recorded = dataclasses.replace(recorded, backward="", saved=0, differentiable=[])
    operator = RANDOM_FOR_LOOP if is_random(recorded.forward) else FOR_LOOP
    results = operator(
        list(inputs),
        ready(recorded),
        count,
        recorded.forward,
        recorded.backward,
        recorded.saved,
        recorded.differentiable,
    )
    return list(results[: len(inputs)])


def _loop_in_python(count: int, body: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    values = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        results = as_tensors(body(*values), "for_loop")
        _check_state(inputs, [kind_of(tensor) for tensor in results])
        values = results
    return values


def _check_state(inputs: Sequence[torch.Tensor], results: Sequence[Kind]) -> None:
    if len(inputs) != len(results):
        raise createPoptorchError(
            f"poptorch.for_loop: the body takes {len(inputs)} tensors but returns {len(results)}; it must "
            "return as many as it takes."
        )
    for index, (before, after) in enumerate(zip(map(kind_of, inputs), results, strict=True)):
        if before != after:
            raise createPoptorchError(
                f"poptorch.for_loop: tensor {index} enters the body as {before[0]} {before[1]} and leaves it as "
                f"{after[0]} {after[1]}; shapes and types must stay the same."
            )


# ---- branches ----------------------------------------------------------------------------------------------


def _branch(
    condition: torch.Tensor,
    then_inputs: Sequence[torch.Tensor],
    else_inputs: Sequence[torch.Tensor],
    then_body: str,
    else_body: str,
    then_backward_body: str,
    else_backward_body: str,
    then_differentiable: Sequence[int],
    else_differentiable: Sequence[int],
    saved: Sequence[int],
) -> list[torch.Tensor]:
    """The results of one branch, then the saved values of both: zeros for the branch not taken."""
    taken = bool(condition)
    body, inputs, other = (then_body, then_inputs, 1) if taken else (else_body, else_inputs, 0)
    outputs = list(runnable(body)(*inputs))
    if any(saved):
        results = len(outputs) - saved[1 - other]
        outputs, kept = outputs[:results], outputs[results:]
        other_body, other_inputs = (else_body, else_inputs) if taken else (then_body, then_inputs)
        missing = [torch.zeros(s, dtype=d) for s, d in _saved_shapes(other_body, other_inputs, results)]
        outputs += [*kept, *missing] if taken else [*missing, *kept]
    return separate(outputs, [condition, *then_inputs, *else_inputs])


def _saved_shapes(body: str, inputs: Sequence[torch.Tensor], results: int) -> list[tuple[torch.Size, torch.dtype]]:
    with FakeTensorMode() as mode:
        values = runnable(body)(*[mode.from_tensor(tensor) for tensor in inputs])
    return [(value.shape, value.dtype) for value in values[results:]]


def _branch_shapes(
    condition: torch.Tensor,
    then_inputs: Sequence[torch.Tensor],
    else_inputs: Sequence[torch.Tensor],
    then_body: str,
    else_body: str,
    then_backward_body: str,
    else_backward_body: str,
    then_differentiable: Sequence[int],
    else_differentiable: Sequence[int],
    saved: Sequence[int],
) -> list[torch.Tensor]:
    outputs = runnable(then_body)(*then_inputs)
    results = len(outputs) - saved[0]
    extra = runnable(else_body)(*else_inputs)[results:] if saved[1] else ()
    return [_empty_like(tensor) for tensor in (*outputs, *extra)]


def _save_branch(ctx: Any, inputs: Any, output: Any) -> None:
    condition, then_inputs, else_inputs, _, _, *ctx.settings = inputs
    saved = ctx.settings[-1]
    ctx.counts = len(then_inputs), len(else_inputs)
    ctx.results = len(output) - sum(saved)
    ctx.floating = [may_need_gradient(tensor) for tensor in output[: ctx.results]]
    ctx.save_for_backward(condition, *then_inputs, *else_inputs, *output[ctx.results :])


def _branch_backward(ctx: Any, gradients: Sequence[torch.Tensor]) -> Any:
    condition, *tensors = ctx.saved_tensors
    n, m = ctx.counts
    then_body, else_body, then_positions, else_positions, saved = ctx.settings
    floating = [g for g, is_floating in zip(gradients[: ctx.results], ctx.floating, strict=True) if is_floating]
    found = BRANCH_BACKWARD(
        condition, tensors[:n], tensors[n : n + m], tensors[n + m :], floating, then_body, else_body,
        then_positions, else_positions, saved,
    )  # fmt: skip
    of_then = dict(zip(then_positions, found, strict=False))
    of_else = dict(zip(else_positions, found[len(then_positions) :], strict=True))
    state = None, [of_then.get(i) for i in range(n)], [of_else.get(i) for i in range(m)]
    # torch takes an empty list of integers for a list of tensors, and wants a list for it.
    positions: list[list[None] | None] = [None if listed else [] for listed in (then_positions, else_positions)]
    return *state, None, None, None, None, *positions, None


def _branch_gradients(
    condition: torch.Tensor,
    then_inputs: Sequence[torch.Tensor],
    else_inputs: Sequence[torch.Tensor],
    saved_values: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    then_backward_body: str,
    else_backward_body: str,
    then_differentiable: Sequence[int],
    else_differentiable: Sequence[int],
    saved: Sequence[int],
) -> list[torch.Tensor]:
    """Gradients of the branch that was taken, zeros for the other."""
    then_zeros = [torch.zeros_like(then_inputs[i]) for i in then_differentiable]
    else_zeros = [torch.zeros_like(else_inputs[i]) for i in else_differentiable]
    used = [condition, *then_inputs, *else_inputs, *saved_values, *gradients]
    if condition:
        found = _run_if_any(then_backward_body, [*then_inputs, *saved_values[: saved[0]], *gradients])
        return separate([*found, *else_zeros], used)
    found = _run_if_any(else_backward_body, [*else_inputs, *saved_values[saved[0] :], *gradients])
    return separate([*then_zeros, *found], used)


def _run_if_any(body: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return runnable(body)(*inputs) if body else ()


def _branch_gradient_shapes(
    condition: torch.Tensor,
    then_inputs: Sequence[torch.Tensor],
    else_inputs: Sequence[torch.Tensor],
    saved_values: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    then_backward_body: str,
    else_backward_body: str,
    then_differentiable: Sequence[int],
    else_differentiable: Sequence[int],
    saved: Sequence[int],
) -> list[torch.Tensor]:
    wanted = [*(then_inputs[i] for i in then_differentiable), *(else_inputs[i] for i in else_differentiable)]
    return [_empty_like(tensor) for tensor in wanted]


_BRANCH_ARGUMENTS = (
    "(Tensor condition, Tensor[] then_inputs, Tensor[] else_inputs, str then_body, str else_body, "
    "str then_backward_body, str else_backward_body, int[] then_differentiable, int[] else_differentiable, "
    "int[] saved) -> Tensor[]"
)
COND = define(
    "cond" + _BRANCH_ARGUMENTS, _branch, _branch_shapes, backward=_branch_backward, setup_context=_save_branch
)
RANDOM_COND = define(
    "random_cond" + _BRANCH_ARGUMENTS,
    _branch,
    _branch_shapes,
    backward=_branch_backward,
    setup_context=_save_branch,
    tags=_RANDOM,
)
BRANCH_BACKWARD = define(
    "cond_backward(Tensor condition, Tensor[] then_inputs, Tensor[] else_inputs, Tensor[] saved_values, "
    "Tensor[] gradients, str then_backward_body, str else_backward_body, int[] then_differentiable, "
    "int[] else_differentiable, int[] saved) -> Tensor[]",
    _branch_gradients,
    _branch_gradient_shapes,
)


def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Any],
    then_inps: list[torch.Tensor],
    else_body: Callable[..., Any],
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Run one of two bodies, chosen by the value that ``condition`` has when the program runs.

    Both bodies return the same number of tensors with the same shapes and types; they receive copies of their
    own inputs and may use outer tensors.

    >>> x = torch.tensor([3.0])
    >>> cond(x.sum() > 2, lambda a: a + 1, [x], lambda a: a - 1, [x])
    [tensor([4.])]
    """
    _require_list(then_inps, "cond", "then_inps")
    _require_list(else_inps, "cond", "else_inps")
    if not isinstance(condition, torch.Tensor) or condition.numel() != 1:
        raise createPoptorchError("poptorch.cond: the condition must be a bool tensor with one element.")
    context = ambient.current()
    if context is None:
        body, inputs = (then_body, then_inps) if bool(condition) else (else_body, else_inps)
        return as_tensors(body(*[tensor.clone() for tensor in inputs]), "cond")
    refuse_if_strict(context, "cond")
    then, other = _recorded_branch(then_body, then_inps), _recorded_branch(else_body, else_inps)
    _check_branches(then.results, other.results)
    operator = RANDOM_COND if is_random(then.forward) or is_random(other.forward) else COND
    results = operator(
        condition.reshape(()),
        [*then_inps, *ready(then)],
        [*else_inps, *ready(other)],
        then.forward,
        other.forward,
        then.backward,
        other.backward,
        then.differentiable,
        other.differentiable,
        [then.saved, other.saved],
    )
    return list(results[: len(then.results)])


def _recorded_branch(body: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> RecordedBody:
    wanted = [tensor.requires_grad for tensor in inputs]
    return record(body, inputs, "cond", wanted if torch.is_grad_enabled() else None)


def _check_branches(then: Sequence[Kind], other: Sequence[Kind]) -> None:
    if then != other:
        raise createPoptorchError(
            "poptorch.cond: both bodies must return the same number of tensors with the same shapes and types, "
            f"but the first returns {then} and the second {other}."
        )


# ---- both --------------------------------------------------------------------------------------------------


def ready(recorded: RecordedBody) -> list[torch.Tensor]:
    """The captured tensors as operands; constants enter the outer capture as torch.tensor(...) does."""
    constants = recorded.constants
    outer = recorded.captured[: len(recorded.captured) - constants]
    lifted = recorded.captured[len(recorded.captured) - constants :]
    return [*outer, *(t if isinstance(t, FakeTensor) else torch.ops.aten.lift_fresh_copy(t) for t in lifted)]


def _require_list(inputs: object, function: str, name: str) -> None:
    hint = f"poptorch.{function} expects {name} to be a list of tensors."
    if not isinstance(inputs, list):
        raise ValueError(f"{hint} (Object is not list)")
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{hint} (Object contained in list at index {index} is not torch.tensor)")


def refuse_if_strict(context: ambient.CaptureContext, function: str) -> None:
    """The original compiles loops and branches for inference only; strict compatibility keeps that."""
    if context.training and context.settings.strict:
        raise createPoptorchError(f"poptorch.{function}() is only supported in inference models.")
