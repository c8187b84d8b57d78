"""Loops whose number of iterations the compiled program decides: ``torch.while_loop`` in a model under capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops._library import define, separate
from poptorch.ops.bodies import kind_of, record
from poptorch.ops.control_flow import ready, refuse_if_strict
from poptorch.ops.subgraph import is_random, runnable


def _loop(
    state: Sequence[torch.Tensor],
    asked: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    condition: str,
    body: str,
) -> list[torch.Tensor]:
    goes_on, function, values = runnable(condition), runnable(body), list(state)
    while goes_on(*values, *asked)[0]:
        values = list(function(*values, *captured))
    return separate(values, [*state, *asked, *captured])


def _loop_shapes(
    state: Sequence[torch.Tensor],
    asked: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    condition: str,
    body: str,
) -> list[torch.Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in state]


_ARGUMENTS = "(Tensor[] state, Tensor[] asked, Tensor[] captured, str condition, str body) -> Tensor[]"
WHILE_LOOP = define("while_loop" + _ARGUMENTS, _loop, _loop_shapes)
RANDOM_WHILE_LOOP = define(
    "random_while_loop" + _ARGUMENTS, _loop, _loop_shapes, tags=[torch.Tag.nondeterministic_seeded]
)


def while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], inputs: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Run ``body`` as long as ``condition`` is true of its results; only in a model under capture.

    What a backward pass would keep of the iterations has no size that is known when the model is compiled, so that
    there is none.
    """
    context = ambient.current()
    assert context is not None
    refuse_if_strict(context, "for_loop")
    asked = record(condition, inputs, "while_loop", None)
    done = record(body, inputs, "while_loop", None)
    if len(asked.results) != 1 or asked.results[0][1] is not torch.bool or any(n != 1 for n in asked.results[0][0]):
        raise createPoptorchError("while_loop: the condition must return one boolean tensor with one element.")
    before = [kind_of(tensor) for tensor in inputs]
    if done.results != before:
        raise createPoptorchError(
            f"while_loop: the body takes tensors of these shapes and types: {before}, and returns {done.results}. They "
            "must stay the same."
        )
    used = (*inputs, *asked.captured, *done.captured)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in used):
        raise createPoptorchError(
            "while_loop has no backward pass: how often it runs is known on the device only. Use poptorch.for_loop "
            "with the largest number of iterations, and torch.where to keep what must not change any more; or call it "
            "under torch.no_grad()."
        )
    draws = is_random(done.forward) or is_random(asked.forward)
    operator = RANDOM_WHILE_LOOP if draws else WHILE_LOOP
    return list(operator(list(inputs), ready(asked), ready(done), asked.forward, done.forward))
