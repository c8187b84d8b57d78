"""A host program as straight-line Python: where steps are tiny, a loop over them would take longer than they do."""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poptorch.executable.host_code import Code
from poptorch.executable.host_program import (
    Apply,
    Argument,
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
    read_by,
)
from poptorch.executable.host_verify import verify
from poptorch.host.running.driver import driven
from poptorch.host.running.prepared import Preparing
from poptorch.runtime.values.factored import Product
from poptorch.runtime.values.weights import copies_of

MANY_KERNELS = 24
"""With so many kernels, the loop of the driver is nothing beside them."""

RESERVED = frozenset({"operands", "handed", "prepared", "copies", "random", "hand", "state", "Product"})
"""Names of Python that a rendered program uses for itself, beside those of its arguments."""

_OF_FUNCTIONS = re.compile("(op|literal|narrow|stochastic|check|watch|kernel|prepare)(_|$)")
"""How the names of functions and other globals begin."""

_WEIGHT_GROUPS = ("parameters", "buffers", "constants")
_LASTING = (*_WEIGHT_GROUPS, "loss_scale", "state")
"""Arguments that may be gone through more than once."""


@dataclass(frozen=True)
class Rendered:
    """The text of a program, and the function that it defines."""

    source: str
    run: Callable[..., Sequence[Any]]
    steps: tuple[int | None, ...]
    """Which step each line is about, by number."""

    namespace: dict[str, Any]


def code_of(program: HostProgram) -> Code:
    """What runs a program: its text, or the driver."""
    verify(program)
    if len(program.kernel_calls) >= MANY_KERNELS:
        return Code(driven(program), str(program), program)
    rendered = render(program)
    return Code(rendered.run, rendered.source, program)


def render(program: HostProgram) -> Rendered:
    """Straight-line Python for a program."""
    return _Renderer(program).rendered()


