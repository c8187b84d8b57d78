"""What every refusal has to be: the right type, in plain words, with the user's line and what to do instead."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import poptorch

MARK = "# here"
"""On the line of a program that a message must name."""

_ADVICE = re.compile(
    r"\b(use|pass|call|give|write|return|make|create|leave|set|put|convert|wrap|choose|compile|load|register|change|"
    r"rename|start|keep|save|move|copy|add|compute|must|expected|expects|consider|should|declare|list|supported|valid|needs)\b",
    re.IGNORECASE,
)
"""Words by which a message says what to do, or what would be right."""


@dataclass(frozen=True)
class Refused:
    """A program that is refused, and how."""

    program: Callable[..., Any]
    phrase: str
    kind: type[BaseException] = poptorch.Error
    settings: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.program.__name__


class Rows:
    """A table of programs, filled by decorating them.

    >>> rows = Rows()
    >>> @rows("no such thing")
    ... def program(): pass
    >>> [str(row) for row in rows.all]
    ['program']
    """

    def __init__(self) -> None:
        self.all: list[Refused] = []

    def __call__(
        self, phrase: str, kind: type[BaseException] = poptorch.Error, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(program: Callable[..., Any]) -> Callable[..., Any]:
            self.all.append(Refused(program, phrase, kind, settings))
            return program

        return add


def marked_line(program: Callable[..., Any]) -> str | None:
    """``file:line`` of the line with the mark; ``None`` if there is none."""
    lines, first = inspect.getsourcelines(program)
    found = [first + number for number, line in enumerate(lines) if MARK in line]
    return f"{inspect.getsourcefile(program)}:{found[0]}" if found else None


def failure_of(row: Refused, *args: Any) -> BaseException:
    """The error that a program ends in."""
    try:
        result = row.program(*args)
    except Exception as error:  # noqa: BLE001 - that is what is looked at
        return error
    raise AssertionError(f"{row} is not refused, but returns {result!r}")


def check(row: Refused, error: BaseException) -> None:
    """Whether an error is as all refusals have to be."""
    text = str(error)
    assert isinstance(error, row.kind), f"{type(error)}: {text}"
    assert not type(error).__module__.startswith("torch"), type(error)
    assert row.phrase in text
    if (row.settings or {}).get("advice", True):
        assert _ADVICE.search(text), f"no advice in: {text}"
    assert "FakeTensor" not in text
    place = marked_line(row.program)
    if place is not None and isinstance(error, poptorch.Error):
        assert place in text, f"{place} is not named in: {text}"
    shown = "".join(traceback.format_exception(error))
    assert "During handling of the above exception" not in shown
    assert error.__cause__ is None or not type(error.__cause__).__module__.startswith("torch")
    if place is not None:
        file, _, line = place.rpartition(":")
        assert f'File "{file}", line' in shown
        if not isinstance(error, poptorch.Error):
            assert f'File "{file}", line {line}' in shown


def check_devices_are_free(in_use: int = 0) -> None:
    """Another executor finds the first device that is not in use."""
    executor = poptorch.inferenceModel(nn.ReLU(), poptorch.Options().useIpuId(in_use))
    assert executor(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    executor.destroy()
