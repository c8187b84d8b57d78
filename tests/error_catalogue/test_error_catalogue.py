"""Every error that is raised has a code, every code has an entry, and every entry's examples do what it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import poptorch
from poptorch import errors
from poptorch.cli import main
from poptorch.error_catalogue import ENTRIES, PARTS
from poptorch.error_catalogue.entry import Entry

SRC = Path(poptorch.__file__).resolve().parent.parent
MAKERS = {"createPoptorchError", "backend_error"}

GIVEN = [
    "PT0000",
    "PT1000",
    "PT1001",
    "PT1002",
    "PT1003",
    "PT1004",
    "PT1005",
    "PT1006",
    "PT1007",
    "PT1008",
    "PT1009",
    "PT1010",
    "PT1011",
    "PT1012",
    "PT1013",
    "PT1014",
    "PT2000",
    "PT2001",
    "PT2002",
    "PT2003",
    "PT2004",
    "PT2005",
    "PT2006",
    "PT2007",
    "PT3000",
    "PT3001",
    "PT3002",
    "PT3003",
    "PT3004",
    "PT4000",
    "PT4001",
    "PT4002",
    "PT4003",
    "PT4004",
    "PT4005",
    "PT4006",
    "PT4007",
    "PT4008",
    "PT5000",
    "PT6000",
    "PT6001",
    "PT6002",
    "PT6003",
    "PT6004",
    "PT7000",
    "PT7001",
    "PT7002",
    "PT8000",
    "PT8001",
    "PT8002",
    "PT8003",
    "PT9000",
    "PT9001",
    "PT9002",
]
"""The codes of all releases. A code that was given keeps its meaning: add new ones, and never take one away."""


def kinds() -> Iterator[type[poptorch.Error]]:
    """All classes of errors with a code of their own."""
    left = [poptorch.Error]
    while left:
        left += (kind := left.pop()).__subclasses__()
        if "code" in vars(kind) and kind.code and kind.__module__.startswith("poptorch"):
            yield kind


def test_no_code_goes() -> None:
    assert sorted(ENTRIES) == GIVEN


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.code)
def test_the_example_raises_the_error_and_the_cure_cures_it(entry: Entry) -> None:
    first = entry.message().split("\nRecovery action", 1)[0].split("\nError raised in", 1)[0]
    assert first.endswith(f"[{entry.code}]")
    assert entry.code[2] in PARTS
    if entry.cured:
        entry.run(entry.cured)


def test_each_class_has_an_entry_of_its_own() -> None:
    codes = [kind.code for kind in kinds()]
    assert len(codes) > 20
    assert len(set(codes)) == len(codes)
    assert set(codes) <= set(ENTRIES)


def test_each_part_has_an_entry() -> None:
    assert set(errors.PART_CODES.values()) == {f"PT{digit}000" for digit in PARTS}
    assert set(errors.PART_CODES.values()) <= set(ENTRIES)


def test_codes_in_texts_have_entries() -> None:
    for file in SRC.rglob("*.py"):
        if "error_catalogue" not in file.parts and file.name != "errors.py":
            assert set(re.findall(r"\[(PT\d{4})\]", file.read_text())) <= set(ENTRIES), file


def test_whatever_raises_errors_belongs_to_a_part() -> None:
    makers = 0
    for file in SRC.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        if names & MAKERS and file.name != "errors.py":
            makers += 1
            module = ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
            assert errors.part_code(module), module
        assert "Error" not in names, f"{file} raises an error without a code"
    assert makers > 100


def test_the_code_ends_the_message_and_belongs_to_the_error() -> None:
    model = poptorch.inferenceModel(torch.nn.ReLU())
    with pytest.raises(errors.NotCompiledError, match=r"with arguments first\. \[PT1001\]$") as caught:
        model.copyWeightsToDevice()
    assert caught.value.code == errors.code_of(caught.value) == "PT1001"
    assert str(caught.value) == f"'poptorch_py_error': {caught.value.message}"


def test_what_is_said_later_comes_before_the_code() -> None:
    error = errors.misuse(errors.NotCompiledError, "call it first.")
    errors.add_to_message(error, " (at model.py:3)")
    assert error.message == "call it first. (at model.py:3) [PT1001]"
    assert str(error) == f"'poptorch_py_error': {error.message}"


def test_an_error_of_an_error_keeps_the_first_code() -> None:
    inner = errors.misuse(errors.NotCompiledError, "call it first.")
    outer = errors.misuse(errors.HostValueError, f"In a loop: {inner.message}")
    assert outer.message == "In a loop: call it first. [PT1001]"
    assert outer.code == "PT1001"


def test_errors_of_programs_have_no_code_of_ours() -> None:
    error = poptorch.createPoptorchError("mine")
    assert (error.message, error.code) == ("mine", "")


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pt1003"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("PT1003: The batch does not divide")
    assert "poptorch.DataLoader" in said
    assert "](" not in said
    assert main(["explain"]) == 0
    said = capsys.readouterr().out
    assert all(code in said for code in GIVEN)
    assert main(["explain", "PT1"]) == 1
    assert "`poptorch explain` lists all codes" in capsys.readouterr().err
