"""What the host runs, as data: steps over numbered values.

A :class:`HostProgram` is one function of the host: a micro-batch, a stage, an update, or a micro-batch with its update.
Its arguments and all that it computes are numbered values. A step makes some of them from others, and says which are
not needed any more. Nothing here runs: ``host.running`` does.

    micro_batch(parameters %0 %1, buffers, constants, inputs %2, loss_scale, random):
      %3 = constant float32[]
      %4 %5 = kernel cabc(%0 %1 %2)                 free %2
      %6 %7 = kernel cdef(%3 %5), may reuse %5      free %3 %5
      return %4 %6 %7
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from poptorch.program.program import type_text

Run = Callable[..., Sequence[Any]]
"""Takes its inputs as a list, which it empties, and returns its outputs."""


# -- expressions: what a single operation is given ------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """A value of the program among the arguments of an operation."""

    number: int


@dataclass(frozen=True)
class Apply:
    """A call of a function on values, plain Python values and other calls."""

    function: str
    """A name in :attr:`HostProgram.functions`, or one of :data:`GIVEN`."""

    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


GIVEN = frozenset({"random", "copies"})
"""Functions that each call brings along: generators by stream, and the float32 copies of its weights."""


def values_in(expression: Any) -> Iterator[int]:
    """The values that an expression reads, each as often as it does."""
    if isinstance(expression, Value):
        yield expression.number
    elif isinstance(expression, Apply):
        yield from values_in(expression.args)
        yield from values_in([value for _, value in expression.kwargs])
    elif isinstance(expression, (list, tuple)):
        for item in expression:
            yield from values_in(item)
    elif isinstance(expression, slice):
        yield from values_in([expression.start, expression.stop, expression.step])
    elif isinstance(expression, Mapping):
        yield from values_in(list(expression.values()))


# -- steps ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """A value that is the same in every call."""

    output: int
    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or self.output != other.output:
            return False
        mine, theirs = self.value, other.value
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            return mine.dtype is theirs.dtype and mine.shape == theirs.shape and torch.equal(mine, theirs)
        return mine is theirs

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class RandomKey:
    """What the random numbers of this call depend on, as a tensor."""

    output: int


@dataclass(frozen=True)
class Operation:
    """One operation of torch; without an output it only looks at values."""

    output: int | None
    call: Apply
    reuses: tuple[int, ...] = ()
    """Operands over which the result is written."""

    frees: tuple[int, ...] = ()


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel, which is given its inputs in a list and empties it."""

    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reuses: tuple[int, ...] = ()
    """Inputs that nobody else holds: the kernel may free their memory, or write to it, before it is done."""

    frees: tuple[int, ...] = ()
    """Inputs and outputs that nothing needs any more. The kernel is the only owner of such inputs."""


@dataclass(frozen=True)
class Prepared:
    """Values that depend on weights alone: a kernel computes them when the weights have changed, not in every call."""

    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Factors:
    """A gradient that stays two factors: the accumulator multiplies them straight into its sum."""

    output: int
    left: int
    right: int
    transposed: tuple[bool, bool]
    frees: tuple[int, ...] = ()


@dataclass(frozen=True)
class HandOver:
    """Gradients that leave before the program is done. They belong to whoever takes them."""

    bucket: int
    values: tuple[int, ...]

    @property
    def frees(self) -> tuple[int, ...]:
        return self.values


Step = Constant | RandomKey | Operation | KernelCall | Prepared | Factors | HandOver


def made_by(step: Step) -> tuple[int, ...]:
    """The values that a step makes."""
    if isinstance(step, (KernelCall, Prepared)):
        return step.outputs
    if isinstance(step, HandOver) or step.output is None:
        return ()
    return (step.output,)


def read_by(step: Step) -> tuple[int, ...]:
    """The values that a step reads, each as often as it does."""
    if isinstance(step, (KernelCall, Prepared)):
        return step.inputs
    if isinstance(step, Operation):
        return tuple(values_in(step.call))
    if isinstance(step, Factors):
        return step.left, step.right
    return step.values if isinstance(step, HandOver) else ()


def freed_by(step: Step) -> tuple[int, ...]:
    """The values that nobody holds after a step."""
    return () if isinstance(step, (Constant, RandomKey, Prepared)) else step.frees


# -- programs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """One argument of the function: several values that come together, or an object that is no value."""

    name: str
    values: tuple[int, ...] = ()
    apart: bool = False
    """Whether each value is an argument of its own."""

    given_away: bool = False
    """Whether the caller keeps no hold of the values."""


@dataclass(frozen=True)
class Kernel:
    """Code that computes several values from others. Two of one name are the same."""

    name: str
    """That of its source file, where a compiler made one."""

    run: Run | None = field(default=None, compare=False, repr=False)
    """``None`` while the program is being made."""

    graph: fx.Graph | None = field(default=None, compare=False, repr=False)
    """What it computes, if it goes from operation to operation."""

    about: str = field(default="", compare=False)
    """For people."""


