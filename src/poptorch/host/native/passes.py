"""The list of passes that make a host program native, kernel by kernel.

The first one makes a program of a single step: one kernel computes everything. The others take it apart, until each
kernel is one that TorchInductor compiles well. After each pass values are freed at their last use, the verifier looks
at the program, and ``POPTORCH_DUMP`` writes it down.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch.executable.host_code import Code
from poptorch.executable.host_program import (
    Argument,
    Constant,
    Factors,
    HandOver,
    HostProgram,
    KernelCall,
    Prepared,
    RandomKey,
    Step,
)
from poptorch.executable.host_verify import verify
from poptorch.host.native.compilation import compile_kernels
from poptorch.host.native.draft import Draft, Recipe, constant, described, draft_kernel, fake_like, freeing
from poptorch.host.native.effects import is_effectful, with_tokens
from poptorch.host.native.forward_backward import Seed, Sweeps, find_seed, split
from poptorch.host.native.freezing import freeze
from poptorch.host.native.inductor import Target, contiguous, decompose, functional, graph_kernel, replay, simplify
from poptorch.host.native.layouts import weight_formats, with_format
from poptorch.host.native.optimizers import replay_update
from poptorch.host.native.outlining import find_repeat
from poptorch.host.native.random_keys import with_keys
from poptorch.host.running.rendering import code_of
from poptorch.program.opinfo import info_of
from poptorch.program.program import PORT_ORDER, Role
from poptorch.program.update import UpdateProgram

_ARGUMENTS = {
    "parameters": Role.PARAMETER,
    "buffers": Role.BUFFER,
    "constants": Role.CONSTANT,
    "inputs": Role.INPUT,
    "loss_scale": Role.LOSS_SCALE,
}
_WHOLE, _FORWARD, _BACKWARD, _PREPARATION = "whole", "forward", "backward", "preparation"


Write = Callable[[str, str], None]
"""Takes the name of a pass, and the program that it left."""


@dataclass(frozen=True)
class HostPass:
    """One rewrite of a host program, where it applies."""

    name: str
    applies: Callable[[Draft], bool]
    apply: Callable[[Draft], HostProgram]
    reason: str


def make(draft: Draft, write: Write | None = None) -> Code:
    """Run all passes."""
    for step in KERNEL_PASSES:
        if step.applies(draft):
            draft.host = freeing(step.apply(draft))
            verify(draft.host)
            if write is not None:
                write(step.name, str(draft.host))
    return code_of(draft.host)


# -- one kernel ------------------------------------------------------------------------------------------------------


def whole(draft: Draft) -> HostProgram:
    """One call of one kernel, from the arguments to the outputs."""
    program = draft.program
    roles = [port.role for port in program.ports]
    assert roles == sorted(roles, key=PORT_ORDER.index), "ports are not grouped by role"
    formats = {} if draft.update is None else weight_formats(program)
    with draft.mode:
        *fakes, _ = draft.fakes
        shaped = [with_format(f, formats, port.name) for f, port in zip(fakes, program.ports, strict=True)]
    draft.fakes[:-1] = shaped
    inputs = [draft.new(node.name, fake) for (node, _), fake in zip(program.placeholders(), shaped, strict=True)]
    outputs = [draft.new(f"{output.kind.value}_{output.name}") for output in program.outputs]
    arguments = []
    for name, role in _ARGUMENTS.items():
        numbers = tuple(n for n, port in zip(inputs, program.ports, strict=True) if port.role is role)
        arguments.append(Argument(name, numbers, given_away=role is Role.INPUT and draft.is_stage))
    given = [Argument("random")]
    given += [Argument("hand")] if draft.buckets else []
    given += [] if draft.update is None else [Argument("state", _state(draft))]
    draft.recipes[_WHOLE] = Recipe(lambda fakes: _decomposed(draft, fakes))
    call = KernelCall(_WHOLE, tuple(inputs), tuple(outputs))
    results = outputs[: len(outputs) - len(draft.products)]
    about = f"native code for {draft.target.threads} threads, made by TorchInductor"
    draft.host = HostProgram(
        "micro_batch" if draft.update is None else "step", (*arguments, *given), (), (), (), about=about
    )
    kernels = draft_kernel(_WHOLE, f"{sum(1 for _ in program.operations())} operations")
    return draft.replaced([call], results=tuple(results), kernels=kernels)


def _decomposed(draft: Draft, fakes: Any) -> fx.GraphModule:
    function = replay(draft.graph_module)
    return simplify(decompose(lambda *flat: tuple(map(contiguous, function(*flat))), fakes))


def _state(draft: Draft) -> tuple[int, ...]:
    """The optimizer's state, which lies in memory as the weights do, and its hyper-parameters."""
    update = draft.update
    assert update is not None
    formats = weight_formats(draft.program)
    with draft.mode:
        fakes = [fake_like(f) for f in described(update.graph_module)[2 * sum(map(len, update.parameters)) :]]
        for index, owner in enumerate(update.owners):
            fakes[index] = with_format(fakes[index], formats, owner)
    return tuple(draft.new(f"state_{index}", fake) for index, fake in enumerate(fakes))


