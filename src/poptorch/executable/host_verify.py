"""What every host program must satisfy, checked after each pass that makes one."""

from __future__ import annotations

from typing import NoReturn

from poptorch.executable.host_program import (
    GIVEN,
    Apply,
    Argument,
    Constant,
    HandOver,
    HostProgram,
    KernelCall,
    Operation,
    Prepared,
    Step,
    freed_by,
    made_by,
    read_by,
    step_text,
)


class BrokenHostProgram(AssertionError):
    """A pass made a host program that cannot be run. This is a fault of the compiler, not of the model."""


def verify(program: HostProgram) -> None:
    """Raise :class:`BrokenHostProgram` unless

    - each value is made once, and before it is read,
    - each value is freed once at most, and not read afterwards,
    - gradients are handed over once, bucket after bucket, and no result is handed over or freed,
    - memory that a kernel may reuse belongs to nobody else,
    - whatever steps call exists, and names of values differ.
    """
    _Check(program).run()


class _Check:
    """The state of all values on the way through a program."""

    def __init__(self, program: HostProgram) -> None:
        self._program = program
        self._made: set[int] = set()
        self._freed: dict[int, Step] = {}
        self._constants: set[int] = set()
        self._owned: set[int] = set()
        """Values whose memory is this program's alone."""

        self._buckets = 0
        self._step: Step | None = None

    def run(self) -> None:
        """Check everything."""
        program = self._program
        self._require(len(set(program.names)) == len(program.names), "two values have one name")
        self._require(all(map(str.isidentifier, program.names)), "a name of a value is no name of Python")
        apart = [argument.apart for argument in program.arguments]
        self._require(not any(apart[:-1]), "arguments of one value each come before another one")
        for argument in program.arguments:
            self._enter(argument)
        for step in program.steps:
            self._step = step
            self._check(step)
        self._step = None
        for number in program.results:
            if number is not None:
                self._require(number in self._made, f"the result %{number} is never made")
                if number in self._freed:
                    self._fail(f"the result %{number} is lost: {self._end(number)}")

    def _enter(self, argument: Argument) -> None:
        for number in argument.values:
            self._make(number)
            if argument.given_away:
                self._owned.add(number)

    def _make(self, number: int) -> None:
        if number >= len(self._program.names):
            self._fail(f"%{number} has no name")
        if number in self._made:
            self._fail(f"%{number} is made twice")
        self._made.add(number)

    def _check(self, step: Step) -> None:
        for number in read_by(step):
            if number not in self._made:
                self._fail(f"%{number} is read before it is made")
            if number in self._freed:
                self._fail(f"%{number} is read after {self._end(number)}")
        if isinstance(step, (KernelCall, Prepared)):
            self._require(step.kernel in self._program.kernels, f"there is no kernel {step.kernel!r}")
        if isinstance(step, Prepared):
            self._prepared(step)
        if isinstance(step, Operation):
            self._functions(step.call)
        if isinstance(step, (KernelCall, Operation)):
            self._reused(step)
        if isinstance(step, HandOver):
            self._require(step.bucket == self._buckets, f"bucket {self._buckets} comes before bucket {step.bucket}")
            self._require(bool(step.values), f"bucket {step.bucket} is empty")
            self._buckets += 1
        for number in made_by(step):
            self._make(number)
        if isinstance(step, Constant):
            self._constants.add(step.output)
        elif isinstance(step, (KernelCall, Operation)):
            self._owned.update(made_by(step))
        for number in freed_by(step):
            if number not in self._made:
                self._fail(f"%{number} is freed before it is made")
            if number in self._freed:
                self._fail(f"%{number} is freed again, after {self._end(number)}")
            self._require(number not in self._constants, f"the constant %{number} is freed")
            self._freed[number] = step

    def _prepared(self, step: Prepared) -> None:
        """Only values that stay from call to call may be prepared from."""
        lasting = {n for a in self._program.arguments if not a.given_away and a.name != "inputs" for n in a.values}
        for number in step.inputs:
            self._require(number in lasting, f"%{number}, which differs from call to call, is prepared from")

    def _functions(self, call: Apply) -> None:
        known = call.function in self._program.functions or call.function in GIVEN
        self._require(known, f"there is no function {call.function!r}")
        for inner in (*call.args, *(value for _, value in call.kwargs)):
            if isinstance(inner, Apply):
                self._functions(inner)

    def _reused(self, step: KernelCall | Operation) -> None:
        read = read_by(step)
        for number in step.reuses:
            self._require(number in read, f"%{number} is reused and no operand")
            self._require(read.count(number) == 1, f"%{number} is reused and given twice")
            self._require(number in step.frees, f"%{number} is reused although it is needed later")
            self._require(number in self._owned, f"%{number} is reused although its memory belongs to others")

    def _end(self, number: int) -> str:
        step = self._freed[number]
        how = "it was handed over" if isinstance(step, HandOver) else "it was freed"
        return f"{how} by {step_text(self._program, step)!r}"

    def _require(self, holds: bool, fault: str) -> None:
        if not holds:
            self._fail(fault)

    def _fail(self, fault: str) -> NoReturn:
        where = "" if self._step is None else f" at {step_text(self._program, self._step)!r}"
        raise BrokenHostProgram(f"Internal error: the host program {self._program.name} is broken{where}: {fault}")
