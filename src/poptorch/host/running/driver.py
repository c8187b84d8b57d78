"""The driver: goes through the steps of a host program, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from poptorch.executable.host_program import (
    Apply,
    Constant,
    Factors,
    HandOver,
    HostProgram,
    KernelCall,
    Operation,
    Prepared,
    RandomKey,
    Step,
    Value,
    freed_by,
)
from poptorch.host.running.prepared import Preparing
from poptorch.runtime.values.factored import Product
from poptorch.runtime.values.weights import copies_of


def driven(program: HostProgram) -> Callable[..., Sequence[Any]]:
    """The function that a host program describes, by a loop over its steps."""
    preparing = {id(step): Preparing(program, step) for step in program.steps if isinstance(step, Prepared)}
    size = len(program.names)

    def run(*arguments: Any) -> Sequence[Any]:
        values: list[Any] = [None] * size
        given: dict[str, Any] = {}
        rest = iter(arguments)
        for argument in program.arguments:
            if argument.apart:
                taken: Any = [next(rest) for _ in argument.values]
            else:
                taken = given[argument.name] = next(rest)
            for number, value in zip(argument.values, taken if argument.values else (), strict=True):
                values[number] = value
        del arguments, rest, taken
        for step in program.steps:
            _perform(program, step, values, given, preparing)
        return [None if number is None else values[number] for number in program.results]

    return run


def _perform(
    program: HostProgram, step: Step, values: list[Any], given: Mapping[str, Any], preparing: Mapping[int, Preparing]
) -> None:
    if isinstance(step, KernelCall):
        operands = [values[number] for number in step.inputs]
        for number in step.frees:
            values[number] = None  # the kernel is the only owner, and lets go of it as early as it can
        made = program.kernels[step.kernel].run(operands)  # type: ignore[misc]
        for number, value in zip(step.outputs, made, strict=True):
            values[number] = None if number in step.frees else value
    elif isinstance(step, HandOver):
        handed = [values[number] for number in step.values]
        for number in step.values:
            values[number] = None
        given["hand"](step.bucket, handed)
    elif isinstance(step, Prepared):
        groups = {name: group for name, group in given.items() if name in ("parameters", "buffers", "constants")}
        for number, value in zip(step.outputs, preparing[id(step)](**groups), strict=True):
            values[number] = value
    else:
        value = _computed(program, step, values, given)
        if step.output is not None:
            values[step.output] = value
        for number in freed_by(step):
            values[number] = None


def _computed(
    program: HostProgram, step: Constant | RandomKey | Factors | Operation, values: list[Any], given: Mapping[str, Any]
) -> Any:
    if isinstance(step, Constant):
        return step.value
    if isinstance(step, RandomKey):
        return given["random"].as_tensor()
    if isinstance(step, Factors):
        return Product(values[step.left], values[step.right], step.transposed)

    def evaluated(expression: Any) -> Any:
        if isinstance(expression, Value):
            return values[expression.number]
        if isinstance(expression, Apply):
            arguments = [evaluated(a) for a in expression.args]
            return found(expression.function)(*arguments, **{k: evaluated(v) for k, v in expression.kwargs})
        if isinstance(expression, (list, tuple)):
            return type(expression)(map(evaluated, expression)) if type(expression) in (list, tuple) else expression
        if isinstance(expression, slice):
            return slice(*map(evaluated, (expression.start, expression.stop, expression.step)))
        if isinstance(expression, Mapping):
            return {key: evaluated(value) for key, value in expression.items()}
        return expression

    def found(name: str) -> Callable[..., Any]:
        if name == "random":
            return given["random"]
        return copies_of(given["parameters"]) if name == "copies" else program.functions[name]

    return evaluated(step.call)