def draw_random_numbers(draft: Draft) -> HostProgram:
    """Give random operations their key as an operand, the last one of the kernel."""
    call = draft.call
    draft.graph_module = with_keys(draft.graph_module)
    key = draft.new("random_key", draft.fakes[-1])
    drawn = any(info_of(node).random is not None for node in draft.program.operations())
    step: Step = RandomKey(key) if drawn else Constant(key, constant(lambda: torch.tensor(0)))
    return draft.replaced([step, dataclasses.replace(call, inputs=(*call.inputs, key))])


def keep_effects_in_order(draft: Draft) -> HostProgram:
    """Let effects wait for each other; the last token is one more output, and no result."""
    call = draft.call
    draft.graph_module = with_tokens(draft.graph_module)
    wider = dataclasses.replace(call, outputs=(*call.outputs, draft.new("token")))
    return draft.replaced(wider if step is call else step for step in draft.host.steps)


def own_inputs(draft: Draft) -> HostProgram:
    """What other stages sent belongs to this one, unless it is returned."""
    call = draft.call
    given = draft.host.argument("inputs").values
    reused = dataclasses.replace(call, reuses=tuple(n for n in given if n in call.frees and call.inputs.count(n) == 1))
    return draft.replaced(reused if step is call else step for step in draft.host.steps)


def leave_factors(draft: Draft) -> HostProgram:
    """Make gradients of the factors that the kernel returns."""
    outputs = draft.call.outputs
    results = list(draft.host.results)
    steps = list(draft.host.steps)
    for at, right in draft.products.items():
        number = draft.new(f"{draft.naming.names[outputs[at]]}_product")
        steps.append(Factors(number, outputs[at], outputs[right.position], right.transposed))
        results[at] = number
    return draft.replaced(steps, results=tuple(results))


def hand_gradients_over(draft: Draft) -> HostProgram:
    """Hand over each bucket, and return the other outputs."""
    results = draft.host.results
    handed = {at for bucket in draft.buckets for at in bucket}
    steps = list(draft.host.steps)
    for number, bucket in enumerate(draft.buckets):
        steps.append(HandOver(number, tuple(n for n in (results[at] for at in bucket) if n is not None)))
    return draft.replaced(steps, results=tuple(r for at, r in enumerate(results) if at not in handed))


# -- two kernels -----------------------------------------------------------------------------------------------------


def has_seed(draft: Draft) -> bool:
    """Whether it is known where to cut. Effects, which wait for each other in program order, keep a program whole."""
    return _seed(draft) is not None


def joins_update(draft: Draft) -> bool:
    """Whether an update can be part of the backward pass: not where equal layers are compiled once."""
    return has_seed(draft) and find_repeat(with_keys(draft.graph_module).graph) is None


def _seed(draft: Draft) -> Seed | None:
    program, graph_module = draft.program, draft.graph_module
    if not program.training or draft.is_stage or not program.gradients or is_effectful(graph_module.graph):
        return None
    return find_seed(program, graph_module)


