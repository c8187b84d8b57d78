"""Pure functions that turn a block into numbers: its stage, its phase, its IPU.

Nothing here remembers anything; the strategies in :mod:`poptorch.placement.strategies` hold the memory.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from poptorch.enums import AutoStage, Liveness
from poptorch.errors import backend_error


def auto_stage_number(policy: AutoStage, seen: Collection[Hashable], block_id: Hashable, ipu_id: int | None) -> int:
    """Stage number of a block that is met for the first time, when no stages were declared.

    ``seen`` are the blocks numbered so far. Automatic numbers start at 0.

    >>> auto_stage_number(AutoStage.AutoIncrement, [], "first", ipu_id=None)
    0
    >>> auto_stage_number(AutoStage.SameAsIpu, ["first"], "second", ipu_id=3)
    3
    """
    if policy == AutoStage.AutoIncrement:
        return len(seen)
    if ipu_id is None:
        raise AssertionError(
            f"The AutoStage.SameAsIpu strategy was selected but no IPU was specified for block {block_id}. "
            "Give the block an ipu_id, or use AutoStage.AutoIncrement, or declare the stages explicitly."
        )
    return ipu_id


def resolve_ipu(pinned: int | None, annotated: int | None, stage_number: int | None) -> int | None:
    """The IPU of a block: the stage's pin, else the annotation's ``ipu_id``, else the stage number.

    ``None`` when none of the three is known, which only happens in the phased strategies (they have no stage
    numbers).

    >>> resolve_ipu(2, 1, 0), resolve_ipu(None, 1, 0), resolve_ipu(None, None, 0)
    (2, 1, 0)
    """
    return next((ipu for ipu in (pinned, annotated, stage_number) if ipu is not None), None)


@dataclass(frozen=True)
class PhaseNumbering:
    """Numbers given to the declared phases and to their backward phases.

    ``span`` counts the phases up to the start of the separate backward phases: gaps between numbers are where
    tensors travel off chip and back.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    span: int

    def __str__(self) -> str:
        return " ".join(f"{fwd}→{bwd}" for fwd, bwd in zip(self.forward, self.backward, strict=True))


def number_phases(
    num_phases: int,
    liveness: Liveness = Liveness.AlwaysLive,
    *,
    separate_backward: bool = False,
    serial: bool = True,
) -> PhaseNumbering:
    """Number ``num_phases`` declared phases and the backward phases that mirror them.

    >>> print(number_phases(3))
    0→4 1→3 2→2
    >>> print(number_phases(3, separate_backward=True))
    0→6 1→5 2→4
    >>> print(number_phases(3, Liveness.OffChipAfterEachPhase))
    0→20 4→16 8→12
    """
    if num_phases < 1:
        raise ValueError(f"A phased strategy has at least one phase, not {num_phases}.")
    serial_only = (Liveness.OffChipAfterFwdNoOverlap, Liveness.OffChipAfterEachPhase)
    if not serial and liveness in serial_only:
        raise backend_error(
            f"Liveness.{Liveness(liveness).name}: This is only supported for serial phase execution. "
            "Use poptorch.SerialPhasedExecution, or Liveness.AlwaysLive or OffChipAfterFwd."
        )
    stride = {Liveness.OffChipAfterFwdNoOverlap: 2, Liveness.OffChipAfterEachPhase: 4}.get(liveness, 1)
    last = stride * (num_phases - 1)
    # Room between the last forward and the first backward phase: none when they are the same phase, one when
    # they merely are separate, three more when tensors leave the chip in between.
    if liveness == Liveness.AlwaysLive:
        span = last + 2 if separate_backward else last + 1
    else:
        span = last + 4
    shares_last_phase = liveness == Liveness.AlwaysLive and not separate_backward
    first_backward = span - 1 if shares_last_phase else span
    forward = tuple(stride * phase for phase in range(num_phases))
    return PhaseNumbering(forward, tuple(first_backward + last - number for number in forward), span)
