"""Call arguments: bound to ``forward``'s signature, taken apart into tensors, checked against the compiled program."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from poptorch._logging import logger
from poptorch.capture.objects import attributes_of, holds_tensors
from poptorch.capture.state import check_has_elements
from poptorch.capture.structure import (
    Branch,
    ConstantLeaf,
    Structure,
    TensorLeaf,
    children_of,
    flatten,
    unflatten,
    walk,
)
from poptorch.errors import (
    ArgumentsError,
    DataTypeMismatchError,
    Error,
    InputTypeError,
    ShapeMismatchError,
    ValueMismatchError,
    misuse,
)
from poptorch.program.program import has_values

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ADVICE = (
    " If you wish to use a different set of arguments, destroy the current model with its destroy() method and "
    "create a new wrapper with poptorch.trainingModel() or poptorch.inferenceModel()."
)

SUPPORTED_DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip
_INT32 = torch.iinfo(torch.int32)
_NARROWED = {torch.float64: torch.float32, torch.bfloat16: torch.float32}


@dataclass(frozen=True)
class BoundCall:
    """Arguments in signature order: what goes by position, with the names for messages, and what goes by name."""

    names: tuple[str, ...]
    positional: tuple[Any, ...]
    keyword: dict[str, Any]
    defaulted: frozenset[str] = frozenset()
    """Names of the parameters that took their defaults."""

    by_name: tuple[str, ...] = ()
    """Names of the arguments that ``forward`` gets by name, in that order."""

    left_out: frozenset[str] = frozenset()
    """Names of the parameters that ``forward`` is called without."""

    def as_given(self, positional: Sequence[Any], keyword: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """These values, which are in signature order, in the form of the call: what goes by position and by name.

        >>> call = Signature(lambda x, y=1, z=2: x).bind((10,), {"z": 30})
        >>> call.positional, call.as_given(call.positional, call.keyword)
        ((10, 1, 30), ((10,), {'z': 30}))
        """
        if not self.by_name and not self.left_out:
            return tuple(positional), dict(keyword)
        named = {**dict(zip(self.names, positional, strict=True)), **keyword}
        elsewhere = self.left_out.union(self.by_name)
        return tuple(named[n] for n in self.names if n not in elsewhere), {n: named[n] for n in self.by_name}

    def check_fits(self, signature: Signature) -> None:
        """``AssertionError`` unless binding arguments to this signature could have given this call.

        >>> BoundCall(("x",), (1,), {}).check_fits(Signature(lambda y: y))
        Traceback (most recent call last):
        ...
        AssertionError: the parameters are ['y'], not ['x']
        """
        try:
            bound = signature.bind(self.positional, self.keyword)
        except Error as error:
            raise AssertionError(str(error)) from error
        known, own = [*bound.names, *bound.keyword], [*self.names, *self.keyword]
        if known != own:
            _fail_assertion(f"the parameters are {known}, not {own}")
        named = {*self.by_name, *self.defaulted, *self.left_out}
        if len({*self.by_name}) != len(self.by_name) or not named <= {*known}:
            _fail_assertion(f"arguments by name are {list(self.by_name)}, and the parameters are {known}")


class Signature:
    """How the user model's ``forward`` may be called; read once, when the model is wrapped."""

    def __init__(self, forward: Any) -> None:
        self._parameters = list(inspect.signature(forward).parameters.values())
        self._has_args = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in self._parameters)
        self._has_kwargs = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self._parameters)
        self._by_position = [
            p
            for p in self._parameters
            if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        ]
        self._names = tuple(p.name for p in self._by_position)
        self._only_positional = len(self._by_position) == len(self._parameters)
        self._tensor_defaults = frozenset(p.name for p in self._parameters if flatten(p.default)[0])
        """A default with tensors is an input of the program: a later call may give another one."""

        self._rest: dict[int, tuple[Any, ...]] = {}
        """Of calls with so many arguments, all by position, what does not depend on these: the defaults, and so on."""

        self._must_go_by_position = max(
            (
                i + 1
                for i, p in enumerate(self._by_position)
                if p.kind is inspect.Parameter.POSITIONAL_ONLY and p.name in self._tensor_defaults
            ),
            default=0,
        )

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
        """Match arguments with parameters; omitted ones take their defaults."""
        if not kwargs and self._only_positional and len(args) == len(self._names):
            return BoundCall(self._names, tuple(args), {})
        if kwargs or not self._only_positional:
            return self._bind(args, kwargs)
        rest = self._rest.get(len(args))
        if rest is None:
            bound = self._bind(args, kwargs)
            defaults = bound.positional[len(args) :]
            self._rest[len(args)] = defaults, {}, bound.defaulted, bound.by_name, bound.left_out
            return bound
        return BoundCall(self._names, (*args, *rest[0]), *rest[1:])

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
        self._check_names(args, kwargs)
        names: list[str] = []
        positional: list[Any] = []
        keyword: dict[str, Any] = {}
        for index, parameter in enumerate(self._by_position):
            names.append(parameter.name)
            positional.append(args[index] if index < len(args) else self._named(parameter, kwargs))
        extra = args[len(self._by_position) :]
        names += [f"*args[{i}]" for i in range(len(extra))]
        positional += extra
        known = {p.name for p in self._by_position}
        for parameter in self._parameters:
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keyword[parameter.name] = self._named(parameter, kwargs)
        keyword.update({k: v for k, v in kwargs.items() if k not in known and k not in keyword})
        given = {*self._names[: len(args)], *kwargs}
        defaulted = frozenset(p.name for p in self._parameters if p.kind not in _VARIADIC and p.name not in given)
        by_position = self._names[: max(len(args), self._must_go_by_position)]
        inputs = [p.name for p in self._parameters if p.name in defaulted & self._tensor_defaults]
        by_name = tuple(name for name in (*kwargs, *inputs) if name not in by_position)
        left_out = defaulted.difference(by_name, by_position)
        return BoundCall(tuple(names), tuple(positional), keyword, defaulted, by_name, left_out)

    def _check_names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not self._has_args and len(args) > len(self._by_position):
            _fail_assertion(
                f"Too many arguments provided: forward() takes {list(self._names)} "
                f"({len(self._names)}) but {len(args)} were given. Pass no others"
            )
        if not self._has_args and not self._has_kwargs and len(args) + len(kwargs) > len(self._parameters):
            unknown = [k for k in kwargs if k not in {p.name for p in self._parameters}]
            if not unknown:
                self._check_twice(args, kwargs)
            if not unknown or len(args) + len(kwargs) - len(unknown) > len(self._parameters):
                _fail_assertion(
                    f"Too many arguments provided: {len(args) + len(kwargs)} for {len(self._parameters)} parameters"
                )
        if not self._has_kwargs:
            valid = {p.name for p in self._parameters if p.kind not in _VARIADIC}
            for name in kwargs:
                if name not in valid:
                    _fail_assertion(f"{name} is not a valid parameter. Expected one of {sorted(valid)}")
        self._check_twice(args, kwargs)

    def _check_twice(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for name in self._names[: len(args)]:
            if name in kwargs:
                _fail_assertion(f"{name} was passed more than once: by position and by name. Pass it once")

    @staticmethod
    def _named(parameter: inspect.Parameter, kwargs: Mapping[str, Any]) -> Any:
        if parameter.name in kwargs:
            return kwargs[parameter.name]
        if parameter.default is inspect.Parameter.empty:
            raise misuse(
                ArgumentsError,
                f"Mandatory parameter {parameter.name} missing. Pass a value for it, or give it a default in "
                "forward().",
            )
        return parameter.default

    def defaults_to_none(self, name: str) -> bool:
        """Whether leaving the parameter out means ``None``."""
        return any(p.name == name and p.default is None for p in self._parameters)


def _fail_assertion(message: str) -> NoReturn:
    raise AssertionError(message)


@dataclass(frozen=True)
class TensorSpec:
    """What the compiled program expects of one input tensor, as the user passes it."""

    path: str
    shape: torch.Size
    dtype: torch.dtype


def positions_of_same(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """For each tensor, the position of the first one that is the same memory, seen in the same way.

    >>> a, b = torch.ones(2), torch.ones(2)
    >>> positions_of_same([a, b, a])
    (0, 1, 0)
    """
    first: dict[Any, int] = {}
    return tuple(first.setdefault(_memory(tensor), position) for position, tensor in enumerate(tensors))


def _memory(tensor: torch.Tensor) -> Any:
    if not has_values(tensor) or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class ArgumentLayout:
    """The shape of a call: its structure, and the tensors in it. Built at compile time, checked at each call."""

    def __init__(self, call: BoundCall) -> None:
        tensors, structure = flatten((call.positional, call.keyword))
        assert isinstance(structure, Branch)
        self._positional, self._keyword = structure.children
        self._call = call
        self._names = call.names
        paths = _tensor_paths(self._positional, call.names) + _tensor_paths(self._keyword, None)
        for path, tensor in zip(paths, tensors, strict=True):
            _check_shape_is_known(tensor, path)
        self.specs = [TensorSpec(p, t.shape, t.dtype) for p, t in zip(paths, tensors, strict=True)]
        self._expected = [(s.shape, s.dtype) for s in self.specs]
        self._before_none = _before_none(call.positional)
        children = self._children(self._positional)
        self._total = len(children)
        self._count = self._total - sum(isinstance(c, ConstantLeaf) and c.value is None for c in children)
        """How many tensors come before nothing: labels that inference does without, for instance."""

        self._flat = not call.keyword and all(isinstance(c, TensorLeaf) for c in children[: self._count])

    @staticmethod
    def _children(structure: Structure) -> tuple[Structure, ...]:
        assert isinstance(structure, Branch)
        return structure.children

    def tensors_of(self, call: BoundCall) -> Sequence[torch.Tensor]:
        """The call's tensors in order, after comparing everything with what was compiled."""
        if self._flat and not call.keyword:
            given, count = call.positional, self._count
            if count != self._total == len(given) and all(value is None for value in given[count:]):
                given = given[:count]
            if self._are_as_expected(given):
                return given
        return self._collect(call)

    def _are_as_expected(self, values: Sequence[Any]) -> bool:
        if len(values) != len(self._expected):
            return False
        for value, (shape, dtype) in zip(values, self._expected, strict=True):
            if not isinstance(value, torch.Tensor) or value.dtype != dtype or value.shape != shape:
                return False
        return True

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments as the user gave them, with ``tensors`` in the tensors' places."""
        return self._call.as_given(unflatten(self._positional, tensors), unflatten(self._keyword, tensors))

    def constants(self) -> list[Any]:
        """What is no tensor among the arguments."""
        leaves = [leaf for part in (self._positional, self._keyword) for _, leaf in walk(part)]
        return [leaf.value for leaf in leaves if isinstance(leaf, ConstantLeaf)]

    def check_traced_count(self, call: BoundCall) -> None:
        """A traced graph leaves out the ``None`` at the end: what is before them must stay the same in number."""
        expected, got = self._before_none, _before_none(call.positional)
        if expected != got:
            raise misuse(
                ArgumentsError, f"Number of arguments mismatch: expected {expected} arguments but got {got}.{_ADVICE}"
            )

    def _collect(self, call: BoundCall) -> list[torch.Tensor]:
        """The call's tensors in the order of the compiled program; dictionaries may be in another order."""
        found: list[Any] = [None] * len(self.specs)
        expected = self._children(self._positional)
        if len(expected) != len(call.positional):
            _mismatch(
                ArgumentsError,
                f"Number of positional arguments mismatch: expected {len(expected)} arguments "
                f"but got {len(call.positional)}.",
            )
        for name, structure, value in zip(call.names, expected, call.positional, strict=True):
            self._compare(structure, value, name, found)
        self._compare_keys(self._keyword, call.keyword, "named arguments")
        assert isinstance(self._keyword, Branch)
        for key, child in zip(self._keyword.labels, self._keyword.children, strict=True):
            self._compare(child, call.keyword[key], key, found)
        return found

    def _compare(self, expected: Structure, value: Any, path: str, found: list[Any]) -> None:
        if isinstance(expected, TensorLeaf):
            self._compare_tensor(self.specs[expected.index], value, path)
            found[expected.index] = value
        elif isinstance(expected, ConstantLeaf):
            self._compare_constant(expected.value, value, path)
        else:
            self._compare_branch(expected, value, path, found)

    def _compare_tensor(self, spec: TensorSpec, value: Any, path: str) -> None:
        if not isinstance(value, torch.Tensor):
            missing = " Pass all arguments in each call, labels included." if value is None else ""
            _mismatch(
                ArgumentsError, f"Type mismatch for {path}: expected {torch.Tensor} but got {type(value)}.{missing}"
            )
        if value.dtype != spec.dtype:
            _mismatch(
                DataTypeMismatchError, f"Data type mismatch for {path}: expected {spec.dtype} but got {value.dtype}."
            )
        if value.shape != spec.shape:
            smaller = value.shape[1:] == spec.shape[1:] and value.dim() > 0 and value.shape[0] < spec.shape[0]
            last = " Is it the last, smaller batch? Leave it out (drop_last=True) or pad it." if smaller else ""
            _mismatch(
                ShapeMismatchError, f"Shape mismatch for {path}: expected {spec.shape} but got {value.shape}.{last}"
            )

    @staticmethod
    def _compare_constant(expected: Any, value: Any, path: str) -> None:
        if type(value) is not type(expected):
            _mismatch(ArgumentsError, f"Type mismatch for {path}: expected {type(expected)} but got {type(value)}.")
        if attributes_of(value) is not None and holds_tensors(value):
            _mismatch(
                ValueMismatchError,
                f"Value mismatch for {path}: a {type(value)} holds tensors now, and held none when compiling.",
            )
        if not _same_constant(value, expected):
            _mismatch(ValueMismatchError, f"Value mismatch for {path}: expected {expected} but got {value}.")

    def _compare_branch(self, expected: Branch, value: Any, path: str, found: list[Any]) -> None:
        if type(value) is not expected.kind:
            _mismatch(ArgumentsError, f"Type mismatch for {path}: expected {expected.kind} but got {type(value)}.")
        split = children_of(value)
        assert split is not None
        labels, items, _ = split
        if labels != expected.labels and isinstance(value, Mapping):
            by_label = dict(zip(labels, items, strict=True))
            self._compare_keys(expected, by_label, path)
            items = [by_label[label] for label in expected.labels]
        if len(items) != len(expected.children):
            _mismatch(
                ArgumentsError,
                f"Length mismatch for {path}: expected {len(expected.children)} elements but got {len(items)}.",
            )
        for label, child, item in zip(expected.labels, expected.children, items, strict=True):
            self._compare(child, item, f"{path}[{label}]", found)

    @staticmethod
    def _compare_keys(expected: Structure, value: Mapping[Any, Any], path: str) -> None:
        assert isinstance(expected, Branch)
        missing = sorted(str(k) for k in expected.labels if k not in value)
        unexpected = sorted(str(k) for k in value if k not in expected.labels)
        if missing or unexpected:
            text = f"Keys mismatch for {path}."
            if missing:
                text += f" Missing arguments: {', '.join(missing)}."
            if unexpected:
                text += f" Unexpected arguments: {', '.join(unexpected)}."
            _mismatch(ArgumentsError, text)


def _same_constant(value: Any, expected: Any) -> bool:
    """Equality of two objects of one type; arrays must agree in all elements, and NaN is NaN."""
    if value is expected:
        return True
    if isinstance(value, float) and value != value:
        return bool(expected != expected)
    if isinstance(value, np.ndarray):
        return bool(np.array_equal(value, expected))
    if "__eq__" not in {name for base in type(value).__mro__[:-1] for name in vars(base)}:
        return _same_attributes(attributes_of(value), attributes_of(expected))
    return bool(value == expected)


def _same_attributes(value: Mapping[str, Any] | None, expected: Mapping[str, Any] | None) -> bool:
    """Objects that define no equality are equal when their attributes are."""
    if value is None or expected is None or value.keys() != expected.keys():
        return False
    return all(type(v) is type(expected[k]) and _same_constant(v, expected[k]) for k, v in value.items())


def _before_none(values: Sequence[Any]) -> int:
    """How many values there are without the ``None`` at the end."""
    count = len(values)
    while count and values[count - 1] is None:
        count -= 1
    return count


def _mismatch(kind: type[Error], message: str) -> NoReturn:
    raise misuse(kind, message + _ADVICE)


def _tensor_paths(structure: Structure, names: Sequence[str] | None) -> list[str]:
    assert isinstance(structure, Branch)
    labels = names if names is not None else [str(label) for label in structure.labels]
    return [
        path
        for label, child in zip(labels, structure.children, strict=True)
        for path, leaf in walk(child, label)
        if isinstance(leaf, TensorLeaf)
    ]


class InputNormaliser:
    """Turns the user's tensors into what the device takes: contiguous, detached, of a supported type."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def __call__(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        if not tensor.is_contiguous():
            self._warn_once("contiguous", f"Input tensor {path} is not contiguous. It is copied on every call.")
            tensor = tensor.contiguous()
        return self.with_strides(tensor, path)

    def with_strides(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        """The same, but with the strides of the user's tensor: so ``forward`` sees it."""
        if tensor.requires_grad:
            self._warn_once(
                "grad",
                "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via "
                f"inputs is not supported. It is the input {path}.",
            )
            tensor = tensor.detach()
        if tensor.dtype is torch.int64:
            self._warn_about_width(tensor, path)
        narrow = _NARROWED.get(tensor.dtype)
        return tensor if narrow is None else tensor.to(narrow)

    def _warn_about_width(self, tensor: torch.Tensor, path: str) -> None:
        """Say once for each input that its values are beyond the integers of the device."""
        key = f"width of {path}"
        if key in self._warned or not has_values(tensor):
            return
        smallest, largest = torch.aminmax(tensor)
        if smallest < _INT32.min or largest > _INT32.max:
            self._warn_once(
                key,
                f"Input tensor {path} has values that do not fit into 32 bits, from {int(smallest)} to {int(largest)}. "
                "The device has no wider integers: they lose their upper bits there or in the results. Pass values "
                f"between {_INT32.min} and {_INT32.max}, or split them into two tensors.",
            )

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(message)


def check_input(tensor: torch.Tensor, path: str, takes_empty: bool = False) -> None:
    """Refuse element types, layouts and sizes that no device tensor can have."""
    if tensor.layout is not torch.strided:
        raise misuse(
            InputTypeError,
            f"Unsupported input type {tensor.dtype} with the layout {tensor.layout}. It is the input {path}: pass a "
            "dense tensor, for instance with to_dense().",
        )
    if tensor.dtype not in SUPPORTED_DTYPES:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in SUPPORTED_DTYPES))
        raise misuse(
            InputTypeError,
            f"Unsupported input type {tensor.dtype}. It is the input {path}: convert it to one of {names}.",
        )
    if not takes_empty:
        check_has_elements(tensor, f"the input {path}")


