"""What each output of a program means."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from poptorch.enums import OverlapMode


class OutputKind(enum.Enum):
    """What becomes of an output. Programs return their outputs grouped by kind, in this order."""

    SEND = "send"
    """Another stage of the model needs it."""

    RESULT = "result"
    """The user gets it."""

    GRADIENT = "gradient"
    """The accumulator, or the weight update, needs it."""

    ANCHOR = "anchor"
    """An inner value that the user asked for by name."""

    COUNT = "count"
    """How many elements of some gradients are large, for automatic loss scaling."""

    FACTOR = "factor"
    """The right factor of a gradient that the accumulator multiplies; the left one is in the gradient's place."""


KINDS = tuple(OutputKind)
"""In the order of a program's outputs."""


@dataclass(frozen=True)
class Output:
    """One output of a program.

    >>> str(Output(OutputKind.GRADIENT, "fc.weight"))
    'gradient of fc.weight'
    """

    kind: OutputKind
    name: str
    """For people. The name of a gradient is that of its parameter, of an anchor what the user asked for."""

    overlap: OverlapMode | None = None
    """When the copy of a result to the host may happen, if the user said so."""

    def __str__(self) -> str:
        return f"gradient of {self.name}" if self.kind is OutputKind.GRADIENT else self.name


def positions_of(outputs: Sequence[Output], kind: OutputKind) -> range:
    """Where the outputs of one kind are; they lie side by side.

    >>> names = [Output(OutputKind.RESULT, "loss"), Output(OutputKind.GRADIENT, "w"), Output(OutputKind.GRADIENT, "b")]
    >>> positions_of(names, OutputKind.GRADIENT), positions_of(names, OutputKind.ANCHOR)
    (range(1, 3), range(3, 3))
    """
    first = sum(KINDS.index(o.kind) < KINDS.index(kind) for o in outputs)
    return range(first, first + sum(o.kind is kind for o in outputs))


__all__ = ["KINDS", "Output", "OutputKind", "positions_of"]
