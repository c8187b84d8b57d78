"""Faults that users rehearse, as ``POPTORCH_FAULTS`` describes them: the grammar, and what it stands for.

::

    faults  = item { ";" item }
    item    = fault | "seed=" number
    fault   = kind [ ":" setting { "," setting } ]
    setting = name "=" value

Spaces around the parts do not matter. ``docs/rehearsing.md`` has the kinds and the settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NoReturn

from poptorch import environment
from poptorch.errors import createPoptorchError

_PLACE = ("program", "iteration", "ipu", "stage", "replica")
_RUNNING = ("call", "probability", *_PLACE)


class FaultKind(Enum):
    """What goes wrong."""

    IPU_RESET = "ipu_reset"
    PARTITION_RESET = "partition_reset"
    FULL_RESET = "full_reset"
    UNRECOVERABLE = "unrecoverable"
    UNKNOWN_ERROR = "unknown_error"
    WORKER_ERROR = "worker_error"
    SLOW = "slow"
    LINK_ERROR = "link_error"

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that make sense for it."""
        if self is FaultKind.LINK_ERROR:
            return ("compilation", "probability", "program")
        return (*_RUNNING, "seconds") if self is FaultKind.SLOW else _RUNNING


@dataclass(frozen=True)
class Numbers:
    """Some of the numbers from 1 on.

    >>> 3 in Numbers(2, 4), 5 in Numbers(2, 4), 99 in Numbers(2, math.inf)
    (True, False, True)
    """

    first: int = 1
    last: float = math.inf

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last


@dataclass(frozen=True)
class Fault:
    """One fault: what, when and where."""

    kind: FaultKind
    number: int
    """Its place in the text, from 1."""

    times: Numbers = field(default_factory=Numbers)
    """Of the calls (for link errors: of the compilations) that it looks at, those in which it may strike."""

    probability: float = 1.0
    """With which it strikes then."""

    program: str | None = None
    iteration: int | None = None
    ipu: int | None = None
    stage: int | None = None
    replica: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class FaultList:
    """All that one text says."""

    faults: tuple[Fault, ...]
    seed: int


def parse_faults(text: str) -> FaultList:
    """What a value of ``POPTORCH_FAULTS`` stands for; an error says where it is not understood.

    >>> parse_faults("seed=7; ipu_reset: call=3, ipu=1").faults[0].ipu
    1
    >>> parse_faults("ipu_reset:call=three")
    Traceback (most recent call last):
    ...
    poptorch.errors.Error: 'poptorch_py_error': The environment variable POPTORCH_FAULTS ... position 16: ...
    """
    reader, faults, seed = _FaultReader(text), list[Fault](), None
    for item in reader.parts(0, len(text), ";"):
        word, end = reader.word(*item, ":=")
        if word == "seed":
            if seed is not None:
                reader.fail(item[0], "there is a second seed")
            seed = reader.value(end, item[1], _WHOLE, "seed")
        else:
            faults.append(_fault(reader, word, item, end, len(faults) + 1))
    return FaultList(tuple(faults), seed or 0)


def _fault(reader: _FaultReader, word: str, item: tuple[int, int], end: int, number: int) -> Fault:
    names = [kind.value for kind in FaultKind]
    if word.lower() not in names:
        reader.fail(item[0], f"{_short(word)!r} is no kind of fault; use {_any_of(names)}")
    fault, given = Fault(FaultKind(word.lower()), number), set[str]()
    if end < item[1]:
        if reader.text[end] != ":":
            reader.fail(end, f"a ':' is expected between {_short(word)!r} and its settings")
        for start, stop in reader.parts(end + 1, item[1], ","):
            name, equals = reader.word(start, stop, "=")
            if name not in fault.kind.settings:
                reader.fail(start, f"{word} has no setting {_short(name)!r}; use {_any_of(fault.kind.settings)}")
            if name in given:
                reader.fail(start, f"{name!r} is set twice")
            given.add(name)
            attribute = "times" if name in ("call", "compilation") else name
            fault = replace(fault, **{attribute: reader.value(equals, stop, _VALUES[name], name)})
    if fault.kind is FaultKind.SLOW and "seconds" not in given:
        reader.fail(item[0], "slow needs a setting seconds=...")
    return fault


