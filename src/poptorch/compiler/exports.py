"""What environment variables ask to see of the compiler's input: lines of the trace log, and files.

The original hands a protocol buffer to its compiler. Here the input is the captured program, and files hold its
listing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch.fx as fx

from poptorch import environment
from poptorch._logging import TRACE, backend, logger, warn_once
from poptorch.program.program import Program

if TYPE_CHECKING:
    from poptorch.compiler.pipeline import Pass

_CUT = "[...truncated...]"


class InputExports:
    """Shows the program that the first pass receives, as the environment asks."""

    def __init__(self) -> None:
        self._done = False

    def before(self, step: Pass, program: Program) -> None:
        """The first pass finds what was captured."""
        if self._done:
            return
        self._done = True
        _trace(program)
        _export_listing(program)
        _export_picture(program)

    def after(self, step: Pass, program: Program, summary: str, seconds: float) -> None:
        """What becomes of it is for others to show."""


def _trace(program: Program) -> None:
    if backend.isEnabledFor(TRACE):
        backend.trace("Captured graph:\n%s", trailing_lines(str(program), environment.MAX_GRAPH_LEN.read()))


def trailing_lines(text: str, count: int) -> str:
    r"""The last ``count`` lines, after a mark if there are more; 0 or less: all lines.

    >>> trailing_lines("a\nb\nc", 2)
    '[...truncated...]\nb\nc'
    >>> trailing_lines("a\nb\nc", 3), trailing_lines("a\nb\nc", 0)
    ('a\nb\nc', 'a\nb\nc')
    """
    lines = text.split("\n")
    return text if count <= 0 or len(lines) <= count else "\n".join([_CUT, *lines[-count:]])


def _export_listing(program: Program) -> None:
    chosen = environment.EXPORT_PROTO_FILE.read()
    if chosen is None:
        return
    if environment.EXPORT_PROTO_AS_BINARY.read():
        logger.warning(
            "%s has no effect: there is no protocol buffer, and %s is the listing of the captured program.",
            environment.EXPORT_PROTO_AS_BINARY.name,
            chosen,
        )
    path = Path(chosen)
    _write(path if path.suffix else path / "model.proto", str(program))


def _export_picture(program: Program) -> None:
    chosen = environment.MLIR_DOT_FILE.read()
    if chosen is not None:
        _write(Path(chosen), graphviz(program))


def graphviz(program: Program) -> str:
    """The program in the language of Graphviz: a box for each operation, an arrow for each operand."""
    lines = ["digraph program {", "  node [shape=box];"]
    for node in program.graph.nodes:
        label = f"{node.name}\\n{_operation(node)}" if node.op == "call_function" else node.name
        lines.append(f'  "{node.name}" [label="{label}"];')
        lines += [f'  "{operand.name}" -> "{node.name}";' for operand in node.all_input_nodes]
    return "\n".join([*lines, "}"])


def _operation(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:  # a full disk must not cost the program its training
        warn_once(("export", str(path)), f"The listing of the program cannot be written to {path}: {error}")


__all__ = ["InputExports", "graphviz", "trailing_lines"]