@dataclass(frozen=True)
class HostProgram:
    """One function that the host runs."""

    name: str
    arguments: tuple[Argument, ...]
    """In the order of a call."""

    steps: tuple[Step, ...]
    results: tuple[int | None, ...]
    names: tuple[str, ...]
    """Of all values by number: different names of Python, for readers."""

    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict, compare=False, repr=False)
    """What operations call, by name."""

    about: str = field(default="", compare=False)
    """For people."""

    def argument(self, name: str) -> Argument:
        """The argument of a name."""
        return next(argument for argument in self.arguments if argument.name == name)

    @property
    def kernel_calls(self) -> list[KernelCall]:
        return [step for step in self.steps if isinstance(step, KernelCall)]

    def __str__(self) -> str:
        return "\n".join(listing(self))


# -- printing -------------------------------------------------------------------------------------------------------


def listing(program: HostProgram) -> Iterator[str]:
    """A line for each step, and one for each kernel."""
    arguments = (f"*{a.name}" if a.apart else a.name for a in program.arguments)
    yield f"{program.name}({', '.join(arguments)}):{f'  # {program.about}' if program.about else ''}"
    for argument in program.arguments:
        if argument.values:
            given = " (given away)" if argument.given_away else ""
            yield f"  {', '.join(_value(program, v) for v in argument.values)} = {argument.name}{given}"
    for step in program.steps:
        yield f"  {step_text(program, step)}"
    yield f"  return {_several(program.results) or 'nothing'}"
    for kernel in program.kernels.values():
        yield f"  kernel {kernel.name}: {kernel.about}"


def step_text(program: HostProgram, step: Step) -> str:
    """A step in one line.

    >>> step_text(HostProgram("f", (), (), (), ("x", "y")), KernelCall("add", (0, 0), (1,), frees=(0,)))
    '%1 y = kernel add(%0, %0)  free %0'
    """
    made = ", ".join(_value(program, number) for number in made_by(step))
    freed = () if isinstance(step, HandOver) else freed_by(step)
    free = f"  free {_several(freed)}" if freed else ""
    return f"{made}{' = ' if made else ''}{_content(program, step)}{free}"


def _content(program: HostProgram, step: Step) -> str:
    if isinstance(step, Constant):
        value = step.value
        if isinstance(value, torch.Tensor):
            return f"constant {type_text(value.dtype, value.shape)}"
        return f"constant of class {type(value).__name__}"
    if isinstance(step, RandomKey):
        return "random key"
    if isinstance(step, Operation):
        return expression_text(step.call)
    if isinstance(step, Factors):
        left, right = (
            f"%{number}" + (".t()" if transposed else "")
            for number, transposed in zip((step.left, step.right), step.transposed, strict=True)
        )
        return f"factors {left} @ {right}"
    if isinstance(step, HandOver):
        return f"hand over bucket {step.bucket}: {_several(step.values)}"
    kind = "kernel" if isinstance(step, KernelCall) else "prepared by"
    return f"{kind} {step.kernel}({_several(step.inputs)}){_reused(step)}"


def _reused(step: Step) -> str:
    return f", may reuse {_several(step.reuses)}" if isinstance(step, KernelCall) and step.reuses else ""


_FUNCTION, _PLAIN_NAME = re.compile(r"^op_(.*?)(_\d+)?$"), r"\1"
"""What the name of a function has before and behind the name of its operation."""


def _value(program: HostProgram, number: int) -> str:
    name = program.names[number] if number < len(program.names) else "?"
    return f"%{number}" if name == f"v{number}" else f"%{number} {name}"


def _several(numbers: Sequence[int | None]) -> str:
    """Values by number; several in a row by the first and the last one.

    >>> _several([3, 4, 5, 7, None])
    '%3..%5, %7, None'
    """
    runs: list[list[int | None]] = []
    for number in numbers:
        if runs and number is not None and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"%{run[0]}..%{run[-1]}" if len(run) > 2 else ", ".join("None" if n is None else f"%{n}" for n in run)
        for run in runs
    )


def expression_text(expression: Any) -> str:
    """An expression as readers see it."""
    if isinstance(expression, Value):
        return f"%{expression.number}"
    if isinstance(expression, Apply):
        arguments = [expression_text(a) for a in expression.args]
        arguments += [f"{name}={expression_text(value)}" for name, value in expression.kwargs]
        return f"{_FUNCTION.sub(_PLAIN_NAME, expression.function)}({', '.join(arguments)})"
    if isinstance(expression, (list, tuple)):
        return "[" + ", ".join(expression_text(item) for item in expression) + "]"
    if isinstance(expression, torch.Tensor):
        return type_text(expression.dtype, expression.shape)
    return repr(expression)