class _FaultReader:
    """The text, and where in it something is wrong."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fail(self, at: int, what: str) -> NoReturn:
        line, place = _around(self.text, at)
        raise createPoptorchError(
            f"The environment variable {environment.FAULTS.name} is not understood at position {at + 1}: {what}.\n"
            f"  {line}\n  {' ' * place}^"
        )

    def trimmed(self, start: int, stop: int) -> tuple[int, int]:
        while start < stop and self.text[start].isspace():
            start += 1
        while stop > start and self.text[stop - 1].isspace():
            stop -= 1
        return start, stop

    def parts(self, start: int, stop: int, separator: str) -> Iterator[tuple[int, int]]:
        """From where to where the parts between separators go; none of them may be empty."""
        while True:
            found = self.text.find(separator, start, stop)
            part = self.trimmed(start, stop if found < 0 else found)
            if part[0] == part[1]:
                self.fail(part[0], "something is missing here")
            yield part
            if found < 0:
                return
            start = found + 1

    def word(self, start: int, stop: int, ends: str) -> tuple[str, int]:
        """The word before the first of some signs, and where that sign is."""
        end = next((at for at in range(start, stop) if self.text[at] in ends), stop)
        return self.text[start:end].strip(), end

    def value(self, equals: int, stop: int, read: _FaultValue, name: str) -> Any:
        """What comes after the equals sign."""
        if equals >= stop or self.text[equals] != "=":
            self.fail(equals, f"{name!r} needs a value, as in {name}={read.example}")
        start, stop = self.trimmed(equals + 1, stop)
        found = read.of(self.text[start:stop])
        if found is None:
            self.fail(start, f"{name!r} must be {read.accepts}, as in {name}={read.example}")
        return found


@dataclass(frozen=True)
class _FaultValue:
    """A kind of value; ``of`` gives ``None`` for text that is none."""

    of: Callable[[str], Any]
    accepts: str
    example: str


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _from_one(text: str) -> int | None:
    return _whole(text) or None


def _numbers(text: str) -> Numbers | None:
    first, dots, last = (part.strip() for part in text.partition(".."))
    begin, end = _from_one(first), _from_one(last)
    if begin is None or (last and (end is None or end < begin)):
        return None
    if not dots:
        return Numbers(begin, begin)
    return Numbers(begin, math.inf if end is None else end)


def _decimal(text: str, most: float) -> float | None:
    number = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,18})?", text) else None
    return number if number is not None and number <= most else None


_LONGEST_S = 3600.0
_WHOLE = _FaultValue(_whole, "a whole number", "1")
_TIMES = _FaultValue(_numbers, "a number from 1, or a range of them", "3 or 3..5 or 3..")
_VALUES = {
    "call": _TIMES,
    "compilation": _TIMES,
    "iteration": _FaultValue(_from_one, "a number from 1", "2"),
    "ipu": _WHOLE,
    "stage": _WHOLE,
    "replica": _WHOLE,
    "probability": _FaultValue(lambda text: _decimal(text, 1.0), "a number from 0 to 1", "0.01"),
    "seconds": _FaultValue(lambda text: _decimal(text, _LONGEST_S), f"a number from 0 to {_LONGEST_S:.0f}", "0.5"),
    "program": _FaultValue(
        lambda text: text if text in ("training", "inference") else None, "a kind of model", "training"
    ),
}


_LONGEST_WORD, _LONGEST_LINE = 40, 100


def _short(word: str) -> str:
    return word if len(word) <= _LONGEST_WORD else f"{word[:_LONGEST_WORD]}..."


def _around(text: str, at: int) -> tuple[str, int]:
    """One line of a text that may be any, with a place in it, and where in the line that is.

    >>> _around("x" * 1000, 500)[1], len(_around("x" * 1000, 500)[0])
    (53, 106)
    >>> _around("one\\ntwo", 4)
    ('one two', 4)
    """
    start = 0 if len(text) <= _LONGEST_LINE else max(0, at - _LONGEST_LINE // 2)
    end = start + _LONGEST_LINE
    shown = "".join(letter if letter.isprintable() else " " for letter in text[start:end])
    before, after = "..." if start else "", "..." if end < len(text) else ""
    return f"{before}{shown}{after}", at - start + len(before)


def _any_of(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"