def cut(draft: Draft) -> HostProgram:
    """A kernel for the forward pass, and one for the backward pass, which is given what the first one keeps."""
    call, seed = draft.call, _seed(draft)
    assert seed is not None
    with draft.mode:
        sweeps = split(draft.program, draft.graph_module, seed, draft.fakes)
    count = sweeps.num_results
    saved = described(sweeps.backward)
    kept = {at: draft.new(f"kept_{at - count}") for at in sorted(set(sweeps.saved)) if at >= count}
    forward_outputs = [*call.outputs[:count]]
    for at in range(count, len(sweeps.forward.graph.output_node().args[0])):  # type: ignore[arg-type]
        forward_outputs.append(kept[at] if at in kept else draft.new(f"kept_{at - count}"))
    start, before = _start(draft, seed)
    operands = tuple(start if at < 0 else forward_outputs[at] for at in sweeps.saved)
    draft.layouts |= dict(zip(operands, saved, strict=True))
    owned = [n for n, own in zip(operands, sweeps.activations, strict=True) if own and operands.count(n) == 1]
    forward_inputs = tuple(call.inputs[i] for i in sweeps.forward_inputs)
    draft.recipes[_FORWARD] = Recipe(lambda fakes: sweeps.forward, fixed=count)
    forward = KernelCall(_FORWARD, forward_inputs, tuple(forward_outputs))
    kernels = draft_kernel(_FORWARD, f"{_size(sweeps.forward)} operations")
    if draft.update is None:
        draft.recipes[_BACKWARD] = Recipe(lambda fakes: _laid_out(sweeps, fakes), is_backward=True)
        backward = KernelCall(_BACKWARD, operands, call.outputs[count:], reuses=tuple(owned))
        kernels |= draft_kernel(_BACKWARD, f"{_size(sweeps.backward)} operations")
        results = draft.host.results
    else:
        backward = _with_update(draft, sweeps, operands, owned)
        kernels |= draft_kernel(_BACKWARD, f"{_size(sweeps.backward)} operations, and the update")
        gradients = set(call.outputs[count : count + len(draft.program.gradients)])
        results = tuple(r for r in draft.host.results if r not in gradients)
    at = draft.host.steps.index(call)
    steps = [*draft.host.steps[:at], *before, forward, backward, *draft.host.steps[at + 1 :]]
    return draft.replaced(steps, results=results, kernels=kernels)


def _size(graph_module: fx.GraphModule) -> int:
    return sum(node.op == "call_function" for node in graph_module.graph.nodes)


def _start(draft: Draft, seed: Seed) -> tuple[int, list[Step]]:
    """The value that back-propagation starts from."""
    if seed.port is not None:
        return draft.call.inputs[seed.port], []
    number = draft.new("seed")
    return number, [Constant(number, constant(lambda: torch.ones(seed.shape, dtype=seed.dtype)))]


def _laid_out(sweeps: Sweeps, fakes: Any) -> fx.GraphModule:
    function = replay(sweeps.backward)
    return decompose(lambda *flat: tuple(map(contiguous, function(*flat))), fakes)


def _with_update(draft: Draft, sweeps: Sweeps, operands: tuple[int, ...], owned: list[int]) -> KernelCall:
    """The backward graph goes on with the update: gradients, weights, state and hyper-parameters meet in it.

    A weight that the backward pass looks at is the same input as the weight that the update writes, so that the
    compiler knows what must be read before.
    """
    program, update = draft.program, draft.update
    assert update is not None
    names = [name for group in update.parameters for name in group]
    positions = {port.name: i for i, port in enumerate(program.ports) if port.role is Role.PARAMETER}
    updated = [positions[name] for name in names]
    order = [program.gradients.index(name) for name in names]
    views = [v if v is not None and v.position in updated else None for v in sweeps.views]
    handed = [n for n, view in zip(operands, views, strict=True) if view is None]
    backward, step, gradients = replay(sweeps.backward), replay_update(update.graph_module), len(program.gradients)
    state = draft.host.argument("state").values

    def function(*flat: Any) -> tuple[Any, ...]:
        rest = iter(flat[: len(handed)])
        weights = flat[len(handed) : len(handed) + len(names)]
        weight_at = dict(zip(updated, weights, strict=True))
        outputs = backward(*(next(rest) if v is None else v.of(weight_at[v.position]) for v in views))
        step(*weights, *(outputs[i] for i in order), *flat[len(handed) + len(names) :])
        return tuple(map(contiguous, outputs[gradients:]))

    def build(fakes: Any) -> fx.GraphModule:
        written = functional(function, fakes)
        return decompose(lambda *flat: tuple(replay(written)(*flat)), fakes)

    hyper = sum(draft.layouts[n].nbytes for n in state[len(update.owners) :])
    draft.recipes[_BACKWARD] = Recipe(build, is_backward=True, in_one_piece=True, common=hyper)
    weights = [draft.call.inputs[i] for i in updated]
    outputs = draft.call.outputs[sweeps.num_results + gradients :]
    return KernelCall(_BACKWARD, (*handed, *weights, *state), outputs, reuses=tuple(n for n in owned if n in handed))


# -- weights that stay the same --------------------------------------------------------------------------------------


