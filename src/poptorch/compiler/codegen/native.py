"""The ``native`` level: programs compiled to C++ kernels by TorchInductor.

Three shapes of kernel cover all loops. ``compile_micro_batch`` is the program alone (inference, and stages of a
pipeline). ``compile_step`` is one whole training step, forward to weight update, in one graph: the only form where
Inductor can fuse the backward pass with the optimizer. With gradient accumulation, ``compile_accumulation`` adds one
micro-batch's gradients to the accumulators and ``compile_update`` turns these into new weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from poptorch.compiler.codegen.drawing import with_keys
from poptorch.compiler.program import Program, Role
from poptorch.compiler.update import State, UpdateProgram, flat_arguments

Kernel = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Description:
    """Shape and type of one tensor argument."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> Description:
        """What is known of ``tensor`` without its values."""
        return Description(tuple(tensor.shape), tensor.dtype)


def compile_micro_batch(program: Program, threads: int) -> Kernel:
    """Kernel over ``[*ports, key]``; returns the program's outputs."""
    keyed = _runnable(program)
    return _compile(lambda *flat: keyed(*flat), _program_arguments(program), threads)


def compile_step(
    program: Program, update: UpdateProgram, states: Sequence[State], hyper: Sequence[dict[str, torch.Tensor]], threads: int
) -> Kernel:
    """Kernel over ``[*ports, key, *states, *hyper]``; updates weights and state, returns results and anchors."""
    keyed = _runnable(program)
    parameters = _parameter_positions(program, update)
    first_grad, after_grads = _gradient_range(program)
    order = [program.gradients.index(name) for group in update.parameters for name in group]
    count = len(program.ports) + 1

    def step(*flat: torch.Tensor) -> list[Any]:
        outputs = list(keyed(*flat[:count]))
        gradients = outputs[first_grad:after_grads]
        _apply(update, [flat[i] for i in parameters], [gradients[i] for i in order], flat[count:])
        return outputs[:first_grad] + outputs[after_grads:]

    rest = [Description.of(t) for t in flat_arguments([], [], states, hyper)]
    return _compile(step, [*_program_arguments(program), *rest], threads)


def compile_accumulation(program: Program, accumulators: Sequence[Description], threads: int) -> Kernel:
    """Kernel over ``[*ports, key, *accumulators]``; adds the gradients, returns results and anchors."""
    keyed = _runnable(program)
    first_grad, after_grads = _gradient_range(program)
    count = len(program.ports) + 1

    def accumulate(*flat: torch.Tensor) -> list[Any]:
        outputs = list(keyed(*flat[:count]))
        for total, gradient in zip(flat[count:], outputs[first_grad:after_grads], strict=True):
            total.add_(gradient)
        return outputs[:first_grad] + outputs[after_grads:]

    return _compile(accumulate, [*_program_arguments(program), *accumulators], threads)


def compile_update(
    update: UpdateProgram,
    weights: Sequence[Description],
    accumulators: Sequence[Description],
    states: Sequence[State],
    hyper: Sequence[dict[str, torch.Tensor]],
    threads: int,
) -> Kernel:
    """Kernel over ``[*weights, *accumulators, *states, *hyper]``; updates, and clears the accumulators."""
    count = len(weights)

    def run(*flat: torch.Tensor) -> list[Any]:
        totals = list(flat[count : 2 * count])
        _apply(update, list(flat[:count]), totals, flat[2 * count :])
        for total in totals:
            total.zero_()
        return []

    rest = [Description.of(t) for t in flat_arguments([], [], states, hyper)]
    return _compile(run, [*weights, *accumulators, *rest], threads)


def _runnable(program: Program) -> Callable[..., Any]:
    keyed = with_keys(program.graph_module)
    return lambda *flat: fx.Interpreter(keyed).run(*flat, enable_io_processing=False)


def _program_arguments(program: Program) -> list[Description]:
    ports = [Description(port.shape, port.dtype) for port in program.ports]
    return [*ports, Description((), torch.int64)]


def _gradient_range(program: Program) -> tuple[int, int]:
    first = len(program.results)
    return first, first + len(program.gradients)


def _parameter_positions(program: Program, update: UpdateProgram) -> list[int]:
    positions = {p.name: i for i, p in enumerate(program.ports) if p.role is Role.PARAMETER}
    return [positions[name] for group in update.parameters for name in group]


def _apply(
    update: UpdateProgram, params: list[torch.Tensor], grads: list[torch.Tensor], rest: Sequence[torch.Tensor]
) -> None:
    graph = fx.Interpreter(update.graph_module)
    graph.run(*params, *grads, *rest, enable_io_processing=False)


def _compile(function: Callable[..., Any], arguments: Sequence[Description], threads: int) -> Kernel:
    """Trace ``function`` into functional, decomposed ATen form and hand it to Inductor."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad(), _inductor_settings(threads):
        fakes = [torch.empty(a.shape, dtype=a.dtype) for a in arguments]
        functional = torch.func.functionalize(function, remove="mutations")
        graph_module = make_fx(functional, decomposition_table=select_decomp_table(), tracing_mode="real")(*fakes)
        _flatten_output(graph_module)
        compiled: Any = compile_fx_inner(graph_module, fakes)
    return compiled


def _flatten_output(graph_module: fx.GraphModule) -> None:
    """Inductor wants a tuple of outputs and plain code generation."""
    graph_module.graph.set_codegen(fx.graph.CodeGen())
    output = graph_module.graph.output_node()
    output.args = (tuple(output.args[0]),)  # type: ignore[arg-type]
    graph_module.recompile()


@contextlib.contextmanager
def _inductor_settings(threads: int) -> Iterator[None]:
    """Inductor bakes the number of threads into its kernels; assertions on sizes cost more than tiny kernels."""
    from torch._inductor import config

    with config.patch({"cpp.threads": threads, "size_asserts": False, "nan_asserts": False}):
        yield
