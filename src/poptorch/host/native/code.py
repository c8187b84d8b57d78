"""The ``native`` level: programs compiled to C++ kernels by TorchInductor.

A training program becomes two graphs of fused kernels, forward and backward. Where every micro-batch is followed by an
update of the weights, the update is part of the second: gradients are used as soon as they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from poptorch.executable.host_code import Code
from poptorch.host.native.effects import is_effectful, with_tokens
from poptorch.host.native.forward_backward import Seed, Sweeps, find_seed, split
from poptorch.host.native.frozen import generate_frozen
from poptorch.host.native.inductor import (
    Target,
    compile_graph,
    contiguous,
    decompose,
    fake_mode,
    functional,
    replay,
    simplify,
)
from poptorch.host.native.layouts import weight_formats, with_format
from poptorch.host.native.optimizers import replay_update
from poptorch.host.native.outlining import Buckets, compile_outlined, find_repeat
from poptorch.host.native.random_keys import fake_key, with_keys
from poptorch.program.opinfo import info_of
from poptorch.program.program import PORT_ORDER, Program, Role
from poptorch.program.update import UpdateProgram

FlatRun = Callable[..., Sequence[torch.Tensor]]
"""Takes its inputs as a list, which it empties; and, where gradients are handed out, the function that takes them."""


def generate_native(program: Program, target: Target, buckets: Buckets = ()) -> Code:
    """``run(parameters, buffers, constants, inputs, loss_scale, random) -> outputs``, in native code.

    With ``buckets``, positions of gradients among the outputs, there is one argument more: ``hand(bucket, values)`` is
    called as soon as a bucket is final. These outputs are not returned.
    """
    if not program.training:
        return generate_frozen(program, target)
    graph_module = _prepared(program)
    with fake_mode():
        fakes = _fakes(program)
        seed = _seed(program, graph_module)
        if seed is None:
            kernel = _in_one_graph(graph_module, fakes, target)
            if buckets:
                kernel = _handing_at_the_end(kernel, buckets)
        else:
            kernel = _in_two_graphs(split(program, graph_module, seed, fakes), fakes, target, buckets)
    return _with_groups(kernel, program, target)


def _with_groups(kernel: FlatRun, program: Program, target: Target) -> Code:
    key = _key_of(program)

    def run(
        parameters: Any, buffers: Any, constants: Any, inputs: Any, loss_scale: Any, random: Any, *hand: Any
    ) -> Any:
        return kernel([*parameters, *buffers, *inputs, *loss_scale, *constants, key(random)], *hand)

    return Code(run, _describe(program, target))


def generate_native_stage(program: Program, target: Target) -> Code:
    """Like :func:`generate_native`, for the forward or the backward pass of a part of a model."""
    if not program.training:
        return generate_frozen(program, target)
    received = [i for i, port in enumerate(program.ports) if port.role is Role.INPUT]
    with fake_mode():
        kernel = _in_one_graph(_prepared(program), _fakes(program), target, received)
    return _with_groups(kernel, program, target)


def generate_native_step(program: Program, update: UpdateProgram, target: Target) -> Code | None:
    """``run(parameters, buffers, constants, inputs, loss_scale, random, state_and_hyper) -> outputs`` with the update.

    The outputs are the program's without the gradients. Weights and state must lie in memory as
    :func:`~poptorch.host.native.layouts.weight_formats` says. ``None`` where forward and backward cannot be told
    apart, or where equal layers are compiled once.
    """
    graph_module = _prepared(program)
    seed = _seed(program, graph_module)
    if seed is None or find_repeat(graph_module.graph) is not None:
        return None
    with fake_mode():
        fakes = _formatted_fakes(program)
        kernel = _with_update(split(program, graph_module, seed, fakes), program, update, fakes, target)
    key = _key_of(program)

    def run(
        parameters: Any, buffers: Any, constants: Any, inputs: Any, loss_scale: Any, random: Any, state: Any
    ) -> Any:
        return kernel([*parameters, *buffers, *inputs, *loss_scale, *constants, key(random)], state)

    return Code(run, _describe(program, target) + f"\n{update}")


def generate_native_update(update: UpdateProgram, target: Target) -> Code:
    """The update alone: one pass over the weights and the optimizer's state."""
    with fake_mode():
        fakes = [_fake_like(f) for f in _described(update.graph_module)]
        step = replay_update(update.graph_module)
        written = functional(lambda *flat: tuple(step(*flat)), fakes)
        graph_module = decompose(lambda *flat: tuple(replay(written)(*flat)), fakes)
        kernel = compile_graph(graph_module, fakes, target).run

    def run(random: Any, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(kernel(list(flat)))

    return Code(run, f"# native code for {target.threads} threads\n{update}")


def _prepared(program: Program) -> fx.GraphModule:
    roles = [port.role for port in program.ports]
    assert roles == sorted(roles, key=PORT_ORDER.index), "ports are not grouped by role"
    return with_keys(program.graph_module)


def _seed(program: Program, graph_module: fx.GraphModule) -> Seed | None:
    """Where to cut. Effects, which wait for each other in program order, keep a program in one graph."""
    if not program.gradients or is_effectful(graph_module.graph):
        return None
    return find_seed(program, graph_module)


def _fakes(program: Program) -> list[torch.Tensor]:
    """The placeholders, and the random key after them."""
    fakes = [torch.empty(port.shape, dtype=port.dtype) for port in program.ports]
    return [*fakes, fake_key(program)]


def _formatted_fakes(program: Program) -> list[torch.Tensor]:
    *fakes, key = _fakes(program)
    formats = weight_formats(program)
    return [*(with_format(f, formats, port.name) for f, port in zip(fakes, program.ports, strict=True)), key]


def _fake_like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _key_of(program: Program) -> Callable[[Any], torch.Tensor]:
    """The last input: what the random numbers of a micro-batch depend on."""
    if any(info_of(node).random is not None for node in program.operations()):
        return lambda random: random.as_tensor()
    no_key = torch.tensor(0)
    return lambda random: no_key


def _describe(program: Program, target: Target) -> str:
    return f"# native code for {target.threads} threads, made by TorchInductor\n{program}"


# -- one graph -------------------------------------------------------------------------------------------------------


def _in_one_graph(
    graph_module: fx.GraphModule, fakes: Sequence[torch.Tensor], target: Target, owned: Collection[int] = ()
) -> FlatRun:
    ordered = is_effectful(graph_module.graph)
    function = replay(with_tokens(graph_module) if ordered else graph_module)
    graph_module = simplify(decompose(lambda *flat: tuple(map(contiguous, function(*flat))), fakes))
    kernel = compile_outlined(graph_module, fakes, target, owned=owned).run
    return (lambda flat: kernel(flat)[:-1]) if ordered else kernel  # the last token is no result


def _handing_at_the_end(kernel: FlatRun, buckets: Buckets) -> FlatRun:
    """Where the passes cannot be told apart: all buckets are complete when everything is."""
    handed = sorted(i for bucket in buckets for i in bucket)

    def run(flat: list[torch.Tensor], hand: Callable[[int, Sequence[torch.Tensor]], None]) -> Sequence[torch.Tensor]:
        outputs = kernel(flat)
        for number, bucket in enumerate(buckets):
            hand(number, [outputs[i] for i in bucket])
        return [value for i, value in enumerate(outputs) if i not in handed]

    return run


# -- two graphs ------------------------------------------------------------------------------------------------------


def _in_two_graphs(
    sweeps: Sweeps, fakes: Sequence[torch.Tensor], target: Target, buckets: Buckets = ()
) -> FlatRun:
    forward, operands = _forward(sweeps, fakes, target)
    function = replay(sweeps.backward)
    backward = decompose(lambda *flat: tuple(map(contiguous, function(*flat))), operands)
    owned = [i for i, kept in enumerate(sweeps.activations) if kept]
    start, results = _start(sweeps.seed), sweeps.num_results
    inner = [[i - results for i in bucket] for bucket in buckets]
    kernel = compile_outlined(backward, operands, target, is_backward=True, owned=owned, buckets=inner).run
    saved = sweeps.saved

    def run(flat: list[torch.Tensor], *hand: Any) -> Sequence[torch.Tensor]:
        seed = start(flat)
        kept = forward(flat)
        operands = [seed if i < 0 else kept[i] for i in saved]
        kept = kept[:results]
        return (*kept, *kernel(operands, *hand))

    return run


def _with_update(
    sweeps: Sweeps, program: Program, update: UpdateProgram, fakes: Sequence[torch.Tensor], target: Target
) -> Callable[[list[torch.Tensor], Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
    """The backward graph goes on with the update: gradients, weights, state and hyper-parameters meet in it.

    A weight that the backward pass looks at is the same input as the weight that the update writes, so that the
    compiler knows what must be read before.
    """
    forward, operand_fakes = _forward(sweeps, fakes, target)
    names = [name for group in update.parameters for name in group]
    positions = {port.name: i for i, port in enumerate(program.ports) if port.role is Role.PARAMETER}
    updated = [positions[name] for name in names]
    order = [program.gradients.index(name) for name in names]
    views = [v if v is not None and v.position in updated else None for v in sweeps.views]
    handed = [i for i, view in zip(sweeps.saved, views, strict=True) if view is None]
    backward, step, gradients = replay(sweeps.backward), replay_update(update.graph_module), len(program.gradients)
    operand_fakes = [f for f, view in zip(operand_fakes, views, strict=True) if view is None]
    state_fakes = _state_fakes(update, weight_formats(program))
    inner_fakes = [*operand_fakes, *(fakes[i] for i in updated), *state_fakes]

    def function(*flat: Any) -> tuple[Any, ...]:
        operands = iter(flat[: len(handed)])
        weights = flat[len(handed) : len(handed) + len(names)]
        weight_at = dict(zip(updated, weights, strict=True))
        outputs = backward(*(next(operands) if v is None else v.of(weight_at[v.position]) for v in views))
        step(*weights, *(outputs[i] for i in order), *flat[len(handed) + len(names) :])
        return tuple(map(contiguous, outputs[gradients:]))

    written = functional(function, inner_fakes)
    graph_module = decompose(lambda *flat: tuple(replay(written)(*flat)), inner_fakes)
    owned = [i for i, kept in enumerate(k for k, v in zip(sweeps.activations, views, strict=True) if v is None) if kept]
    hyper = sum(f.nbytes for f in state_fakes[len(update.owners) :])
    kernel = compile_graph(graph_module, inner_fakes, target, is_backward=True, owned=owned, common=hyper).run
    start, results = _start(sweeps.seed), sweeps.num_results

    def run(flat: list[torch.Tensor], state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        seed = start(flat)
        weights = [flat[i] for i in updated]
        kept = forward(flat)
        operands = [seed if i < 0 else kept[i] for i in handed]
        kept = kept[:results]
        operands += weights
        operands += state
        return (*kept, *kernel(operands))  # empties the list: what the kernel is done with is freed

    return run


def _state_fakes(update: UpdateProgram, formats: Mapping[str, torch.memory_format]) -> list[torch.Tensor]:
    """The optimizer's state, which lies in memory as the weights do, and its hyper-parameters."""
    fakes = [_fake_like(f) for f in _described(update.graph_module)[2 * sum(map(len, update.parameters)) :]]
    for index, owner in enumerate(update.owners):
        fakes[index] = with_format(fakes[index], formats, owner)
    return fakes


def _forward(sweeps: Sweeps, fakes: Sequence[torch.Tensor], target: Target) -> tuple[FlatRun, list[torch.Tensor]]:
    """The forward pass, and what its backward pass is given, as it lies in memory."""
    inputs = sweeps.forward_inputs
    compiled = compile_outlined(sweeps.forward, [fakes[i] for i in inputs], target, fixed=sweeps.num_results)
    kernel = compiled.run

    def run(flat: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        operands = [flat[i] for i in inputs]
        flat.clear()
        return kernel(operands)

    operands = []
    for position, value in zip(sweeps.saved, _described(sweeps.backward), strict=True):
        strides = None if position < 0 else compiled.strides[position]
        operands.append(value if strides is None else torch.empty_strided(value.shape, strides, dtype=value.dtype))
    return run, operands


def _described(graph_module: fx.GraphModule) -> list[torch.Tensor]:
    return [node.meta["val"] for node in graph_module.graph.find_nodes(op="placeholder")]


def _start(seed: Seed) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """The value that back-propagation starts from, given the program's inputs."""
    port = seed.port
    if port is not None:
        return lambda flat: flat[port]
    with unset_fake_temporarily():
        ones = torch.ones(seed.shape, dtype=seed.dtype)
    return lambda flat: ones
