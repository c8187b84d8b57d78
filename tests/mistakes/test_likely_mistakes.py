"""Every likely mistake gets a message that says what to do; run with ``-s`` to read them all."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("likely_mistakes", Path(__file__).with_name("likely_mistakes.py"))
assert SPEC is not None
assert SPEC.loader is not None
likely_mistakes = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = likely_mistakes
SPEC.loader.exec_module(likely_mistakes)


@pytest.mark.parametrize("mistake", likely_mistakes.MISTAKES, ids=lambda function: function.__name__)
def test_a_mistake_is_told(mistake: Callable[[], object]) -> None:
    text = likely_mistakes.message(mistake)
    print(f"{mistake.__name__}:\n{text}")
    for phrase in likely_mistakes.MISTAKES[mistake]:
        assert phrase in text


def test_there_are_sixty() -> None:
    assert len(likely_mistakes.MISTAKES) >= 60


def test_an_assertion_that_is_meant_shows_frames_of_the_user() -> None:
    with pytest.raises(AssertionError, match="Invalid batch dimension") as caught:
        likely_mistakes.a_batch_that_does_not_divide()
    ours = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if "/src/poptorch/" in frame.filename]
    assert len(ours) == 1  # the call itself


def test_notebooks_show_schedules_as_pictures_and_tables_in_columns() -> None:
    model = likely_mistakes.inference()
    model(likely_mistakes.X)
    assert model.drawSchedule()._repr_html_().startswith("<svg")
    assert model.program._repr_html_().startswith("<pre")