class _Renderer:
    def __init__(self, program: HostProgram) -> None:
        self._program = program
        self._names = program.names
        self._kernels: dict[str, str] = {}
        self._globals: dict[str, Any] = {}
        self._literals: dict[int, str] = {}
        self._lines: list[str] = []
        self._steps: list[int | None] = []
        self._at: int | None = None
        self._spread = self._spread_groups()
        self._prepares = any(isinstance(step, Prepared) for step in program.steps)
        self._used = {n for step in program.steps if not isinstance(step, Prepared) for n in read_by(step)}
        self._used.update(n for n in program.results if n is not None)

    # -- groups of values that are passed on as they come --------------------------------------------------------

    def _groups(self) -> dict[str, tuple[int, ...]]:
        groups = {a.name: a.values for a in self._program.arguments if a.values}
        for step in self._program.steps:
            if isinstance(step, Prepared) and step.outputs:
                groups["prepared"] = step.outputs
        return groups

    def _spread_groups(self) -> dict[int, tuple[str, int]]:
        """By their first value: arguments of which kernels take all values, in order, and nothing else does."""
        groups = self._groups()
        uses: Counter[int] = Counter()
        whole: Counter[str] = Counter()
        by_first = {values[0]: (name, len(values)) for name, values in groups.items()}
        for step in self._program.steps:
            if isinstance(step, Prepared):
                continue
            read = read_by(step)
            uses.update(read)
            if isinstance(step, KernelCall):
                for index, number in enumerate(read):
                    name, length = by_first.get(number, ("", 0))
                    if name and read[index : index + length] == groups[name]:
                        whole[name] += 1
        uses.update(n for n in self._program.results if n is not None)
        spread = {}
        for name, values in groups.items():
            count = whole[name]
            if count and all(uses[n] == count for n in values) and (count == 1 or name in (*_LASTING, "prepared")):
                spread[values[0]] = name, len(values)
        return spread

    # -- lines ---------------------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self._lines.append("    " + text)
        self._steps.append(self._at)

    def rendered(self) -> Rendered:
        program = self._program
        head = []
        for argument in program.arguments:
            if argument.apart and argument.values and argument.values[0] not in self._spread:
                head += [self._names[n] for n in argument.values]
            else:
                head.append(f"*{argument.name}" if argument.apart else argument.name)
                self._unpack(argument)
        calls = [step.call for step in program.steps if isinstance(step, Operation)]
        if any(_applies(call, "copies") for call in calls):
            self._globals["copies_of"] = copies_of
            self._line("copies = copies_of(parameters)")
        last = len(program.steps) - 1
        returned = False
        for index, step in enumerate(program.steps):
            self._at = index
            if index == last and isinstance(step, KernelCall) and step.outputs == program.results:
                self._line(f"return {self._called(step)}")
                returned = True
            else:
                self._step(step)
        self._at = None
        if not returned:
            self._line(f"return {self._tuple(program.results)}")
        about = f"# {program.about}\n" if program.about else ""
        source = about + "\n".join([f"def {program.name}({', '.join(head)}):", *self._lines]) + "\n"
        namespace = dict(self._globals)
        exec(compile(source, f"<poptorch {program.name}>", "exec"), namespace)  # our own text, never the user's
        before = [None] * (2 if about else 1)
        return Rendered(source, namespace[program.name], (*before, *self._steps), namespace)

    def _unpack(self, argument: Argument) -> None:
        """Give the values of an argument their names, unless they are passed on as they come."""
        values = argument.values
        if not values or values[0] in self._spread:
            return
        if argument.name in _WEIGHT_GROUPS and self._prepares:
            for index, number in enumerate(values):  # most of them were prepared
                if number in self._used:
                    self._line(f"{self._names[number]} = {argument.name}[{index}]")
        else:
            self._line(f"{', '.join(self._names[n] for n in values)}, = {argument.name}")

    def _step(self, step: Step) -> None:
        names = self._names
        if isinstance(step, Constant):
            self._globals[names[step.output]] = step.value
        elif isinstance(step, RandomKey):
            self._line(f"{names[step.output]} = random.as_tensor()")
        elif isinstance(step, Prepared):
            self._prepared(step)
        elif isinstance(step, KernelCall):
            self._kernel_call(step)
        elif isinstance(step, HandOver):
            self._line(f"handed = [{', '.join(names[n] for n in step.values)}]")
            self._delete(step.values)
            self._line(f"hand({step.bucket}, handed)")
            self._line("del handed")
        elif isinstance(step, Factors):
            self._globals["Product"] = Product
            self._line(f"{names[step.output]} = Product({names[step.left]}, {names[step.right]}, {step.transposed!r})")
            self._delete(step.frees)
        else:
            target = "" if step.output is None else f"{names[step.output]} = "
            self._line(target + self._text(step.call))
            self._delete(step.frees)

    def _delete(self, numbers: Sequence[int]) -> None:
        if numbers:
            self._line(f"del {', '.join(self._names[n] for n in numbers)}")

    def _prepared(self, step: Prepared) -> None:
        self._globals["prepare"] = Preparing(self._program, step)
        groups = {a.name for a in self._program.arguments} & set(_WEIGHT_GROUPS)
        given = ", ".join(f"{name}={name}" for name in _WEIGHT_GROUPS if name in groups)
        self._line("try:")
        self._line("    prepared = parameters.derived[prepare]")
        self._line("except (AttributeError, KeyError):  # a plain list of weights keeps nothing")
        self._line(f"    prepared = prepare({given})")
        if step.outputs and step.outputs[0] not in self._spread:
            self._line(f"{', '.join(self._names[n] for n in step.outputs)}, = prepared")

    def _kernel_call(self, step: KernelCall) -> None:
        call = self._called(step)
        if not step.outputs:
            self._line(call)
            return
        self._line(f"{', '.join(self._names[n] for n in step.outputs)}, = {call}")
        self._delete([n for n in step.outputs if n in step.frees])

    def _called(self, step: KernelCall) -> str:
        """The call itself; before it, the kernel becomes the only owner of what nothing else needs."""
        passed_on = self._passed_on()
        held = [n for n in step.frees if n not in step.outputs and n not in passed_on]
        operands = self._operands(step.inputs)
        if held:
            self._line(f"operands = {operands}")
            self._delete(held)
        return f"{self._kernel(step.kernel)}({'operands' if held else operands})"

    def _passed_on(self) -> set[int]:
        """Values that never have a name."""
        groups = self._groups()
        return {number for name, _ in self._spread.values() for number in groups[name]}

    def _kernel(self, name: str) -> str:
        if name not in self._kernels:
            known = self._kernels[name] = f"kernel_{len(self._kernels)}"
            self._globals[known] = self._program.kernels[name].run
        return self._kernels[name]

    def _operands(self, numbers: Sequence[int]) -> str:
        parts, index = [], 0
        while index < len(numbers):
            name, length = self._spread.get(numbers[index], ("", 1))
            parts.append(f"*{name}" if name else self._names[numbers[index]])
            index += length
        return f"[{', '.join(parts)}]"

    def _tuple(self, numbers: Sequence[int | None]) -> str:
        return "(" + "".join(f"{None if n is None else self._names[n]}, " for n in numbers) + ")"

    # -- expressions ---------------------------------------------------------------------------------------------

    def _text(self, value: Any) -> str:
        if isinstance(value, Value):
            return self._names[value.number]
        if isinstance(value, Apply):
            arguments = [self._text(a) for a in value.args]
            arguments += [f"{name}={self._text(v)}" for name, v in value.kwargs]
            if value.function in self._program.functions:
                self._globals[value.function] = self._program.functions[value.function]
            return f"{value.function}({', '.join(arguments)})"
        if isinstance(value, slice):
            return f"slice({self._text(value.start)}, {self._text(value.stop)}, {self._text(value.step)})"
        if isinstance(value, tuple):
            return "(" + "".join(self._text(v) + ", " for v in value) + ")"
        if isinstance(value, list):
            return "[" + ", ".join(self._text(v) for v in value) + "]"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{k!r}: {self._text(v)}" for k, v in value.items()) + "}"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        name = f"literal_{len(self._globals)}"
        self._globals[name] = value
        return name


def _applies(expression: Any, function: str) -> bool:
    """Whether an expression calls a function."""
    if isinstance(expression, Apply):
        inner = [*expression.args, *(value for _, value in expression.kwargs)]
        return expression.function == function or any(_applies(value, function) for value in inner)
    return isinstance(expression, (list, tuple)) and any(_applies(value, function) for value in expression)


class Naming:
    """Different names of Python for values."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._taken = {*RESERVED, *taken}
        self.names: list[str] = []

    def add(self, wanted: str) -> int:
        """The number of a new value, called like this or nearly so."""
        base = re.sub(r"\W", "_", wanted)
        base = base if base.isidentifier() and not _OF_FUNCTIONS.match(base) else f"v_{base}"
        while base in self._taken or keyword.iskeyword(base):
            base += "_"
        self._taken.add(base)
        self.names.append(base)
        return len(self.names) - 1


__all__ = ["MANY_KERNELS", "RESERVED", "Naming", "Rendered", "code_of", "render"]