def check_devices(call: BoundCall) -> None:
    """Refuse a call that is to run, and not only to be compiled, if its tensors are not on the host."""
    layout = ArgumentLayout(call)
    for spec, tensor in zip(layout.specs, layout.tensors_of(call), strict=True):
        check_device(tensor, spec.path)


def check_device(tensor: torch.Tensor, path: str) -> None:
    """Refuse an input whose values are not on the host when a program is about to run on them."""
    if not tensor.is_cpu:
        raise misuse(
            InputTypeError,
            f"The input {path} is on the device {str(tensor.device)!r}. Pass tensors of the host, for instance with "
            ".cpu(): a wrapped model moves them to its IPUs itself.",
        )


def _check_shape_is_known(tensor: torch.Tensor, path: str) -> None:
    if tensor.is_nested:
        raise misuse(
            InputTypeError,
            f"Unsupported input type: {path} is a nested tensor, whose rows differ in length. A compiled program has "
            "static shapes: pass a padded tensor, torch.nested.to_padded_tensor(x, 0.0), and a mask or the lengths.",
        )


def announce_partial_support(call: BoundCall) -> None:
    """Say what a dictionary among the arguments is: a fixed set of tensors, not an object to write results to."""
    if any(_contains_mapping(value) for value in (*call.positional, *call.keyword.values())):
        logger.warning(
            "Dicts as inputs only have partial support: forward can read their values, but entries that it adds or "
            "removes do not reach the caller."
        )


