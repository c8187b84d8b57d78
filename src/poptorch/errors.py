"""The exceptions of the package, and the names of what was going on when one of them was raised.

``Error`` covers both sides. :func:`createPoptorchError` builds the Python-side kind, for misuse of the API;
:func:`backend_error` the kind raised while a program is compiled, loaded or run, which also knows its
*context*: the steps that were under way, as named by :func:`error_context`.

Each message ends with a code such as ``[PT1002]``, by which the catalogue tells the cause and the cure. The commonest
errors have classes of their own, which know their codes; all others have the code of the part that raises them.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from poptorch import _logging
from poptorch.frames import users_frame
from poptorch_files import quietly_replaced

ERROR_LOG = "poptorch_error.log"
"""Where a message that is too long for a terminal goes, in the current directory."""

MAX_MESSAGE_LINES = 80

PART_CODES = {
    "poptorch": "PT0000",
    "poptorch_geometric": "PT7000",
    "popdist": "PT9000",
    "poptorch.arg_parsers": "PT1000",
    "poptorch.autocasting": "PT3000",
    "poptorch.capture": "PT2000",
    "poptorch.compat": "PT5000",
    "poptorch.compiler": "PT4000",
    "poptorch.data": "PT7000",
    "poptorch.devices": "PT8000",
    "poptorch.distributed": "PT9000",
    "poptorch.environment": "PT3000",
    "poptorch.executable": "PT8000",
    "poptorch.executor": "PT1000",
    "poptorch.executor.caching": "PT8000",
    "poptorch.executor.job": "PT9000",
    "poptorch.executor.optimizer_link": "PT6000",
    "poptorch.executor.saving": "PT8000",
    "poptorch.executor.stored": "PT8000",
    "poptorch.executor.target": "PT8000",
    "poptorch.experimental": "PT1000",
    "poptorch.host": "PT8000",
    "poptorch.ops": "PT5000",
    "poptorch.optim": "PT6000",
    "poptorch.options": "PT3000",
    "poptorch.placement": "PT4000",
    "poptorch.program": "PT4000",
    "poptorch.replicas": "PT5000",
    "poptorch.runtime": "PT9000",
    "poptorch.schedule": "PT4000",
}
"""The code of an error without a class of its own: that of the longest module name which its module begins with."""

_CODE = re.compile(r" \[(PT\d{4})\]$")

RECOVERY_ACTIONS = ("IPU_RESET", "PARTITION_RESET", "FULL_RESET")


class Error(Exception):
    """Something went wrong in the backend, or the API was used in a way that cannot work.

    >>> error = createPoptorchError("no such tensor")
    >>> error.type, error.message, error.location
    ('poptorch_py_error', 'no such tensor', '')
    """

    message: str
    """What went wrong, without location or context."""

    type: str
    """Which part raised it, for instance ``poptorch_py_error`` or ``poplar_link_error``."""

    location: str
    """What was going on, innermost first, one numbered line each; empty for errors of the Python side."""

    code: str = ""
    """What the catalogue lists it under, for instance ``PT1002``; empty for errors that other code makes."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.message = str(args[0]) if args else ""
        self.type = "poptorch_py_error"
        self.location = ""


class RecoverableError(Error):
    """A failure of the device that is probably transient; ``recovery_action`` says what to reset.

    Either ``IPU_RESET`` (reset the IPU and load its memory again), ``PARTITION_RESET`` (reset the partition
    and its links) or ``FULL_RESET`` (power cycle).
    """

    code = "PT9001"
    recovery_action: str

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.recovery_action = "FULL_RESET"


class UnrecoverableError(Error):
    """A persistent failure of the device: take the system out of service."""

    code = "PT9002"


class NotCompiledError(Error):
    """Something is asked of a program that does not exist yet, or not any more."""

    code = "PT1001"


class ShapeMismatchError(Error):
    """An argument has another shape than in the first call."""

    code = "PT1002"


class DataTypeMismatchError(Error):
    """A tensor has another type of elements than in the first call."""

    code = "PT1004"


class ValueMismatchError(Error):
    """An argument that is no tensor has another value than in the first call."""

    code = "PT1005"


class ArgumentsError(Error):
    """Arguments are missing, too many, or of other kinds than in the first call."""

    code = "PT1006"


class BackwardCallError(Error):
    """``backward()`` was called on what a wrapped model returned."""

    code = "PT1007"


class DeviceMoveError(Error):
    """A wrapped model was moved to a device."""

    code = "PT1008"


class NestedModelError(Error):
    """A wrapped model was called inside of the ``forward`` of another one."""

    code = "PT1009"


