"""The names that programs and conformance tests take from the original's native module."""

from __future__ import annotations

import enum
from typing import Any

from poptorch.errors import (
    Error,
    RecoverableError,
    UnrecoverableError,
    backend_error,
    error_context,
    recoverable_error,
    unrecoverable_error,
)
from poptorch.options.backend import validate_options

__all__ = [
    "Error",
    "RecoverableError",
    "UnrecoverableError",
    "TestErrorType",
    "_throwTestError",
    "_validateOptions",
]


class TestErrorType(enum.Enum):
    """Which failure :func:`_throwTestError` should raise."""

    __test__ = False  # its name makes pytest take it for a test class

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


_LINKER_OUTPUT = "undefined symbol: test_vertex"


def _throwTestError(error_type: TestErrorType) -> None:
    """Raise the error that a failure of the given origin leads to, from inside two named contexts."""
    with error_context("throwTestError::topLevel"), error_context("throwTestError::bottomLevel"):
        raise _test_error(error_type)


def _test_error(error_type: TestErrorType) -> Error:
    if error_type is TestErrorType.PoplarRecoverableFullReset:
        return recoverable_error("test failure of a device", "FULL_RESET")
    if error_type is TestErrorType.PoplarUnrecoverable:
        return unrecoverable_error("test failure of a device")
    if error_type is TestErrorType.PoplarLinkError:
        return backend_error(f"test failure of the linker. Output: {_LINKER_OUTPUT}", "poplar_link_error")
    origins = {
        TestErrorType.Poptorch: "poptorch_cpp_error",
        TestErrorType.Popart: "popart_exception",
        TestErrorType.PopartInternal: "popart_internal_exception",
        TestErrorType.Poplibs: "poplibs_exception",
        TestErrorType.PoplarUnknown: "poplar_unknown_runtime_error",
    }
    return backend_error(f"test failure of kind {error_type.name}", origins[error_type])


def _validateOptions(options: dict[str, Any]) -> None:
    """Check a dictionary made by ``Options.toDict`` as a compilation would."""
    validate_options(options)
