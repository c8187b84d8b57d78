"""What all option containers share: named values with types, freezing, copying, printing."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from poptorch.options.rows import ABSENT, Key

FROZEN_MESSAGE = "Can't modify frozen Options"

SomeFreezable = TypeVar("SomeFreezable", bound="Freezable")


def require(condition: bool, message: str) -> None:
    """Raise ``AssertionError``: the API promises it, and ``assert`` would vanish under ``python -O``."""
    if not condition:
        raise AssertionError(message)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` when a known name is close to ``name``, else nothing.

    >>> suggestion("deviceIteration", ["deviceIterations", "logDir"])
    " Did you mean 'deviceIterations'?"
    """
    candidates = [candidate for candidate in dict.fromkeys(known) if candidate != name]
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.8)
    if not close:  # snake_case and camelCase of the same words
        folded = {candidate.lower().replace("_", ""): candidate for candidate in reversed(candidates)}
        close = difflib.get_close_matches(name.lower().replace("_", ""), folded, n=1, cutoff=0.75)
        close = [folded[match] for match in close]
    return f" Did you mean {close[0]!r}?" if close else ""


def require_type(key: str, value: object, expected: type) -> None:
    """``AssertionError`` unless ``value`` may be stored under ``key``."""
    require(
        isinstance(value, expected),
        f"Unexpected type {type(value)} for option {key}. Expected {expected} (the value is {value!r})",
    )


class Freezable:
    """An object that can be made read-only; deep copies of it can be changed again."""

    _is_frozen: bool = False

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raise ``AttributeError`` if the object is read-only; ``option`` is what is about to change."""
        if self._is_frozen:
            what = f" (while setting {option!r})" if option else ""
            raise AttributeError(
                f"{FROZEN_MESSAGE}{what}: they belong to a model or a data loader already. "
                "Set options before you pass them on, or change a clone() and pass that. [PT3001]"
            )

    def _freeze(self) -> None:
        """Make the object read-only."""
        self._is_frozen = True

    def _unfreeze(self) -> None:
        """Make the object changeable again."""
        self._is_frozen = False

    def __deepcopy__(self: SomeFreezable, memo: dict[int, Any]) -> SomeFreezable:
        # One memo for the whole Options: its groups then share the copy's own pass-through object.
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        made.__dict__["_is_frozen"] = False
        return made


def _own_copy(default: Any) -> Any:
    """Collections are filled by setters, so each container has its own; other defaults are shared."""
    return copy.deepcopy(default) if isinstance(default, (dict, list, set)) else default


class OptionContainer(Freezable):
    """Named values that are read as attributes, set by type-checked setters, and can be frozen.

    >>> class Colours(OptionContainer):
    ...     _declared = {"red": Key("red", 1)}
    >>> colours = Colours()
    >>> colours.red = 5
    >>> colours
    Colours(red=5)
    >>> colours.rad
    Traceback (most recent call last):
    ...
    AttributeError: Invalid attribute rad. Did you mean 'red'?
    """

    _declared: ClassVar[Mapping[str, Key]] = {}
    """The keys of the table that this container owns."""

    _python_side: ClassVar[Mapping[str, Key]] = {}
    """Settings that never reach the backend: private attributes with a read-only property each."""

    _values: dict[str, Any]

    def __init__(self, **more_defaults: Any) -> None:
        values = {key.name: _own_copy(key.default) for key in self._declared.values() if key.default is not ABSENT}
        values.update(more_defaults)
        for key in self._python_side.values():
            self.__dict__[f"_{key.name}"] = copy.deepcopy(key.default)
        # Last of all: from here on new private attributes are refused.
        self.__dict__["_is_frozen"] = False
        self.__dict__["_values"] = values

    if not TYPE_CHECKING:  # a type checker knows the names that exist, and so finds those that do not

        def __getattr__(self, name: str) -> Any:
            values = self.__dict__.get("_values", {})
            if name in values:
                return values[name]
            # Private names are asked for by copy and pickle, on objects that have no values yet.
            hint = "" if name.startswith("_") else self._hint(name)
            raise AttributeError(f"Invalid attribute {name}.{hint}")

        def __setattr__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                self._set_private(name, value)
                return
            descriptor = getattr(type(self), name, None)
            if isinstance(descriptor, property) and descriptor.fset is not None:
                object.__setattr__(self, name, value)  # a property with a setter, added by a subclass
                return
            self.set(**{name: value})

    def _set_private(self, name: str, value: Any) -> None:
        is_dunder = name.startswith("__") and name.endswith("__")  # __class__ may be replaced, popdist does it
        under_construction = "_values" not in self.__dict__
        if not (is_dunder or under_construction or name in self.__dict__ or hasattr(type(self), name)):
            raise AttributeError(
                f"Invalid private attribute {name} for {type(self).__name__}. "
                "A subclass sets its own private attributes before it calls the base constructor."
            )
        object.__setattr__(self, name, value)

    def __call__(self, key: str) -> Any:
        """The value of ``key``."""
        if key not in self._values:
            raise AttributeError(f"Invalid attribute {key}.{suggestion(key, self._values)}")
        return self._values[key]

    def set(self, **kv: Any) -> None:
        """Store values under keys that exist; each value must have the type of its key."""
        for key, value in kv.items():
            self.checkIsFrozen(key)
            if key not in self._values:
                hint = suggestion(key, self._values) or suggestion(key, self._public_names())
                raise AssertionError(f"Invalid option {key}, valid options are {sorted(self._values)}.{hint}")
            require_type(key, value, self._type_of(key))
            self._values[key] = value

    def createOrSet(self, **kv: Any) -> None:
        """As :meth:`set`, and creates the keys that do not hold a value yet."""
        for key, value in kv.items():
            self.checkIsFrozen(key)
            if key in self._values or key in self._declared:
                require_type(key, value, self._type_of(key))
            self._values[key] = value

    def _type_of(self, key: str) -> type:
        declared = self._declared.get(key)
        return type(self._values[key]) if declared is None else declared.type

    def exists(self, key: str) -> bool:
        """Whether ``key`` holds a value."""
        return key in self._values

    def deleteIfExists(self, key: str) -> None:
        """Forget the value of ``key``, if any; freezing does not prevent it."""
        self._values.pop(key, None)

    def update(self, d: dict[str, Any]) -> dict[str, Any]:
        """Add all values to ``d``, which must not have any of the keys, and return it."""
        return merge_into(d, self._values)

    def toDict(self) -> dict[str, Any]:
        """All keys and values, as a new dictionary."""
        return dict(self._values)

    def _hint(self, name: str) -> str:
        """What a name that does not exist may have meant."""
        return suggestion(name, self._public_names())

    def _public_names(self) -> list[str]:
        values = self.__dict__.get("_values", {})
        return [name for name in (*values, *dir(type(self))) if not name.startswith("_")]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self._values.items())})"


def merge_into(d: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Add ``more`` to ``d``; a key that both have is an ``AssertionError``."""
    common = sorted(d.keys() & more.keys())
    require(not common, f"Can't merge dictionaries, they have some keys in common: {common}")
    d.update(more)
    return d
