"""What a line of a configuration file may say: calls of setters, and values that stand there or that options have.

A line has the syntax of Python, and is evaluated here instead of being run. Every name that is reached must be a setter
of the option table, an option, an enumeration, or a class that describes strategies and locations.
"""

from __future__ import annotations

import ast
import builtins
import enum
import operator
from collections.abc import Callable, Mapping
from typing import Any

from poptorch import enums
from poptorch.options.containers import Freezable
from poptorch.options.table import rows_of
from poptorch.placement.strategies import ExecutionStrategy, Phase, Stage

ROOTS = ("options", "poptorch")
_CLASSES = (
    "ParallelPhasedExecution", "Phase", "PipelinedExecution", "SerialPhasedExecution", "ShardedExecution", "Stage",
    "TensorLocationSettings",
)  # fmt: skip
_PARTS = (ExecutionStrategy, Stage, Phase)
_MORE = {"Options": ("loadFromFile", "from_json")}
_GROUPS = {"_TrainingOptions": "Training", "_PrecisionOptions": "Precision", "_DistributedOptions": "Distributed",
           "_JitOptions": "Jit", "_TensorLocationOptions": "TensorLocations", "_PopartOptions": "_Popart"}  # fmt: skip
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_FORMS = (
    ast.Module, ast.Expr, ast.Assign, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.Tuple, ast.List,
    ast.Set, ast.Dict, ast.Starred, ast.UnaryOp, ast.BinOp, ast.Load, ast.Store, *_ARITHMETIC, *_SIGNS,
)  # fmt: skip
_IN_WORDS = {
    ast.Lambda: "a function", ast.Subscript: "an element of something", ast.JoinedStr: "a text with code in it",
    ast.ListComp: "a comprehension", ast.Import: "an import", ast.ImportFrom: "an import", ast.Compare: "a comparison",
    ast.IfExp: "a condition", ast.AugAssign: "a change of what an option is", ast.Pow: "a power",
}  # fmt: skip


class Refused(Exception):
    """Something that only code may do; the text says what."""


