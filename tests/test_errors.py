"""Exceptions: hierarchy, attributes, texts, contexts and long messages."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import poptorch
from poptorch import errors, poptorch_core
from poptorch.poptorch_core import TestErrorType


def raised(error_type: TestErrorType) -> poptorch.Error:
    with pytest.raises(poptorch.Error) as caught:
        poptorch_core._throwTestError(error_type)
    return caught.value


def test_the_hierarchy() -> None:
    assert poptorch.Error.__bases__ == (Exception,)
    assert poptorch.RecoverableError.__bases__ == (poptorch.Error,)
    assert poptorch.UnrecoverableError.__bases__ == (poptorch.Error,)


@pytest.mark.parametrize("name", ["Error", "RecoverableError", "UnrecoverableError"])
def test_the_core_module_has_the_same_objects(name: str) -> None:
    assert getattr(poptorch_core, name) is getattr(poptorch, name)


def test_python_side_errors_name_their_type() -> None:
    error = poptorch.createPoptorchError("the message")
    assert str(error) == "'poptorch_py_error': the message"
    assert (error.type, error.message, error.location) == ("poptorch_py_error", "the message", "")


def test_an_error_made_by_hand_has_all_attributes() -> None:
    error = poptorch.Error("text")
    assert (error.message, error.type, error.location) == ("text", "poptorch_py_error", "")


def test_attributes_belong_to_the_instance() -> None:
    first, second = errors.backend_error("one"), errors.backend_error("two", "popart_exception")
    assert (first.message, first.type) == ("one", "poptorch_cpp_error")
    assert (second.message, second.type) == ("two", "popart_exception")
    assert not hasattr(poptorch.Error, "message")


def test_attributes_survive_pickling() -> None:
    error = errors.recoverable_error("gone", "IPU_RESET")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is poptorch.RecoverableError
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.parametrize("error_type", list(TestErrorType))
def test_every_kind_names_both_contexts_exactly_once(error_type: TestErrorType) -> None:
    for error in (raised(error_type), raised(error_type)):  # the second must not see leftovers of the first
        for context in ("throwTestError::topLevel", "throwTestError::bottomLevel"):
            assert error.args[0].count(context) == 1
            assert error.location.count(context) == 1
            assert context not in error.message


def test_the_text_of_a_recoverable_error() -> None:
    error = raised(TestErrorType.PoplarRecoverableFullReset)
    assert isinstance(error, poptorch.RecoverableError)
    assert error.recovery_action == "FULL_RESET"
    assert error.type == "poplar_recoverable_runtime_error"
    where, *rest = str(error).split("\n")
    assert where.startswith(f"In {__file__}:")
    assert where.endswith(f": '{error.type}': {error.message}")
    assert rest == [
        "Recovery action required: FULL_RESET",
        "Error raised in:",
        "  [0] throwTestError::bottomLevel",
        "  [1] throwTestError::topLevel",
    ]


def test_other_kinds() -> None:
    link = raised(TestErrorType.PoplarLinkError)
    assert link.type == "poplar_link_error"
    assert ". Output: " in link.message
    unrecoverable = raised(TestErrorType.PoplarUnrecoverable)
    assert isinstance(unrecoverable, poptorch.UnrecoverableError)
    assert unrecoverable.type == "poplar_unrecoverable_runtime_error"
    assert raised(TestErrorType.Poptorch).type == "poptorch_cpp_error"
    assert raised(TestErrorType.Popart).type == "popart_exception"
    assert raised(TestErrorType.PopartInternal).type == "popart_internal_exception"
    assert raised(TestErrorType.Poplibs).type == "poplibs_exception"
    assert raised(TestErrorType.PoplarUnknown).type == "poplar_unknown_runtime_error"


@pytest.mark.parametrize("make", [errors.backend_error, errors.unrecoverable_error])
def test_an_error_where_no_line_is_the_users_names_no_file_of_ours(make: Callable[[str], poptorch.Error]) -> None:
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(make, "plain").result()
    assert str(error).startswith(f"'{error.type}': plain")


def test_an_error_outside_any_context_has_no_location() -> None:
    error = errors.backend_error("plain")
    assert error.location == ""
    assert "Error raised in" not in str(error)


def test_an_unknown_recovery_action_is_refused() -> None:
    with pytest.raises(ValueError, match=r"PARITION_RESET.*PARTITION_RESET"):
        errors.recoverable_error("gone", "PARITION_RESET")


def lines(count: int) -> str:
    return "\n".join(f"line {number}" for number in range(count))


@pytest.mark.parametrize("make", [errors.backend_error, poptorch.createPoptorchError])
def test_a_message_of_more_than_80_lines_goes_to_a_file(make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make(lines(80)).message == lines(80)
    assert not (tmp_path / "poptorch_error.log").exists()
    error = make(lines(81))
    assert error.message == "See poptorch_error.log for details"
    assert "See poptorch_error.log for details" in str(error)
    assert (tmp_path / "poptorch_error.log").read_text() == lines(81) + "\n"


def test_a_long_message_is_kept_where_no_file_can_be_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "poptorch_error.log").mkdir()
    assert errors.backend_error(lines(81)).message == lines(81)
