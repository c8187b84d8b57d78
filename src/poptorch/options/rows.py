"""The shape of one entry of the option table, and nothing about any particular option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal


class _Marker:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __deepcopy__(self, memo: object) -> _Marker:
        return self


ABSENT: Final = _Marker("ABSENT")
"""The default of a key that holds nothing until it is first set."""

REQUIRED: Final = inspect.Parameter.empty
"""The default of a parameter that must be given."""

Effect = Literal["host", "modelled", "none", "later"]
"""``later``: stored and checked, but the part of the package that acts on it is not there yet; a warning says so."""
Store = Literal["container", "popart", "python"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a setter."""

    name: str
    annotation: Any
    default: Any = REQUIRED
    variadic: bool = False


@dataclass(frozen=True)
class Key:
    """One place where a setter keeps a value.

    ``store`` says where: in the ``container`` itself (also readable as an attribute, and part of ``toDict``),
    in the pass-through ``popart`` dictionary, or on the ``python`` side only (a read-only property, never in
    ``toDict``).
    """

    name: str
    default: Any = ABSENT
    declared: type | None = None
    """The type that values must have; taken from the default when it has one."""
    store: Store = "container"

    @property
    def type(self) -> type:
        """What values of this key must be instances of."""
        if self.declared is not None:
            return self.declared
        return object if self.default is ABSENT else self.default.__class__


@dataclass(frozen=True)
class Refusal:
    """A call that must fail: with these arguments, this type of error, and this phrase in its message."""

    arguments: tuple[Any, ...]
    error: type[Exception]
    phrase: str = ""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: everything that its setter, default, type check, documentation and tests are made from."""

    group: str
    method: str
    parameters: tuple[Parameter, ...] = ()
    keys: tuple[Key, ...] = ()
    doc: str
    effect: Effect
    effect_note: str
    """One line on what the option does on virtual IPUs."""

    example: str
    """Arguments of an example call, as source text."""
    stored: str
    """What the first key then holds, as source text."""

    apply: Callable[..., None] | None = None
    """Checks and stores the arguments; without it the only argument goes to the only key as it is."""
    refusals: tuple[Refusal, ...] = ()
    since: str | None = None
    until: str | None = None
    returns_self: bool = True
    blocked_when_frozen: bool = True
    replacement: str | None = None
    """The method that took this one's place; calling the old one logs a deprecation warning."""
    renamed_parameters: Mapping[str, str] = field(default_factory=dict)
    """Keyword names of earlier releases, and today's names."""

    @property
    def key(self) -> str | None:
        """The name of the first key."""
        return self.keys[0].name if self.keys else None

    @property
    def default(self) -> Any:
        """The default of the first key, or ``ABSENT``."""
        return self.keys[0].default if self.keys else ABSENT

    @property
    def qualified_name(self) -> str:
        """How the setter is reached: ``Options.Training.gradientAccumulation``."""
        prefix = self.group if self.group in ("Options", "TensorLocationSettings") else f"Options.{self.group}"
        return f"{prefix}.{self.method}"

    def signature(self) -> inspect.Signature:
        """The setter's signature, ``self`` included."""
        own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        for parameter in self.parameters:
            kind = inspect.Parameter.VAR_POSITIONAL if parameter.variadic else inspect.Parameter.POSITIONAL_OR_KEYWORD
            own.append(
                inspect.Parameter(parameter.name, kind, default=parameter.default, annotation=parameter.annotation)
            )
        return inspect.Signature(own)
