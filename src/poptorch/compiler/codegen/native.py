"""The ``native`` level: a program compiled to C++ kernels by TorchInductor.

Forward and backward of a micro-batch become one graph of fused kernels. The weight update is not part of it: torch's
fused optimizers are single passes over the weights already, and a graph without them is compiled in half the time.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from poptorch.compiler.codegen.drawing import with_keys
from poptorch.compiler.codegen.interpret import Generated
from poptorch.compiler.codegen.ordering import is_effectful, with_tokens
from poptorch.compiler.opinfo import info_of
from poptorch.compiler.program import Program, Role

Kernel = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

_ORDER = [Role.PARAMETER, Role.BUFFER, Role.INPUT, Role.LOSS_SCALE, Role.CONSTANT]


def compiler_exists() -> bool:
    """Whether Inductor would find a C++ compiler."""
    from torch._inductor import config

    names = config.cpp.cxx
    return any(name is not None and shutil.which(name) for name in (names if isinstance(names, tuple) else (names,)))


def generate_native(program: Program, threads: int) -> Generated:
    """``run(parameters, buffers, constants, inputs, loss_scale, random) -> outputs``, in native code.

    ``threads`` is the number of cores that one kernel may use; Inductor builds it into the code.
    """
    roles = [port.role for port in program.ports]
    assert roles == sorted(roles, key=_ORDER.index), "ports are not grouped by role"
    kernel = _compile(program, threads)
    if any(info_of(node).random is not None for node in program.operations()):

        def run(parameters: Any, buffers: Any, constants: Any, inputs: Any, loss_scale: Any, random: Any) -> Any:
            key = torch.tensor(random.key)
            return kernel([*parameters, *buffers, *inputs, *loss_scale, *constants, key])
    else:
        no_key = torch.tensor(0)

        def run(parameters: Any, buffers: Any, constants: Any, inputs: Any, loss_scale: Any, random: Any) -> Any:
            return kernel([*parameters, *buffers, *inputs, *loss_scale, *constants, no_key])

    return Generated(run, f"# native code for {threads} threads, made by TorchInductor\n{program}")


def _compile(program: Program, threads: int) -> Kernel:
    """Bring the graph into Inductor's decomposed form and compile it."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    graph_module = with_keys(program.graph_module)
    ordered = is_effectful(graph_module.graph)
    replay = fx.Interpreter(with_tokens(graph_module) if ordered else graph_module)

    def function(*flat: torch.Tensor) -> tuple[Any, ...]:
        return tuple(replay.run(*flat, enable_io_processing=False))

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad(), _inductor_settings(threads):
        fakes = [torch.empty(port.shape, dtype=port.dtype) for port in program.ports]
        fakes.append(torch.empty((), dtype=torch.int64))
        table = select_decomp_table()
        graph_module = make_fx(function, decomposition_table=table, tracing_mode="real")(*fakes)
        graph_module.graph.set_codegen(fx.graph.CodeGen())
        graph_module.recompile()
        compiled: Any = compile_fx_inner(graph_module, fakes)
    return (lambda flat: compiled(flat)[:-1]) if ordered else compiled  # the last token is nobody's result


@contextlib.contextmanager
def _inductor_settings(threads: int) -> Iterator[None]:
    """Assertions on sizes cost more than tiny kernels, and the shapes were checked when the program was called."""
    from torch._inductor import config

    with config.patch({"cpp.threads": threads, "size_asserts": False, "nan_asserts": False}):
        yield
