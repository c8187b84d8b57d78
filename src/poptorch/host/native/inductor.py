"""TorchInductor, as the host uses it: decompose a function into its operators, compile a graph to a kernel.

The other modules here and in ``host.store`` that know Inductor change its lowering or keep its files; no room beside
these two knows it, but for ``poptorch doctor``, which asks for the compiler.
"""

from __future__ import annotations

import contextlib
import enum
import operator
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from poptorch.executable.host_program import Kernel as HostKernel
from poptorch.host.native.async_compile import prepare_compiler, wait_later
from poptorch.libraries.choice import MKL_ALONE, Libraries

aten = torch.ops.aten

Kernel = Callable[..., Sequence[torch.Tensor]]
"""Takes its inputs as a list, which it empties, and returns its outputs. One that hands some of them out before it is
done takes the function for them, too."""


class EntryPoint(enum.Enum):
    """What calls the kernels of a compiled graph one after the other."""

    PYTHON = "python"
    """Compiles fastest."""

    CPP = "c++"
    """No Python between kernels: for graphs of many small ones, and for graphs that run beside others, because the
    interpreter lock is released."""


@dataclass(frozen=True)
class Target:
    """What code is compiled for."""

    threads: int
    """The number of cores that one kernel may use; Inductor builds it into the code."""

    entry: EntryPoint = EntryPoint.PYTHON
    libraries: Libraries = MKL_ALONE
    """What multiplies matrices."""


def compiler_exists() -> bool:
    """Whether Inductor would find a C++ compiler."""
    from torch._inductor import config

    names = config.cpp.cxx
    return any(name is not None and shutil.which(name) for name in (names if isinstance(names, tuple) else (names,)))


def fake_mode() -> FakeTensorMode:
    """Describes tensors without memory; constants of the graph stay real."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def decompose(function: Callable[..., tuple[Any, ...]], fakes: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The graph of a function in the operators that Inductor fuses. To be called within the fakes' mode."""
    import torch._inductor.lowering  # some decompositions look for it without importing it
    from torch._inductor.decomposition import select_decomp_table

    table = {**select_decomp_table(), aten.convolution_backward.default: _convolution_backward}
    with torch.no_grad():
        graph_module = make_fx(function, decomposition_table=table, tracing_mode="real")(*fakes)
    return plain(graph_module)


def _convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Any:
    """The weight's gradient of a 1x1 convolution that skips pixels, as that of one which never saw them.

    oneDNN 3.12 writes past the end of this gradient on processors with AVX2 and no more, where channels are the
    innermost dimension, as Inductor likes them, and fewer than 8.
    """
    one_pixel = all(size == 1 for size in weight.shape[2:]) and not any(padding)
    if transposed or not mask[1] or not one_pixel or weight.shape[1] >= 8 or all(step == 1 for step in stride):
        return NotImplemented
    seen = x
    for axis in range(2, x.ndim):
        seen = aten.slice.Tensor(seen, axis, 0, x.shape[axis], stride[(axis - 2) % len(stride)])
    ones = [1] * (x.ndim - 2)
    fixed = dilation, transposed, output_padding, groups
    _, of_weight, of_bias = aten.convolution_backward.default(
        gradient, seen, weight, bias, ones, padding, *fixed, [False, True, mask[2]]
    )
    of_input = None
    if mask[0]:
        of_input, _, _ = aten.convolution_backward.default(
            gradient, x, weight, None, stride, padding, *fixed, [True, False, False]
        )
    return of_input, of_weight, of_bias