def check(tree: ast.Module) -> None:
    """Refuse what no line may have, whatever the options are.

    >>> check(ast.parse("options.deviceIterations(4)"))
    >>> check(ast.parse("options.deviceIterations(open('x'))"))
    Traceback (most recent call last):
    ...
    poptorch.options.config_values.Refused: it uses the function 'open'
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in ROOTS and hasattr(builtins, node.id):
            raise Refused(f"it uses the function {node.id!r}")
    for node in ast.walk(tree):
        if not isinstance(node, _FORMS):
            raise Refused(f"it has {_IN_WORDS.get(type(node), f'a part of the kind {type(node).__name__}')}")
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr != "_Popart":
            raise Refused(f"it uses {node.attr!r}, a name that is not public")
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
            raise Refused("it calls something that is no setter of the options")
        if isinstance(node, ast.keyword) and node.arg == "trusted":
            raise Refused("a file cannot say that another one is trusted")
        if isinstance(node, ast.Assign):
            _check_assignment(node)


def _check_assignment(node: ast.Assign) -> None:
    for target in node.targets:
        if not isinstance(target, ast.Attribute):
            raise Refused("it assigns to something else than an option")


class Reader:
    """Evaluates lines that were checked."""

    def __init__(self, options: Any, public: Any) -> None:
        self._names = {"options": options, "poptorch": public}
        self._public = public

    def run(self, tree: ast.Module) -> None:
        """Do what a line says."""
        for statement in tree.body:
            if isinstance(statement, ast.Assign):
                value = self._value(statement.value)
                for target in statement.targets:
                    self._assign(target, value)
            elif isinstance(statement, ast.Expr):
                self._value(statement.value)

    def _assign(self, target: ast.expr, value: Any) -> None:
        assert isinstance(target, ast.Attribute)  # the check says so
        owner = self._value(target.value)
        if not isinstance(owner, Freezable):
            raise Refused("it assigns to something else than an option")
        setattr(owner, target.attr, value)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                if name not in self._names:
                    raise NameError(f"name {name!r} is not defined")
                return self._names[name]
            case ast.Attribute(inner, name):
                return self._read(self._value(inner), name)
            case ast.Call(function, arguments, keywords):
                return self._call(function, arguments, keywords)
            case ast.Tuple(items):
                return tuple(self._values(items))
            case ast.List(items):
                return self._values(items)
            case ast.Set(items):
                return set(self._values(items))
            case ast.Dict(keys, values):
                return self._dictionary(keys, values)
            case ast.UnaryOp(sign, inner):
                return _SIGNS[type(sign)](self._number(inner))
            case ast.BinOp(left, symbol, right):
                return _ARITHMETIC[type(symbol)](self._number(left), self._number(right))
        raise Refused(f"it has a part of the kind {type(node).__name__}")

    def _values(self, items: list[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for item in items:
            if isinstance(item, ast.Starred):
                found.extend(self._value(item.value))
            else:
                found.append(self._value(item))
        return found

    def _dictionary(self, keys: list[ast.expr | None], values: list[ast.expr]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            found.update(self._value(value) if key is None else {self._value(key): self._value(value)})
        return found

    def _number(self, node: ast.expr) -> Any:
        """Arithmetic is for numbers: the product of a text and a number may be of any size."""
        value = self._value(node)
        if not isinstance(value, (int, float)):
            raise Refused(f"it computes with {type(value).__name__}, and only numbers can be computed with")
        return value

    def _call(self, function: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        assert isinstance(function, ast.Attribute)  # the check says so
        call = self._method(self._value(function.value), function.attr)
        named: dict[str, Any] = {}
        for keyword in keywords:
            value = self._value(keyword.value)
            named.update(value if keyword.arg is None else {keyword.arg: value})
        if "trusted" in named:
            raise Refused("a file cannot say that another one is trusted")
        return call(*self._values(arguments), **named)

    def _method(self, owner: Any, name: str) -> Callable[..., Any]:
        """What may be called: setters, classes of strategies, and the methods of their objects."""
        if owner is self._public or isinstance(owner, enum.EnumMeta):
            found = self._read(owner, name)
            if not isinstance(found, type):
                raise Refused(f"it calls {name!r}")
            return found
        method: Callable[..., Any] = getattr(owner, name)  # an unknown option has an error of its own
        if isinstance(owner, Freezable):
            if name in _setters(owner):
                return method
            raise Refused(f"it calls {name!r}, which is no setter of the options")
        if isinstance(owner, _PARTS) and callable(getattr(type(owner), name, None)):
            return method
        raise Refused(f"it calls {name!r} of {type(owner).__name__}")

    def _read(self, owner: Any, name: str) -> Any:
        """What may be looked at: options and groups, and names of enumerations and classes of poptorch."""
        if owner is self._public:
            return self._public_name(name)
        if owner is enums:
            return self._enumeration(name)
        if isinstance(owner, enum.EnumMeta):
            if name in owner.__members__:
                return owner[name]
            getattr(owner, name)  # an unknown member has an error of its own
            raise Refused(f"it uses {name!r} of {owner.__name__}, which is no member")
        if isinstance(owner, Freezable):
            found = getattr(owner, name)
            if callable(found) and not isinstance(found, Freezable):
                raise Refused(f"it does not call {name!r}; write {name}(...)")
            return found
        if isinstance(owner, enum.Enum) and name in ("name", "value"):
            return getattr(owner, name)
        raise Refused(f"it uses {name!r} of {type(owner).__name__}")

    def _public_name(self, name: str) -> Any:
        if name == "enums":
            return enums
        if name in enums.DEPRECATED or isinstance(vars(enums).get(name), enum.EnumMeta):
            return self._enumeration(name)
        found = getattr(self._public, name)  # a name that does not exist has an error of its own
        if name not in _CLASSES:
            raise Refused(f"it uses poptorch.{name}")
        return found

    @staticmethod
    def _enumeration(name: str) -> Any:
        found = getattr(enums, name)
        if not isinstance(found, (enum.EnumMeta, enum.Enum)):
            raise Refused(f"it uses poptorch.enums.{name}")
        return found


def _setters(owner: Freezable) -> set[str]:
    """The methods that a file may call of an object, by the option table."""
    kind = type(owner).__name__
    group = _GROUPS.get(kind, kind)
    return {row.method for row in rows_of(group)} | set(_MORE.get(group, ()))


__all__ = ["Reader", "Refused", "check"]