class InputTypeError(Error):
    """A tensor of a type, layout or device that no program takes."""

    code = "PT1011"


class ModelChangedError(Error):
    """Parameters, buffers or modules were changed after the model was compiled."""

    code = "PT1012"


class LossMissingError(Error):
    """A training model computes no loss."""

    code = "PT2001"


class SeveralLossesError(Error):
    """A training model computes several losses, and none of them is the last."""

    code = "PT2002"


class ReassignedError(Error):
    """``forward`` replaces a parameter or buffer instead of writing to it."""

    code = "PT2004"


class HostValueError(Error):
    """``forward`` needs the values of a tensor where only the device knows them."""

    code = "PT2005"


class ModuleTypeError(Error):
    """A module that cannot be wrapped."""

    code = "PT2006"


class NothingToComputeError(Error):
    """A model without an operation that depends on its inputs."""

    code = "PT2007"


class UnknownOptionError(Error):
    """A setting that does not exist."""

    code = "PT3002"


class NoBlockError(Error):
    """An operation is in no block, or in one without an IPU."""

    code = "PT4001"


class TooManyIpusError(Error):
    """More IPUs than one process can have."""

    code = "PT4002"


class IpuCountError(Error):
    """A number of IPUs that is no power of two."""

    code = "PT4003"


class PipelineTooShortError(Error):
    """Too few micro-batches to fill a pipeline."""

    code = "PT4004"


class AccumulationError(Error):
    """Gradient accumulation for a model that is not trained."""

    code = "PT4005"


class StageOrderError(Error):
    """A stage of a pipeline needs a value of a later one."""

    code = "PT4006"


class UnknownTensorError(Error):
    """An inner tensor was asked for by a name that the program does not have."""

    code = "PT4007"


class BlockTwiceError(Error):
    """A module was put into a second block."""

    code = "PT4008"


class OptimizerReplacementError(Error):
    """A new optimizer for which a compiled program would have to be another one."""

    code = "PT6001"


class ForeignOptimizerError(Error):
    """An optimizer for the parameters of another model."""

    code = "PT6002"


class OptimizerTypeError(Error):
    """Something that is no optimizer, in the place of one."""

    code = "PT6003"


class DatasetTooSmallError(Error):
    """A data set with fewer rows than the processes of a job take in one call."""

    code = "PT7001"


class LoaderStartError(Error):
    """The background process of a data loader did not start."""

    code = "PT7002"


class DeviceBusyError(Error):
    """All suitable IPUs are in use, or there are none."""

    code = "PT8001"


class FileFormatError(Error):
    """A file that is no exported model, is damaged, or comes from another release."""

    code = "PT8002"


class FileAccessError(Error):
    """A file that cannot be opened, read or written."""

    code = "PT8003"


class IndexOutOfRange(IndexError, RuntimeError):
    """An index, a label or an identifier that is not within its range while a program runs.

    Interpreted code raises ``IndexError`` for this and native code ``RuntimeError``. Programs that catch either catch
    this one.
    """