def simplify(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Inductor's rewritings of graphs of both passes: scatters of a constant become comparisons, for example.

    To be called within the fakes' mode.
    """
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    return plain(joint_graph_passes(graph_module, torch.device("cpu")))


def functional(function: Callable[..., tuple[Any, ...]], fakes: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The graph of a function that writes into its arguments, with all writes at the end."""
    with torch.no_grad():
        return plain(make_fx(torch.func.functionalize(function), tracing_mode="real")(*fakes))


def plain(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Arguments and results as flat as they are, whatever structure the tracer has seen."""
    graph_module.graph.set_codegen(fx.graph.CodeGen())
    graph_module.recompile()
    return graph_module


class AnyLayout(fx.Interpreter):
    """Runs graphs on tensors that lie in memory otherwise than those they were recorded with."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default
        return super().call_function(target, args, kwargs)


def replay(graph_module: fx.GraphModule) -> Callable[..., Any]:
    """A function that does what the graph does, operation by operation, whatever the layout of its arguments."""
    interpreter = AnyLayout(graph_module)
    return lambda *flat: interpreter.run(*flat, enable_io_processing=False)


def contiguous(value: Any) -> Any:
    """A result of a graph in the layout that its reader counts on."""
    return value.contiguous() if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class Compiled:
    """A kernel, and how its outputs lie in memory."""

    run: Kernel
    strides: list[tuple[int, ...] | None]


def compile_graph(
    graph_module: fx.GraphModule,
    fakes: Sequence[torch.Tensor],
    target: Target,
    *,
    is_backward: bool = False,
    is_inference: bool = False,
    fixed: int | None = None,
    owned: Collection[int] = (),
    common: int = 0,
) -> Compiled:
    """One kernel that runs a decomposed graph.

    The first ``fixed`` outputs (by default all) lie in memory as the graph says; Inductor chooses for the others.
    ``owned`` are the positions of inputs that the caller keeps no hold of: their memory is free after their last use,
    and operations are ordered so that this comes early. Sharing ``common`` bytes of operands is no reason to run two
    operations in one loop.
    """
    from torch._inductor.compile_fx import compile_fx_inner

    output = graph_module.graph.output_node()
    count = len(output.args[0])  # type: ignore[arg-type]
    output.meta["user_visible_output_idxs"] = list(range(count if fixed is None else fixed))
    _name_inputs(graph_module, owned)
    if not _callable_from_cpp(graph_module.graph):
        target = replace(target, entry=EntryPoint.PYTHON)
    in_cpp = target.entry is EntryPoint.CPP
    wait_later()
    prepare_compiler().wait()
    with torch.no_grad(), _settings(target, common):
        compiled: Any = compile_fx_inner(
            graph_module, list(fakes), cpp_wrapper=in_cpp, is_backward=is_backward, is_inference=is_inference
        )
    strides = compiled.output_strides or [None] * count
    # The inner callable: the outer one looks after autotuning and profiling, which takes longer than a small kernel.
    return Compiled(compiled.current_callable, [None if s is None else tuple(map(int, s)) for s in strides])


def source_file(kernel: Any) -> str:
    """The Python module in which the compiler left a kernel."""
    file: str = getattr(getattr(kernel, "__func__", kernel), "__globals__", {}).get("__file__", "")
    return file


def graph_kernel(name: str, graph: fx.Graph) -> HostKernel:
    """A kernel that goes through a graph, operation by operation."""
    interpreter = fx.Interpreter(fx.GraphModule({}, graph))
    count = sum(node.op == "call_function" for node in graph.nodes)

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return interpreter.run(*inputs, enable_io_processing=False)

    return HostKernel(name, run, graph, f"{count} operations, one by one")


def _name_inputs(graph_module: fx.GraphModule, owned: Collection[int]) -> None:
    """Inductor knows by its name whether an input goes on living: those of the tracer (``arg0_1``) do."""
    for position, node in enumerate(graph_module.graph.find_nodes(op="placeholder")):
        if position in owned:
            node.target = node.name = f"owned_{position}"
    graph_module.recompile()


def _callable_from_cpp(graph: fx.Graph) -> bool:
    """Whether C++ reaches every operation: some have no C interface, and the way around that is slow or fails."""
    from torch._inductor import lowering
    from torchgen.aoti.fallback_ops import inductor_fallback_ops  # type: ignore[import-untyped]

    targets = {n.target for n in graph.nodes if n.op == "call_function"} - {operator.getitem}
    compiled = {t for t in targets if t in lowering.lowerings and t not in lowering.fallbacks}
    return all(str(t) in inductor_fallback_ops for t in targets - compiled)


@contextlib.contextmanager
def _settings(target: Target, common: int) -> Iterator[None]:
    """Assertions on sizes cost more than tiny kernels, and the shapes were checked when the program was called."""
    from torch._inductor import config

    from poptorch.host.native.rewriting import FasterForms  # Inductor is imported where it is needed, and so late

    changes = {
        "cpp.threads": target.threads,
        "cpp_wrapper": target.entry is EntryPoint.CPP,
        "size_asserts": False,
        "nan_asserts": False,
        "post_grad_custom_post_pass": FasterForms(target.libraries),
        "score_fusion_memory_threshold": max(config.score_fusion_memory_threshold, common + 1),
    }
    with config.patch(changes):
        yield
