"""Stochastic rounding: float16 results are one of the two neighbours of the exact value, at random and unbiased."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from poptorch.host.interpret.half import result_types

_DROPPED = 13
"""Bits of a float32's fraction that float16 does not have."""
_SMALLEST_NORMAL = 2.0**-14


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """``values`` (float32) as float16, each rounded up or down so that its expectation is the value itself.

    >>> x = torch.full((4000,), 1.0 + 2.0**-12)  # a quarter of the way to the next float16
    >>> r = round_stochastically(x, torch.Generator().manual_seed(0))
    >>> sorted(set(r.tolist())), bool(abs((r > 1).float().mean() - 0.25) < 0.05)
    ([1.0, 1.0009765625], True)
    """
    values = values.float()
    noise = torch.randint(0, 1 << _DROPPED, values.shape, generator=generator, dtype=torch.int32)
    magnitude = values.abs()
    # Below the normal range float16 has a fixed spacing. Adding the smallest normal number moves a value to where
    # float16 has that same spacing, so that one way of rounding serves both.
    offset = torch.where(magnitude < _SMALLEST_NORMAL, _SMALLEST_NORMAL, 0.0)
    bits = (magnitude + offset).view(torch.int32)
    truncated = ((bits + noise) & -(1 << _DROPPED)).view(torch.float32) - offset
    rounded = torch.where(magnitude.isfinite(), truncated, magnitude)
    return torch.copysign(rounded, values).half()


def stochastic_rounding(node: fx.Node) -> Callable[[Any, torch.Generator], Any]:
    """A function that gives a node's results their promised types, float16 ones by stochastic rounding."""
    types = result_types(node)

    def one(result: Any, dtype: torch.dtype | None, generator: torch.Generator) -> Any:
        if dtype is None or result is None or result.dtype is dtype:
            return result
        return round_stochastically(result, generator) if dtype is torch.float16 else result.to(dtype)

    if not isinstance(types, tuple):
        return lambda result, generator: one(result, types, generator)
    return lambda results, generator: [one(r, t, generator) for r, t in zip(results, types, strict=True)]


class StochasticInPlace:
    """An in-place operation on float16 tensors, done on float32 copies and written back by stochastic rounding."""

    def __init__(self, overload: Any) -> None:
        self._overload = overload
        self._written = [
            a.name for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write
        ]
        self._names = [a.name for a in overload._schema.arguments]

    def __call__(self, *args: Any, generator: torch.Generator, **kwargs: Any) -> Any:
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        wide = {name: _float_copies(value) for name, value in given.items()}
        result = self._overload(**wide)
        for name in self._written:
            for target, source in zip(_listed(given[name]), _listed(wide[name]), strict=True):
                if target is not source:
                    target.copy_(round_stochastically(source, generator))
        # An in-place operation returns what it wrote to.
        written = given[self._written[0]]
        return written if isinstance(result, torch.Tensor) and isinstance(written, torch.Tensor) else None


def _float_copies(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype is torch.float16 else value
    if isinstance(value, (list, tuple)):
        return [_float_copies(v) for v in value]
    return value


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
