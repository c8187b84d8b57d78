"""Writing a tensor as text: brackets, alignment, number formats, summaries and line breaks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

FLOAT_FORMATS = {"auto": 0, "fixed": 1, "scientific": 2, "none": 3}

_Nested = Any
"""A number, or a list of the same; an ellipsis stands for what a summary leaves out."""


@dataclass(frozen=True)
class Layout:
    """How tensors are written; the fields are the formatting arguments of ``ipu_print_tensor``."""

    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ","
    open_bracket: str = "("
    close_bracket: str = ")"

    @classmethod
    def from_text(cls, text: str) -> Layout:
        return cls(**json.loads(text))

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def render(self, title: str, tensor: torch.Tensor) -> str:
        """The text of ``tensor``, headed by ``title``.

        >>> layout = Layout(separator=" ", open_bracket="[", close_bracket="]")
        >>> print(layout.render("x", torch.tensor([6, 9, 12])))
        x: [ 6  9 12]
        """
        values = self._shown(tensor)
        write = self._number_writer(list(_numbers(values)))
        return "\n".join(self._lines(f"{title}: ", values, write, depth=0))

    def _shown(self, tensor: torch.Tensor) -> _Nested:
        """The elements as nested lists, the middle of long dimensions replaced by an ellipsis."""
        tensor = tensor.detach()
        if tensor.dtype == torch.bool:
            tensor = tensor.to(torch.int32)
        elif tensor.dtype.is_floating_point:
            tensor = tensor.to(torch.float64)
        summarise = 0 < self.summarise_threshold < tensor.numel()
        return _nested(tensor, self.edge_items if summarise else None)

    def _number_writer(self, numbers: list[float | int]) -> Callable[[Any], str]:
        write = self._unaligned_writer(numbers)
        if self.digits == 0 or self.float_format == "none":
            return write
        width = max((len(write(number)) for number in numbers), default=0)
        return lambda number: write(number).rjust(width)

    def _unaligned_writer(self, numbers: list[float | int]) -> Callable[[Any], str]:
        if all(isinstance(number, int) for number in numbers):
            return str
        digits = self.digits or 6
        if self.float_format == "none":
            return lambda number: f"{number:.{digits}g}"
        finite = [abs(number) for number in numbers if math.isfinite(number) and number]
        largest = max(finite, default=1.0)
        scientific = self.float_format == "scientific"
        if self.float_format == "auto":
            scientific = largest >= 10.0**digits or min(finite, default=1.0) < 1e-4
        if scientific:
            return lambda number: f"{number:.{digits - 1}e}"
        decimals = max(digits - max(math.floor(math.log10(largest)) + 1, 1), 0)
        return lambda number: f"{number:.{decimals}f}"

    def _lines(self, prefix: str, values: _Nested, write: Callable[[Any], str], depth: int) -> Iterator[str]:
        if not isinstance(values, list):
            yield prefix + write(values)
        elif any(isinstance(value, list) for value in values):
            yield prefix + self.open_bracket
            for value in values:
                indent = " " * (depth + 1)
                if value is ...:
                    yield indent + "..."
                else:
                    yield from self._lines(indent, value, write, depth + 1)
            yield " " * depth + self.close_bracket
        else:
            yield from self._row(prefix + self.open_bracket, values, write, " " * (depth + 2))

    def _row(self, line: str, values: list[Any], write: Callable[[Any], str], indent: str) -> Iterator[str]:
        """One innermost row, broken after a separator where the next element would exceed the line width."""
        empty = True
        for index, value in enumerate(values):
            last = index == len(values) - 1
            text = ("..." if value is ... else write(value)) + (self.close_bracket if last else self.separator)
            if not empty and self.max_line_width and len(line) + len(text) > self.max_line_width:
                yield line
                line = indent
            line += text
            empty = False
        yield line if values else line + self.close_bracket


def _nested(tensor: torch.Tensor, edge_items: int | None) -> _Nested:
    if tensor.dim() == 0:
        return tensor.item()
    size = tensor.size(0)
    if edge_items is None or size <= 2 * edge_items:
        return [_nested(row, edge_items) for row in tensor] if tensor.dim() > 1 else tensor.tolist()
    ends = [*range(edge_items), *range(size - edge_items, size)]
    rows = [_nested(tensor[index], edge_items) for index in ends]
    return [*rows[:edge_items], ..., *rows[edge_items:]]


def _numbers(values: _Nested) -> Iterator[Any]:
    if isinstance(values, list):
        for value in values:
            yield from _numbers(value)
    elif values is not ...:
        yield values
