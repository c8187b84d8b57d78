"""Operators in shared libraries: found among the libraries that the process has loaded, called through
ctypes.

The other side is ``poptorch/custom_op.hpp``. A library is recognised by one symbol; it registers itself while
it is loaded, so ``ctypes.cdll.LoadLibrary`` is all a user has to do. Foreign calls release the interpreter
lock.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from poptorch import replicas
from poptorch._logging import logger
from poptorch.errors import createPoptorchError
from poptorch.ops.custom.attributes import REPLICAS, SITE, typed_from_text
from poptorch.ops.custom.registry import CustomDefinition, GradientOp, Operator, OperatorKey

_SYMBOL = "poptorch_custom_ops_v1"
_COMMUNICATION_SYMBOL = "poptorch_custom_ops_communication_v1"
_ABI_VERSION = 1
_ERROR_SIZE = 4096
_SHAPE_ROOM = 4096

_DTYPES = (torch.float32, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_ATTRIBUTE_CODES = {"Float": 0, "Int": 1, "String": 2, "Floats": 3, "Ints": 4, "Strings": 5}
_SOURCES = ("in", "out", "grad_out")


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("values", ctypes.c_void_p),
    ]


class _Operator(ctypes.Structure):
    _fields_ = [
        ("domain", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_int32),
        ("min_inputs", ctypes.c_int32),
        ("max_inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("entry", ctypes.c_void_p),
    ]


_int, _long, _pointer, _text = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
_error = (ctypes.c_char_p, ctypes.c_int64)


class _Functions(ctypes.Structure):
    """The function table; its order is that of ``poptorch::abi::Functions``."""

    _fields_ = [
        ("abi_version", _int),
        ("count", ctypes.CFUNCTYPE(_int)),
        ("describe", ctypes.CFUNCTYPE(None, _int, ctypes.POINTER(_Operator))),
        ("create", ctypes.CFUNCTYPE(_pointer, _pointer, ctypes.POINTER(_Attribute), _int, *_error)),
        ("gradient", ctypes.CFUNCTYPE(_pointer, _pointer, _int, *_error)),
        ("destroy", ctypes.CFUNCTYPE(None, _pointer)),
        ("gradients", ctypes.CFUNCTYPE(_int, _pointer, *_error)),
        ("gradient_inputs", ctypes.CFUNCTYPE(_int, _pointer, ctypes.POINTER(_int), _int)),
        ("gradient_outputs", ctypes.CFUNCTYPE(_int, _pointer, ctypes.POINTER(_int), _int)),
        (
            "infer",
            ctypes.CFUNCTYPE(
                _int, _pointer, ctypes.POINTER(_Tensor), _int, ctypes.POINTER(_long), _long,
                ctypes.POINTER(ctypes.c_double), *_error,
            ),
        ),
        (
            "compute",
            ctypes.CFUNCTYPE(
                _int, _pointer, ctypes.POINTER(_Tensor), _int, ctypes.POINTER(_Tensor), _int, *_error
            ),
        ),
    ]  # fmt: skip


_Gather = ctypes.CFUNCTYPE(_int, _pointer, _long, _pointer)


class _Replicas(ctypes.Structure):
    _fields_ = [("number", _int), ("count", _int), ("gather", _Gather)]


class _Communication(ctypes.Structure):
    _fields_ = [
        ("communicates", ctypes.CFUNCTYPE(_int, _int)),
        ("enter", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Replicas))),
    ]


@dataclass(frozen=True)
class Talk:
    """How an operator reaches other replicas: the library's functions for it, how many there are, and its site."""

    functions: Any
    count: int
    site: int

    def of_gradient(self) -> Talk:
        """The same for the operator's gradient."""
        return replace(self, site=self.site + 1)

    @contextmanager
    def open(self) -> Iterator[None]:
        """In here, code of the library on this thread may talk to other replicas."""
        if self.count == 1:
            yield
            return
        present, errors = replicas.required(self.count), []

        def gather(values: int, size: int, room: int) -> int:
            try:
                own = torch.frombuffer(bytearray(ctypes.string_at(values, size)), dtype=torch.uint8)
                everything = present.exchange(own, range(self.count), self.site, torch.cat).contiguous()
                ctypes.memmove(room, everything.data_ptr(), everything.numel())
            except BaseException as error:  # noqa: BLE001  (raised below: no exception may cross C++)
                errors.append(error)
                return -1
            return 0

        structure = _Replicas(present.number, self.count, _Gather(gather))
        self.functions.enter(ctypes.byref(structure))
        try:
            yield
        except Exception:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self.functions.enter(None)


