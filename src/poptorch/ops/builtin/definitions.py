"""What a built-in operator is, and the table of all of them.

Modules of this room describe operators as functions of tensors and attributes, in terms of torch: shapes, gradients,
costs and code follow from the operations that they call. A decorator adds each to the table::

    @graphcore("Scale", scale=Float(1.0))
    def _scale(x, *, scale):
        return x * scale
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from poptorch.ambient import CaptureSettings
from poptorch.ops.builtin.attributes import TypedAttribute

GRAPHCORE = "ai.graphcore"
ONNX = "ai.onnx"
ONNX_VERSIONS = range(6, 12)
UNLIMITED = 1 << 20

Body = Callable[..., Any]


class Key(NamedTuple):
    """The name of a definition, and the version of its domain that brought it."""

    domain: str
    name: str
    since: int

    def __str__(self) -> str:
        return f"{self.domain}.{self.name}:{self.since}"


@dataclass(frozen=True)
class Situation:
    """What an operator may ask about the call beside its inputs and attributes."""

    key: Key
    templates: tuple[torch.Tensor, ...]
    """The examples of outputs that the user gave."""

    training: bool = False
    """Whether the model is compiled for training."""

    settings: CaptureSettings = field(default_factory=CaptureSettings)
    """What the options of the model ask for."""

    originals: tuple[torch.Tensor, ...] = ()
    """The inputs before 64-bit types became 32-bit ones."""


@dataclass(frozen=True)
class Definition:
    """One operator from one version of its domain on."""

    key: Key
    body: Body
    attributes: Mapping[str, TypedAttribute]
    types: tuple[str, ...]
    """What each input may be: F floating-point, I integer, N a number, A anything; the last holds for all that follow.
    """

    outputs: int
    differentiable: bool
    min_inputs: int
    max_inputs: int
    keywords: Mapping[str, str] = field(default_factory=dict)
    """The name of each attribute as a parameter of the body."""

    wants_situation: bool = False


_table: dict[tuple[str, str], dict[int, Definition]] = {}


def graphcore(name: str, **settings: Any) -> Callable[[Body], Body]:
    """Describe an operator of the domain ``ai.graphcore``."""
    return operator(GRAPHCORE, name, 1, **settings)


def onnx(name: str, since: int = 6, **settings: Any) -> Callable[[Body], Body]:
    """Describe an operator of ``ai.onnx`` as it is defined from version ``since`` on."""
    return operator(ONNX, name, since, **settings)


def operator(
    domain: str,
    name: str,
    since: int,
    *,
    types: str | tuple[str, ...] = "A",
    outputs: int = 1,
    differentiable: bool = True,
    attributes: Mapping[str, TypedAttribute] | None = None,
    **more: TypedAttribute,
) -> Callable[[Body], Body]:
    """Add the decorated function to the table.

    Its positional parameters are the inputs, its keywords the attributes: those of ``attributes``, and those given as
    keywords. A keyword ``at`` receives the :class:`Situation`.
    """

    def add(body: Body) -> Body:
        known = {**(attributes or {}), **more}
        positional, wants_situation = _parameters(body)
        least = sum(p.default is p.empty for p in positional if p.kind is not p.VAR_POSITIONAL)
        unlimited = any(p.kind is p.VAR_POSITIONAL for p in positional)
        _table.setdefault((domain, name), {})[since] = Definition(
            Key(domain, name, since),
            body,
            known,
            tuple(types) if isinstance(types, tuple) else (types,),
            outputs,
            differentiable,
            least,
            UNLIMITED if unlimited else len(positional),
            {key: _as_keyword(key) for key in known},
            wants_situation,
        )
        return body

    return add


def _parameters(body: Body) -> tuple[list[inspect.Parameter], bool]:
    parameters = inspect.signature(body).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    return positional, any(p.name == "at" for p in parameters)


def _as_keyword(name: str) -> str:
    name = name.lstrip("_")
    return f"{name}_" if keyword.iskeyword(name) else name


def versions_of(domain: str, name: str) -> dict[int, Definition]:
    """The definitions of an operator by the version that brought each; empty if there is none."""
    return _table.get((domain, name), {})


def names_in(domain: str) -> list[str]:
    """The operators of a domain, sorted."""
    return sorted(name for known, name in _table if known == domain)


def definitions() -> Iterator[Definition]:
    """All definitions, sorted by domain, name and version."""
    for entry in sorted(_table):
        for since in sorted(_table[entry]):
            yield _table[entry][since]
