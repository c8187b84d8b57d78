"""How a model is captured, and how the log shows the operations that were."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from poptorch._logging import backend
from poptorch.capture.tracer import Recording, Request, record
from poptorch.enums import Compiler
from poptorch.ops.traits import traits_of
from poptorch.program.opinfo import info_of


@dataclass(frozen=True)
class FrontEnd:
    """What wrapped models, captured functions and captured blocks do differently; the rest of the road is the same."""

    record: Callable[[Request], Recording] = record
    """Returns the recording of what a request asks for."""

    compiler: Compiler = Compiler.PopART
    """Whose words the log uses."""

    tells_host_results: bool = False
    """Whether it has warned of results that were never on the device itself."""

    reads_what_it_wrote: bool = False
    """Whether the code may hold whole training steps, so that it must find in the state what it has just written."""

    takes_empty: bool = False
    """Whether inputs may have no elements."""

    def recording(self, request: Request) -> Recording:
        """Record, and log each operation with its source line."""
        recording = self.record(request)
        if backend.isEnabledFor(logging.DEBUG):
            for node in recording.graph_module.graph.nodes:
                if node.op == "call_function" and traits_of(node).is_aten:
                    backend.debug("%s", _line(node, self.compiler))
        return recording


def _line(node: fx.Node, compiler: Compiler) -> str:
    name, source = traits_of(node).name, info_of(node).source
    if compiler is Compiler.MLIR:
        return f"poptorch.{name} %{node.name} {'[unknown]' if source is None else source}"
    place = "" if source is None else f"{source} "
    return f"{place}aten::{name} %{node.name} was lowered to {name}"