class NativeOperator(Operator):
    """An operator object that lives in a shared library."""

    def __init__(self, functions: Any, handle: int, label: str, talk: Talk | None = None) -> None:
        self._functions, self._handle, self._label, self._talk = functions, handle, label, talk
        self._gradients: list[tuple[GradientOp, NativeOperator]] | None = None

    def __del__(self) -> None:
        self._functions.destroy(self._handle)

    def infer(self, inputs: Sequence[torch.Tensor]) -> list[tuple[list[int], torch.dtype]]:
        return self._inferred(inputs)[0]

    def cycles(self, inputs: Sequence[torch.Tensor]) -> float | None:
        cycles = self._inferred(inputs)[1]
        return None if cycles < 0 else cycles

    def _inferred(self, inputs: Sequence[torch.Tensor]) -> tuple[list[tuple[list[int], torch.dtype]], float]:
        numbers = (ctypes.c_int64 * _SHAPE_ROOM)()
        cycles = ctypes.c_double()
        with _Described(inputs, None, self._label) as tensors:
            count = self._checked(
                self._functions.infer, tensors, len(inputs), numbers, _SHAPE_ROOM, ctypes.byref(cycles)
            )
        shapes, at = [], 0
        for _ in range(count):
            code, rank = numbers[at], numbers[at + 1]
            shapes.append((list(numbers[at + 2 : at + 2 + rank]), _DTYPES[code]))
            at += 2 + rank
        return shapes, cycles.value

    def compute(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        dense = [tensor.contiguous() for tensor in inputs]
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in self.infer(dense)]
        with (
            _Described(dense, [t.data_ptr() for t in dense], self._label) as given,
            _Described(outputs, [t.data_ptr() for t in outputs], self._label) as results,
            nullcontext() if self._talk is None else self._talk.open(),
        ):
            self._checked(self._functions.compute, given, len(dense), results, len(outputs))
        return outputs

    def gradients(self, inputs: int, outputs: int) -> Sequence[GradientOp]:
        return [description for description, _ in self._made_gradients()]

    def gradient(self, index: int, inputs: int, outputs: int) -> Operator:
        return self._made_gradients()[index][1]

    def _made_gradients(self) -> list[tuple[GradientOp, NativeOperator]]:
        if self._gradients is None:
            count = self._checked(self._functions.gradients)
            self._gradients = [self._make_gradient(index) for index in range(count)]
        return self._gradients

    def _make_gradient(self, index: int) -> tuple[GradientOp, NativeOperator]:
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        handle = self._functions.gradient(self._handle, index, error, _ERROR_SIZE)
        if not handle:
            raise _failure(self._label, error)
        talk = None if self._talk is None else self._talk.of_gradient()
        operator = NativeOperator(self._functions, handle, f"{self._label} (gradient {index})", talk)
        triples = _pairs(self._functions.gradient_inputs, handle, 3)
        targets = _pairs(self._functions.gradient_outputs, handle, 2)
        by_input = {grad_input: (_SOURCES[kind], forward) for grad_input, forward, kind in triples}
        if sorted(by_input) != list(range(len(by_input))):
            raise createPoptorchError(
                f"Custom op {self._label}: gradInputInfo() describes the inputs {sorted(by_input)} of its "
                "gradient operator; they must be numbered from 0 without gaps."
            )
        sources = tuple(by_input[position] for position in range(len(by_input)))
        return GradientOp(sources, tuple((output, target) for output, target in targets)), operator

    def _checked(self, function: Callable[..., int], *arguments: Any) -> int:
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        result = function(self._handle, *arguments, error, _ERROR_SIZE)
        if result < 0:
            raise _failure(self._label, error)
        return result


class _Described:
    """Tensors as C structures; the memory they point to lives as long as the ``with`` block."""

    def __init__(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int] | None, label: str) -> None:
        self._shapes = [(ctypes.c_int64 * tensor.dim())(*tensor.shape) for tensor in tensors]
        self._structures = (_Tensor * max(len(tensors), 1))()
        for index, tensor in enumerate(tensors):
            code = _DTYPE_CODES.get(tensor.dtype)
            if code is None:
                raise createPoptorchError(f"Custom op {label}: input {index} of type {tensor.dtype} is not supported.")
            shape = ctypes.cast(self._shapes[index], ctypes.POINTER(ctypes.c_int64))
            data = addresses[index] if addresses is not None else None
            self._structures[index] = _Tensor(data, shape, tensor.dim(), code)

    def __enter__(self) -> Any:
        return self._structures

    def __exit__(self, *exc: object) -> None:
        self._shapes = []