class _ContextStack(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_contexts = _ContextStack()
_SomeError = TypeVar("_SomeError", bound=Error)


@contextmanager
def error_context(name: str) -> Iterator[None]:
    """Name the step that the enclosed code performs; backend errors raised inside list it.

    >>> with error_context("lowering"), error_context("op 'conv1'"):
    ...     error = backend_error("no such op")
    >>> print(error.location)
      [0] op 'conv1'
      [1] lowering
    """
    traced = _logging.contexts_are_traced()
    if traced:
        _logging.backend.trace("Enter %s", name)
    _contexts.names.append(name)
    try:
        yield
    finally:
        _contexts.names.pop()
        if traced:
            _logging.backend.trace("Leave %s", name)


def createPoptorchError(msg: str) -> Error:
    """Build (not raise) the error for a wrong use of the Python API.

    >>> raise createPoptorchError("call compile() first")
    Traceback (most recent call last):
    ...
    poptorch.errors.Error: 'poptorch_py_error': call compile() first
    """
    return _misuse(Error, msg, part_code(sys._getframe(1).f_globals.get("__name__", "")))


def misuse(kind: type[_SomeError], message: str) -> _SomeError:
    """Build the error of a class of its own for a wrong use of the Python API.

    >>> misuse(NotCompiledError, "call compile() first")
    NotCompiledError("'poptorch_py_error': call compile() first [PT1001]")
    """
    return _misuse(kind, message, kind.code)


def coded(message: str, code: str) -> str:
    """The text of an error with its code at the end, for those that are no :class:`Error` by contract.

    >>> coded("the batch does not divide", "PT1003"), coded("once [PT2001]", "PT1003")
    ('the batch does not divide [PT1003]', 'once [PT2001]')
    """
    return f"{message} [{code}]" if code and _CODE.search(message) is None else message


def code_of(error: BaseException) -> str:
    """The code at the end of the message of an error; empty if it has none.

    >>> code_of(AssertionError("the batch does not divide [PT1003]")), code_of(KeyError("x"))
    ('PT1003', '')
    """
    found = _CODE.search(error.message if isinstance(error, Error) else str(error))
    return found[1] if found is not None else ""


def part_code(module: str) -> str:
    """The code of the part that a module belongs to; empty for a module of somebody else, and for this one."""
    name = "" if module == __name__ else module
    while name and name not in PART_CODES:
        name = name.rpartition(".")[0]
    return PART_CODES.get(name, "")


def _misuse(kind: type[_SomeError], text: str, code: str) -> _SomeError:
    message = coded(_short(text), code)
    error = kind(f"'poptorch_py_error': {message}")
    error.message, error.code = message, code_of(AssertionError(message))
    return error


def add_to_message(error: Error, text: str) -> None:
    """Let an error say more.

    >>> error = createPoptorchError("no such tensor.")
    >>> add_to_message(error, " (at model.py:3)")
    >>> str(error), error.message
    ("'poptorch_py_error': no such tensor. (at model.py:3)", 'no such tensor. (at model.py:3)')
    """
    said, code = _CODE.sub("", error.message), code_of(error)
    longer = coded(said + text, code)
    first, *rest = error.args
    error.args = (str(first).replace(error.message, longer, 1), *rest)
    error.message = longer


def backend_error(message: str, origin: str = "poptorch_cpp_error", kind: type[Error] = Error) -> Error:
    """Build the error for a failure while compiling, loading or running; ``origin`` becomes its ``type``.

    >>> str(backend_error("no such op")).endswith("'poptorch_cpp_error': no such op")
    True
    """
    code = kind.code or part_code(sys._getframe(1).f_globals.get("__name__", ""))
    return _described(kind, message, origin, _raised_at(), code=code)


def recoverable_error(
    message: str, recovery_action: str, origin: str = "poplar_recoverable_runtime_error"
) -> RecoverableError:
    """Build the error for a transient failure of a device that ``recovery_action`` should cure.

    >>> recoverable_error("peer 3 is gone", "PARTITION_RESET").recovery_action
    'PARTITION_RESET'
    """
    if recovery_action not in RECOVERY_ACTIONS:
        known = ", ".join(RECOVERY_ACTIONS)
        raise ValueError(f"Unknown recovery action {recovery_action!r}; use one of {known}")
    note = f"Recovery action required: {recovery_action}"
    error = _described(RecoverableError, message, origin, _raised_at(), note, code=RecoverableError.code)
    error.recovery_action = recovery_action
    return error


def unrecoverable_error(message: str, origin: str = "poplar_unrecoverable_runtime_error") -> UnrecoverableError:
    """Build the error for a device that must not be used any more.

    >>> unrecoverable_error("tile memory parity").type
    'poplar_unrecoverable_runtime_error'
    """
    return _described(UnrecoverableError, message, origin, _raised_at(), code=UnrecoverableError.code)


def _described(kind: type[_SomeError], text: str, origin: str, raised_at: str, *notes: str, code: str) -> _SomeError:
    message = coded(_short(text), code)
    location = "\n".join(f"  [{depth}] {name}" for depth, name in enumerate(reversed(_contexts.names)))
    lines = [f"{raised_at}'{origin}': {message}", *notes]
    if location:
        lines += ["Error raised in:", location]
    error = kind("\n".join(lines))
    error.message, error.type, error.location, error.code = message, origin, location, code_of(AssertionError(message))
    return error


def _raised_at() -> str:
    """``In file:line: `` of the user's code that led here; nothing where none did, as in a thread of ours."""
    frame = users_frame(sys._getframe(2))
    return "" if frame is None else f"In {Path(frame.f_code.co_filename).as_posix()}:{frame.f_lineno}: "


def _short(message: str) -> str:
    """``message`` itself, or a pointer to the file that now holds it when it is longer than a few screens."""
    if message.count("\n") < MAX_MESSAGE_LINES:
        return message
    written = quietly_replaced(ERROR_LOG, f"{message}\n".encode(errors="replace"))
    # A directory that cannot be written must not cost the user the message.
    return f"See {ERROR_LOG} for details" if written else message
