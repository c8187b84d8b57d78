"""Rules for operations that run other programs: loops, branches, functions of the host, custom operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Table
from poptorch.ipu_model.rules.fallback import fallback
from poptorch.ipu_model.rules.passes import durations, move
from poptorch.ipu_model.rules.products import joined, repeated
from poptorch.ipu_model.settings import CostSettings
from poptorch.ipu_model.steps import CostStep, OpCost
from poptorch.ops.subgraph import graph_from_text

CostOf = Callable[[fx.Node, Architecture, CostSettings], OpCost]

_BRANCH = 20
"""Cycles in which a supervisor decides."""


@lru_cache(maxsize=256)
def typed_body(text: str, operands: tuple[CostedOperand, ...]) -> fx.Graph:
    """A body as a graph whose nodes know their shapes and types."""
    module = fx.GraphModule(torch.nn.Module(), graph_from_text(text))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        inputs = [torch.empty(operand.shape, dtype=operand.dtype) for operand in operands]
    FakeTensorProp(module, mode).propagate(*inputs)
    return module.graph


def rules(cost_of: CostOf) -> Table:
    """The rules, with the function that costs the operations inside."""

    def body(call: CostedCall, text: str, operands: Sequence[CostedOperand]) -> OpCost:
        if not text:
            return OpCost()
        settings = CostSettings(
            product_partials=call.partials, convolution_partials=call.partials, product_proportion=call.proportion,
            convolution_proportion=call.proportion, lookup_proportion=call.proportion,
        )  # fmt: skip
        plain = tuple(replace(operand, strides=(), home=0) for operand in operands)
        nodes = [node for node in typed_body(text, plain).nodes if node.op == "call_function"]
        costs = [cost_of(node, call.chip, settings) for node in nodes]
        return replace(joined(costs), covered=all(cost.covered for cost in costs))

    def loop(call: CostedCall) -> OpCost:
        """Every iteration, and copies of the state where the backward pass will need it."""
        state, captured, count = call["state"], call["captured"], int(call["count"])
        inside = repeated(body(call, call["body"], (*state, *captured)), count)
        return replace(inside, steps=(*inside.steps, *_copies(call, call.results[len(state) :], count)))

    def while_loop(call: CostedCall) -> OpCost:
        """One iteration, and the decision before it: how many there are is known on the device only."""
        state = call["state"]
        asked = body(call, call["condition"], (*state, *call["asked"]))
        done = body(call, call["body"], (*state, *call["captured"]))
        return joined([asked, slower(call, done, OpCost())])

    def loop_backward(call: CostedCall) -> OpCost:
        stashes, captured, size = call["stashes"], call["captured"], int(call["size"])
        count = int(call["count"])
        at = [replace(stash, shape=stash.shape[1:], strides=()) for stash in stashes]
        operands = (*at[:size], *captured, *at[size:], *call["gradients"])
        inside = repeated(body(call, call["backward_body"], operands), count)
        return replace(inside, steps=(*inside.steps, *_copies(call, stashes, count)))

    def branch(call: CostedCall) -> OpCost:
        """The slower of both: which one runs is known on the device only."""
        return slower(
            call, body(call, call["then_body"], call["then_inputs"]), body(call, call["else_body"], call["else_inputs"])
        )

    def branch_backward(call: CostedCall) -> OpCost:
        saved, kept = call["saved_values"], int(call["saved"][0])
        then = (*call["then_inputs"], *saved[:kept], *call["gradients"])
        other = (*call["else_inputs"], *saved[kept:], *call["gradients"])
        return slower(call, body(call, call["then_backward_body"], then), body(call, call["else_backward_body"], other))

    return {
        "for_loop": loop,
        "random_for_loop": loop,
        "for_loop_backward": loop_backward,
        "while_loop": while_loop,
        "random_while_loop": while_loop,
        "cond": branch,
        "random_cond": branch,
        "cond_backward": branch_backward,
        "host_call": _host,
        "print_tensor": _host,
        "abort": _abort,
        **dict.fromkeys(("_local_scalar_dense", "_assert_async", "_assert_scalar"), _host),
        **dict.fromkeys(("promote_types", "result_type", "can_cast"), _nothing),
        "custom_op": _custom,
        "custom_op_gradient": _custom,
    }


def slower(call: CostedCall, first: OpCost, second: OpCost) -> OpCost:
    """The one that takes longer, and the decision before it."""
    taken = max(first, second, key=lambda cost: durations(cost.steps, call.chip))
    decision = CostStep(f"{call.name}: decide", cycles=_BRANCH, total_cycles=_BRANCH)
    return replace(taken, steps=(decision, *taken.steps), covered=first.covered and second.covered)


def _copies(call: CostedCall, stashes: Sequence[CostedOperand], count: int) -> list[CostStep]:
    """One entry of every stash, in each iteration."""
    if not count:
        return []
    steps = (
        move(call.chip, f"{call.name}: stash", -(-stash.elements // count), stash.element_type, exchanged=False)
        for stash in stashes
    )
    return [replace(step, repeat=count) for step in steps if step.cycles]


def _host(call: CostedCall) -> OpCost:
    """Operands to the host and results back; the time of the host itself is not known, and not counted."""
    chip = call.chip
    moved = sum(operand.bytes for operand in (*call.operands, *call.results))
    cycles = 2 * chip.global_sync_cycles + chip.cycles(moved / chip.host_bandwidth)
    return OpCost((CostStep(f"{call.name}: host", cycles=cycles, total_cycles=cycles),))


def _abort(call: CostedCall) -> OpCost:
    """A look at the condition."""
    return OpCost((CostStep(f"{call.name}: decide", cycles=_BRANCH, total_cycles=_BRANCH),))


def _nothing(call: CostedCall) -> OpCost:
    """A question about types: answered when the program was recorded."""
    return OpCost()


def _custom(call: CostedCall) -> OpCost:
    """What the author says; without a word of the author, a guess."""
    if call.cycles is None:
        return fallback(call)
    cycles = float(call.cycles)
    return OpCost((CostStep(str(call.get("name", "custom")), cycles=cycles, total_cycles=cycles * call.chip.tiles,
                        tiles=call.chip.tiles),))  # fmt: skip


__all__ = ["CostOf", "rules", "slower", "typed_body"]