def _pairs(function: Callable[..., int], handle: int, width: int) -> list[tuple[int, ...]]:
    room = 64
    while True:
        numbers = (_int * (room * width))()
        count = function(handle, numbers, room)
        if count <= room:
            return [tuple(numbers[i * width : (i + 1) * width]) for i in range(count)]
        room = count


def _failure(label: str, error: Any) -> Exception:
    return createPoptorchError(f"Custom op {label} failed: {error.value.decode('utf-8', 'replace')}")


def _make(functions: Any, entry: int, label: str, attributes: str, communication: Any = None) -> NativeOperator:
    typed = typed_from_text(attributes)
    count, site = typed.pop(REPLICAS, ("Int", 1))[1], typed.pop(SITE, ("Int", 0))[1]
    structures = (_Attribute * max(len(typed), 1))()
    alive = []  # ctypes does not keep what a structure points to
    for index, (key, (kind, value)) in enumerate(typed.items()):
        values = list(value) if isinstance(value, list) else [value]
        array = _as_array(kind.rstrip("s"), values)
        alive.append(array)
        address = ctypes.cast(array, ctypes.c_void_p)
        structures[index] = _Attribute(key.encode(), _ATTRIBUTE_CODES[kind], len(values), address)
    error = ctypes.create_string_buffer(_ERROR_SIZE)
    handle = functions.create(entry, structures, len(typed), error, _ERROR_SIZE)
    if not handle:
        raise _failure(label, error)
    return NativeOperator(functions, handle, label, communication and Talk(communication, count, site))


def _as_array(kind: str, values: list[Any]) -> Any:
    if kind == "Float":
        return (ctypes.c_float * len(values))(*values)
    if kind == "Int":
        return (ctypes.c_int64 * len(values))(*values)
    return (ctypes.c_char_p * len(values))(*[value.encode("ascii") for value in values])


class LibraryScanner:
    """Looks for operators in the libraries loaded since the last look."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self) -> Iterator[CustomDefinition]:
        for path in _loaded_libraries():
            if path not in self._seen:
                self._seen.add(path)
                yield from _definitions_in(path)


def _definitions_in(path: str) -> Iterator[CustomDefinition]:
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
        entry_point = getattr(library, _SYMBOL)
    except (OSError, AttributeError):
        return  # a library without custom operators
    entry_point.restype = ctypes.POINTER(_Functions)
    functions = entry_point().contents
    if functions.abi_version != _ABI_VERSION:
        logger.warning(
            "%s was built with another version of poptorch/custom_op.hpp (%d instead of %d): compile it "
            "again.",
            path, functions.abi_version, _ABI_VERSION,
        )  # fmt: skip
        return
    communication = _communication_of(library)
    for index in range(functions.count()):
        described = _Operator()
        functions.describe(index, ctypes.byref(described))
        key = OperatorKey(described.domain.decode(), described.name.decode(), described.version)

        talks = communication is not None and bool(communication.communicates(index))
        others = communication if talks else None

        def make(
            attributes: str, entry: int = described.entry, label: str = str(key), others: Any = others
        ) -> Operator:
            return _make(functions, entry, label, attributes, others)

        yield CustomDefinition(key, make, described.min_inputs, described.max_inputs, described.outputs, path, talks)


def _communication_of(library: Any) -> Any:
    """The functions by which operators reach other replicas; ``None`` in libraries from before there were any."""
    try:
        entry_point = getattr(library, _COMMUNICATION_SYMBOL)
    except AttributeError:
        return None
    entry_point.restype = ctypes.POINTER(_Communication)
    return entry_point().contents


class _LoadedObject(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


def _loaded_libraries() -> list[str]:
    paths: list[str] = []
    process = ctypes.CDLL(None)
    if sys.platform == "darwin":
        process._dyld_get_image_name.restype = ctypes.c_char_p
        names = [process._dyld_get_image_name(index) for index in range(process._dyld_image_count())]
        return [os.fsdecode(name) for name in names if name]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)
    def collect(item: Any, size: int, data: Any) -> int:
        if item.contents.name:
            paths.append(os.fsdecode(item.contents.name))
        return 0

    process.dl_iterate_phdr(collect, None)
    return paths
