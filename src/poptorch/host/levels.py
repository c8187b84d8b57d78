"""Which code runs a program: straight-line Python calls, or native kernels.

``POPTORCH_CODEGEN`` chooses: ``interpret``, ``native``, or ``auto`` (the default). ``auto`` starts with the first and
changes to the second between two calls, when the program has done so much work that compiling it pays. How much is an
estimate made from the program alone, in operations and bytes: the same program changes at the same call every time.
"""

from __future__ import annotations

import enum
import math

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from poptorch import environment
from poptorch._logging import log_once
from poptorch.host.native.inductor import Entry, Target, compiler_exists
from poptorch.ops.hints import HINTS, NOP
from poptorch.program.program import Program

_SECONDS_PER_CALL = 5e-6
_BYTES_PER_SECOND = 5e9
_FLOPS_PER_SECOND = 5e10
_SMALL_SECONDS = 2e-3
_TINY_SECONDS = 5e-4
SWITCH_AFTER_SECONDS = 60.0
"""Estimated run time after which ``auto`` compiles: a multiple of what compiling a mid-sized model takes."""


class Level(enum.Enum):
    """The two ways to run a program, and the rule that picks one."""

    INTERPRET = "interpret"
    NATIVE = "native"
    AUTO = "auto"


def chosen_level() -> Level:
    """What the user asked for; ``interpret``, said once, where there is no C++ compiler."""
    level = Level(environment.CODEGEN.read())
    if level is not Level.INTERPRET and not compiler_exists():
        message = "No C++ compiler was found: programs are interpreted. Install g++ or clang++ for native code."
        log_once(30 if level is Level.NATIVE else 20, "no compiler", message)
        return Level.INTERPRET
    return level


def level_for(program: Program) -> Level:
    """The level of one program: what the user asked for, where native code can keep the program's arithmetic.

    float16 kernels compute in float32 and round (see :mod:`poptorch.host.interpret.half`), checks of single
    operations need single operations, and oneDNN's recurrent layers keep a workspace for their backward pass that
    Inductor does not know of, so training them is the interpreter's, as are the others.
    """
    level = chosen_level()
    if level is Level.INTERPRET or (program.numerics.plain and not _has_half(program) and not _recurs(program)):
        return level
    log_once(20, "stays interpreted", "Programs with float16, checked operations or recurrent layers are interpreted.")
    return Level.INTERPRET


def _recurs(program: Program) -> bool:
    layer = torch.ops.aten.mkldnn_rnn_layer.default
    return program.training and any(node.target is layer for node in program.operations())


def _has_half(program: Program) -> bool:
    values = (node.meta.get("val") for node in program.graph.nodes)
    return any(isinstance(v, torch.Tensor) and v.dtype in (torch.float16, torch.bfloat16) for v in values)


def calls_at_first_level(level: Level, program: Program, micro_batches: int) -> int | None:
    """How many calls, each of so many micro-batches, run interpreted; ``None``: all of them."""
    if level is Level.INTERPRET:
        return None
    return 0 if level is Level.NATIVE else calls_before_switch(program, micro_batches)


def entry_for(program: Program, beside_others: bool = False) -> Entry:
    """Who calls the kernels: C++ where Python between them would be seen, or would be in the way of other threads.

    Operators of other libraries stay with Python, through which they are called in any case.
    """
    own = all(getattr(node.target, "namespace", "aten") == "aten" for node in program.operations())
    return Entry.CPP if own and (beside_others or estimated_seconds(program) < _SMALL_SECONDS) else Entry.PYTHON


def target_for(program: Program, threads: int, beside_others: bool = False) -> Target:
    """What to compile a program for, where a kernel may use so many cores: one, if waking others takes longer."""
    tiny = estimated_seconds(program) < _TINY_SECONDS
    return Target(1 if tiny else threads, entry_for(program, beside_others))


def calls_before_switch(program: Program, micro_batches: int) -> int:
    """How many calls of a program, each of so many micro-batches, ``auto`` interprets."""
    return max(1, math.ceil(SWITCH_AFTER_SECONDS / (estimated_seconds(program) * micro_batches)))


def estimated_seconds(program: Program) -> float:
    """A rough time for one micro-batch, from the graph alone."""
    return sum(_operation_seconds(node) for node in program.operations()) or _SECONDS_PER_CALL


def estimated_work(program: Program) -> float:
    """A rough time for what the operations of a micro-batch do, without the calls; unknown ones take for ever."""
    nodes = list(program.operations())
    if not all(map(_is_known, nodes)):
        return math.inf
    return sum(_operation_seconds(node) - _SECONDS_PER_CALL for node in nodes)


def _is_known(node: fx.Node) -> bool:
    namespace = getattr(node.target, "namespace", "aten")
    return namespace in ("aten", "prims") or node.target in (NOP, *HINTS)


def _operation_seconds(node: fx.Node) -> float:
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    moved = sum(t.numel() * t.element_size() for t in tensors)
    return _SECONDS_PER_CALL + moved / _BYTES_PER_SECOND + flops_of(node) / _FLOPS_PER_SECOND


def flops_of(node: fx.Node) -> float:
    """Floating-point operations, for what torch has a formula."""
    packet = getattr(node.target, "overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0.0
    args = fx.node.map_arg(node.args, lambda n: n.meta["val"])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: n.meta["val"])
    return float(formula(*args, **kwargs, out_val=node.meta["val"]))
