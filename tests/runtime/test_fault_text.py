"""The grammar of POPTORCH_FAULTS."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from poptorch.runtime.fault_text import FaultKind, Numbers, parse_faults


def test_everything_at_once() -> None:
    text = "seed=5; IPU_RESET : call = 3 , ipu=1,replica=0 ;slow:seconds=0.25,call=2..4,program=training;unrecoverable"
    found = parse_faults(text)
    reset, slow, broken = found.faults
    assert found.seed == 5
    assert (reset.kind, reset.times, reset.ipu, reset.replica) == (FaultKind.IPU_RESET, Numbers(3, 3), 1, 0)
    assert (slow.kind, slow.seconds, slow.times, slow.program) == (FaultKind.SLOW, 0.25, Numbers(2, 4), "training")
    assert (broken.kind, broken.number, broken.probability) == (FaultKind.UNRECOVERABLE, 3, 1.0)
    assert 99 in broken.times


def test_ranges_without_an_end() -> None:
    assert 1_000_000 in parse_faults("ipu_reset:call=7..").faults[0].times
    assert 6 not in parse_faults("ipu_reset:call=7..").faults[0].times


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("ipu_rest", 1, "no kind of fault; use ipu_reset"),
        ("ipu_reset;", 11, "missing"),
        ("ipu_reset;;slow", 11, "missing"),
        ("ipu_reset:", 11, "missing"),
        ("ipu_reset:call=1,", 18, "missing"),
        ("ipu_reset:cal=1", 11, "no setting 'cal'; use call"),
        ("ipu_reset:call", 15, "needs a value, as in call="),
        ("ipu_reset:call=", 16, "must be a number from 1"),
        ("ipu_reset:call=0", 16, "must be a number from 1"),
        ("ipu_reset: call=-3", 17, "must be a number from 1"),
        ("ipu_reset:call=5..3", 16, "must be a number from 1"),
        ("ipu_reset:call=3,call=4", 18, "set twice"),
        ("ipu_reset:ipu=x", 15, "whole number"),
        ("ipu_reset:probability=1.5", 23, "from 0 to 1"),
        ("ipu_reset:probability=nan", 23, "from 0 to 1"),
        ("ipu_reset:seconds=1", 11, "no setting 'seconds'"),
        ("ipu_reset:program=test", 19, "as in program=training"),
        ("link_error:call=1", 12, "no setting 'call'; use compilation"),
        ("ipu_reset=3", 10, "':' is expected"),
        ("slow:call=1", 1, "slow needs a setting seconds"),
        ("slow:seconds=1e9", 14, "from 0 to 3600"),
        ("seed=one", 6, "whole number"),
        ("seed=1;seed=2", 8, "second seed"),
        ("seed", 5, "needs a value"),
        ("ipu_reset:ipu=٣", 15, "whole number"),
    ],
)
def test_an_error_says_where(text: str, position: int, words: str) -> None:
    with pytest.raises(poptorch.Error) as raised:
        parse_faults(text)
    message = raised.value.message
    assert f"POPTORCH_FAULTS is not understood at position {position}: " in message
    assert words in message
    *_, shown, pointer = message.splitlines()
    assert shown == f"  {text}"
    assert pointer.index("^") == 2 + position - 1


@given(st.text(alphabet="ipu_resetslowcad=:;,. 0123456789é\n", max_size=40))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(poptorch.Error):
        parse_faults(text)  # any other error fails the test