def _contains_mapping(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_contains_mapping(item) for item in value)
    return isinstance(value, Mapping)


def check_tracing_rules(call: BoundCall, signature: Signature) -> None:
    """The argument types that ``Jit.traceModel(True)`` takes: tensors, in tuples and lists, and trailing ``None``."""
    for name, value in [*zip(call.names, call.positional, strict=True), *call.keyword.items()]:
        if name not in call.left_out:
            _refuse_dictionaries(value, name, name)
    if any(isinstance(value, list) for value in call.positional):
        logger.warning("Lists as inputs only have partial support, they can be accessed but full Python "
                       "functionality is not enabled. Consider changing input to tuple.")  # fmt: skip
    _refuse_none(call, signature)
    named = [*zip(call.names, call.positional, strict=True), *call.keyword.items()]
    values = [v for name, v in named if v is not None and name not in call.left_out]
    if any(isinstance(leaf, ConstantLeaf) for v in values for _, leaf in walk(flatten(v)[1])):
        types = ", ".join(type(v).__name__ for v in values)
        raise TypeError(
            "All forward function arguments used to compile and run the model must be Tensors or (possibly nested) "
            f"Lists and Tuples of Tensors (Got types: [{types}])."
        )


def _refuse_dictionaries(value: Any, name: str, path: str) -> None:
    if isinstance(value, dict):
        raise TypeError(
            "Dictionaries are not supported as input arguments, including when nested in tuples.\n"
            f"Received dict {path} = {value!r}"
        )
    if isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            _refuse_dictionaries(item, name, f"{path}[{index}]")


def _refuse_none(call: BoundCall, signature: Signature) -> None:
    """A given ``None`` can be left out of a traced graph only at the end, where it is also the default."""
    left_out: list[str] = []
    for name, value in zip(call.names, call.positional, strict=True):
        if value is None and name in call.defaulted:
            left_out.append(name)
        elif value is not None and left_out and name not in call.defaulted:
            _fail_assertion(
                f"Torch doesn't support passing tensors ({name}) after the following parameters have defaulted to "
                f"None: {', '.join(left_out)}"
            )
    trailing = True
    for name, value in reversed(list(zip(call.names, call.positional, strict=True))):
        trailing = trailing and value is None and signature.defaults_to_none(name)
        if value is None and not trailing and name not in call.defaulted:
            raise misuse(
                ArgumentsError,
                f"'None' may not be passed as explicit model argument. It may only be used as default initialiser "
                f"(parameter {name}).",
            )
