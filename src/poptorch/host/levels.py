"""Which code runs a program: straight-line Python calls, or native kernels.

``POPTORCH_CODEGEN`` chooses: ``interpret``, ``native``, or ``auto`` (the default). ``auto`` starts with the first and
changes to the second between two calls, when the program has done so much work that compiling it pays. How much is an
estimate made from the program alone, in operations and bytes: the same program changes at the same call every time.
Meanwhile the code is compiled beside the program; where an earlier process has left it, it runs from the first call on.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import Any

import torch

from poptorch import environment
from poptorch._logging import log_once
from poptorch.host.cost import (
    ONE_CORE_SECONDS,
    PYTHON_SHOWS_SECONDS,
    SWITCH_AFTER_SECONDS,
    estimated_seconds,
    seconds_before_switch,
)
from poptorch.host.libraries import libraries_of
from poptorch.host.native.inductor import EntryPoint, Target, compiler_exists
from poptorch.ops.traits import OpKind, traits_of
from poptorch.program.graphs import memory_root
from poptorch.program.program import Program, is_write


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

    float16 kernels compute in float32 and round (see :mod:`poptorch.host.interpret.half`), checks of single operations
    need single operations, functions in C++ hand dense tensors to each other only, and oneDNN's recurrent layers keep a
    workspace for their backward pass that Inductor does not know of, so training them is the interpreter's, as are the
    others. Inductor drops the copy that keeps an old value of state which moves to other state.
    """
    level = chosen_level()
    keeps = program.numerics.plain and not _recurs(program) and all(map(_is_native, _values(program)))
    if level is Level.INTERPRET or (keeps and not _moves_state(program)):
        return level
    log_once(
        20,
        "stays interpreted",
        "Programs with float16, sparse tensors, checked operations, recurrent layers or buffers that move to others "
        "are interpreted.",
    )
    return Level.INTERPRET


def _moves_state(program: Program) -> bool:
    """Whether something that is written gets what was in another one that is written, as it was."""
    writes = [node for node in program.operations() if is_write(node)]
    written = {write.args[0] for write in writes}

    def origin(node: Any) -> Any:
        while node.target is torch.ops.aten.clone.default:
            node = memory_root(node.args[0])
        return memory_root(node)

    return any(write.args[1] is not write.args[0] and origin(write.args[1]) in written for write in writes)


def _recurs(program: Program) -> bool:
    return program.training and any(traits_of(node).kind is OpKind.RECURRENT for node in program.operations())


def _values(program: Program) -> Iterator[torch.Tensor]:
    values = (node.meta.get("val") for node in program.graph.nodes)
    yield from (value for value in values if isinstance(value, torch.Tensor))
    yield from program.constants.values()  # the graph knows sparse ones by their shape only


def _is_native(value: torch.Tensor) -> bool:
    return value.dtype not in (torch.float16, torch.bfloat16) and value.layout is torch.strided


def calls_at_first_level(level: Level, program: Program, micro_batches: int) -> int | None:
    """How many calls, each of so many micro-batches, run interpreted; ``None``: all of them."""
    if level is Level.INTERPRET:
        return None
    return 0 if level is Level.NATIVE else calls_before_switch(program, micro_batches)


def entry_for(program: Program, beside_others: bool = False) -> EntryPoint:
    """Who calls the kernels: C++ where Python between them would be seen, or would be in the way of other threads.

    Operators of other libraries stay with Python, through which they are called in any case.
    """
    own = all(getattr(node.target, "namespace", "aten") == "aten" for node in program.operations())
    return (
        EntryPoint.CPP
        if own and (beside_others or estimated_seconds(program) < PYTHON_SHOWS_SECONDS)
        else EntryPoint.PYTHON
    )


def target_for(program: Program, threads: int, beside_others: bool = False) -> Target:
    """What to compile a program for, where a kernel may use so many cores: one, if waking others takes longer."""
    tiny = estimated_seconds(program) < ONE_CORE_SECONDS
    return Target(1 if tiny else threads, entry_for(program, beside_others), libraries_of(program, threads))


def calls_before_switch(program: Program, micro_batches: int) -> int:
    """How many calls of a program, each of so many micro-batches, ``auto`` interprets."""
    return max(
        1,
        math.ceil(seconds_before_switch(program, SWITCH_AFTER_SECONDS) / (estimated_seconds(program) * micro_batches)),
    )
