"""Sequences of passes over elements, written as words.

A word is an operation of one codelet: ``exp`` has one operand, ``add`` has two of a size, ``add#`` has a tensor and a
number, ``gelu_tanh~`` is a non-linearity and ``gelu_tanh'`` its gradient. ``select``, ``select#``, ``clamp``,
``scaled_add`` and ``cast`` are what they say.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.cycles import elementwise, loops, nonlinear, randomness
from poptorch.ipu_model.cycles.scaled_add import scaled_add
from poptorch.ipu_model.rules.passes import each_element
from poptorch.ipu_model.steps import CostStep


def word_cycles(word: str, elements: int, dtype: torch.dtype) -> float:
    """Cycles of a tile for one pass.

    >>> word_cycles("multiply#", 1200, torch.float16)
    731
    """
    if word.endswith("~"):
        return nonlinear.nonlinearity(word[:-1], elements, dtype)
    if word.endswith("'"):
        return nonlinear.nonlinearity_gradient(word[:-1], elements, dtype)
    if word in ("select", "select#"):
        return elementwise.select(elements, dtype, word == "select#")
    if word == "clamp":
        return elementwise.clamp(elements, dtype)
    if word == "scaled_add":
        return scaled_add(elements, dtype, dtype)
    if word == "cast":
        other = torch.float16 if dtype.itemsize >= 4 else torch.float32
        return elementwise.cast(elements, other, dtype)
    if word == "dropout":
        return randomness.dropout(elements, dtype)
    if word.endswith("#"):
        return elementwise.scalar(word[:-1], elements, dtype)
    if word in loops.UNARY_NAMES:
        return elementwise.unary(word, elements, dtype)
    return elementwise.binary(word, elements, dtype)


def codelet(word: str) -> str:
    """The family of code of a word."""
    if word[-1] in _MARKS:
        return "select" if word == "select#" else _MARKS[word[-1]]
    if word in ("select", "clamp", "cast", "scaled_add"):
        return word
    if word == "dropout":
        return "random"
    return "unary" if word in loops.UNARY_NAMES else "binary"


_MARKS = {"~": "nonlinearity", "'": "gradient", "#": "scalar"}


def sequence(
    chip: Architecture, name: str, words: str | Sequence[str], elements: int, dtype: torch.dtype, moved: float = 0.0,
    fragments: int = 1, repeat: int = 1,
) -> list[CostStep]:  # fmt: skip
    """One step for each word; ``moved`` bytes arrive on the busiest tile before the first."""
    steps: list[CostStep] = []
    for word in words.split() if isinstance(words, str) else words:
        steps.append(
            each_element(
                chip,
                f"{name}: {word}",
                elements,
                dtype,
                lambda own, word=word: word_cycles(word, own, dtype),  # type: ignore[misc]
                codelet(word),
                0.0 if steps else moved,
                fragments,
                repeat,
            )
        )
    return steps


def expression(
    chip: Architecture, name: str, words: str, elements: int, dtype: torch.dtype, moved: float = 0.0, fragments: int = 1
) -> CostStep:
    """All words in one generated codelet: one loop that does all of it, and one launch."""

    def cycles(own: int) -> float:
        empty = [word_cycles(word, 0, dtype) for word in words.split()]
        return max(empty) + sum(
            word_cycles(word, own, dtype) - nothing for word, nothing in zip(words.split(), empty, strict=True)
        )

    return each_element(chip, name, elements, dtype, cycles, "fused", moved, fragments)


__all__ = ["codelet", "expression", "sequence", "word_cycles"]
