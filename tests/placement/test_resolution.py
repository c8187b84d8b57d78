"""Numbers for stages, phases and IPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch.enums import AutoStage, Liveness
from poptorch.errors import Error
from poptorch.placement.resolution import auto_stage_number, number_phases, resolve_ipu


@pytest.mark.parametrize(
    ("liveness", "separate", "pairs", "span"),
    [
        (Liveness.AlwaysLive, False, "0→4 1→3 2→2", 3),
        (Liveness.AlwaysLive, True, "0→6 1→5 2→4", 4),
        (Liveness.OffChipAfterFwd, False, "0→8 1→7 2→6", 6),
        (Liveness.OffChipAfterFwd, True, "0→8 1→7 2→6", 6),
        (Liveness.OffChipAfterFwdNoOverlap, False, "0→12 2→10 4→8", 8),
        (Liveness.OffChipAfterEachPhase, False, "0→20 4→16 8→12", 12),
    ],
)
def test_three_phases_get_the_numbers_of_the_table(liveness, separate, pairs, span):
    numbering = number_phases(3, liveness, separate_backward=separate)
    assert (str(numbering), numbering.span) == (pairs, span)


@given(st.integers(1, 50), st.sampled_from(Liveness), st.booleans())
def test_backward_phases_mirror_the_forward_ones(phases, liveness, separate):
    numbering = number_phases(phases, liveness, separate_backward=separate)
    order = [*numbering.forward, *reversed(numbering.backward)]
    if liveness == Liveness.AlwaysLive and not separate:
        assert order.pop(phases) == numbering.forward[-1]  # shared by the last forward and first backward phase
    assert order == sorted(set(order))
    assert {f + b for f, b in zip(numbering.forward, numbering.backward, strict=True)} == {
        numbering.forward[0] + numbering.backward[0]
    }


@pytest.mark.parametrize("liveness", [Liveness.OffChipAfterFwdNoOverlap, Liveness.OffChipAfterEachPhase])
def test_serial_liveness_is_refused_for_parallel_phases(liveness):
    with pytest.raises(Error, match="This is only supported for serial phase execution"):
        number_phases(2, liveness, serial=False)


def test_no_phase_is_no_numbering():
    with pytest.raises(ValueError, match="at least one phase"):
        number_phases(0)


def test_automatic_stages_count_from_one():
    assert [auto_stage_number(AutoStage.AutoIncrement, range(n), "b", None) for n in range(3)] == [0, 1, 2]


def test_same_as_ipu_needs_an_ipu():
    assert auto_stage_number(AutoStage.SameAsIpu, [], "b", 5) == 5
    with pytest.raises(AssertionError, match="no IPU was specified for block b"):
        auto_stage_number(AutoStage.SameAsIpu, [], "b", None)


def test_ipu_comes_from_pin_then_annotation_then_stage():
    # IPU 0 is an answer, not an absence.
    assert resolve_ipu(0, 1, 2) == 0
    assert resolve_ipu(None, 0, 2) == 0
    assert resolve_ipu(None, None, 2) == 2
    assert resolve_ipu(None, None, None) is None