def prepare_weights(draft: Draft) -> HostProgram:
    """Compute what depends on weights alone when they change, and not in every call.

    Batch norms are folded into the layers before them, weights are packed in the layout of the library that multiplies
    them, and casts, transposes and sums of weights are done ahead of the calls. The results are kept with the weights
    (:class:`~poptorch.runtime.values.weights.Weights`) until these change; the next call makes them anew.

    Memory: the weights themselves stay where they are, because they are what the host reads back. Beside them there is
    one packed copy of each weight of a linear layer or convolution, and whatever else was computed; nothing of what
    only led to it. Embeddings, norms and biases are used in place. What the program writes to, as a batch norm in
    training mode does to its statistics, is never frozen.
    """
    program, call = draft.program, draft.call
    state = Role.PARAMETER, Role.BUFFER, Role.CONSTANT
    with draft.mode:
        function = replay(draft.graph_module)
        graph_module = decompose(lambda *flat: tuple(map(contiguous, function(*flat))), draft.fakes)
    written = {(p.role, p.index) for p in program.mutated()}
    frozen = [p.role in state and (p.role, p.index) not in written for p in program.ports] + [False]  # the key
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    weights = {n: f for n, f, stays in zip(placeholders, draft.fakes, frozen, strict=True) if stays}
    preparation = freeze(graph_module, draft.mode, weights, draft.target.libraries)
    sources = tuple(n for n, stays in zip(call.inputs, frozen, strict=True) if stays)
    moving = tuple(n for n, stays in zip(call.inputs, frozen, strict=True) if not stays)
    made = tuple(draft.new(f"prepared_{i}", fake) for i, fake in enumerate(preparation.descriptions))
    draft.recipes[_WHOLE] = Recipe(lambda fakes: graph_module, is_inference=True, in_one_piece=True)
    kernels = draft_kernel(_WHOLE, f"{_size(graph_module)} operations")
    ahead: list[Step] = []
    if made:
        kernels[_PREPARATION] = graph_kernel(_PREPARATION, preparation.graph)
        ahead.append(Prepared(_PREPARATION, sources, made))
    at = draft.host.steps.index(call)
    calls = dataclasses.replace(call, inputs=(*moving, *made))
    about = f"{draft.host.about}, with frozen weights"
    steps = [*draft.host.steps[:at], *ahead, calls, *draft.host.steps[at + 1 :]]
    return draft.replaced(steps, kernels=kernels, about=about)


# -- the list --------------------------------------------------------------------------------------------------------


def _always(draft: Draft) -> bool:
    return True


KERNEL_PASSES: tuple[HostPass, ...] = (
    HostPass("whole", _always, whole, "one call of one kernel: all other passes take it apart"),
    HostPass("random keys", _always, draw_random_numbers, "kernels cannot pass generators"),
    HostPass(
        "tokens",
        lambda draft: is_effectful(draft.graph_module.graph),
        keep_effects_in_order,
        "a compiler may reorder whatever does not depend on each other",
    ),
    HostPass("own inputs", lambda d: d.is_stage, own_inputs, "what a stage was sent is free after its last use"),
    HostPass("factors", lambda d: bool(d.products), leave_factors, "accumulators multiply straight into their sums"),
    HostPass(
        "hand-overs",
        lambda draft: bool(draft.buckets),
        hand_gradients_over,
        "before the cut, which moves them to where their gradients are final",
    ),
    HostPass(
        "forward and backward",
        has_seed,
        cut,
        "fused together, work of the backward pass is stored for long; the update joins the second kernel",
    ),
    HostPass(
        "frozen weights",
        lambda draft: not draft.program.training,
        prepare_weights,
        "what depends on weights alone is the same in every call",
    ),
    HostPass(
        "kernels", _always, compile_kernels, "last: how a kernel's results lie in memory decides about the next kernel"
    ),
)


def make_update(update: UpdateProgram, target: Target, write: Write | None = None) -> Code:
    """The update alone: one pass over the weights and the optimizer's state."""
    draft = Draft.of_graph(update.graph_module, target)
    placeholders = update.graph_module.graph.find_nodes(op="placeholder")
    numbers = tuple(draft.new(n.name, f) for n, f in zip(placeholders, draft.fakes, strict=True))

    def build(fakes: Any) -> fx.GraphModule:
        step = replay_update(update.graph_module)
        written = functional(lambda *flat: tuple(step(*flat)), fakes)
        return decompose(lambda *flat: tuple(replay(written)(*flat)), fakes)

    draft.recipes[_WHOLE] = Recipe(build, in_one_piece=True)
    about = f"native code for {target.threads} threads, made by TorchInductor"
    arguments = (Argument("random"), Argument("operands", numbers, apart=True))
    draft.host = HostProgram("update", arguments, (), (), (), about=about)
    draft.host = draft.replaced([KernelCall(_WHOLE, numbers, ())], kernels=draft_kernel(_WHOLE, "the update"))
    draft.host = freeing(compile_kernels(draft))
    verify(draft.host)
    if write is not None:
        write("update", str(draft.host))
    return code_of(draft.host)


__all__ = ["KERNEL_PASSES", "HostPass", "make", "make_update"]
