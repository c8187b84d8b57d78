"""``Stage``, ``Phase`` and the four execution strategies.

A strategy answers one question for the annotations (:meth:`ExecutionStrategy.place`): a block with this ID
and this ``ipu_id`` starts; what is its stage, its phase, its IPU? And one for the options
(:meth:`ExecutionStrategy.backendOptions`): which entries describe you?
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from poptorch.ambient import Placement
from poptorch.enums import AutoStage, Liveness
from poptorch.placement.resolution import PhaseNumbering, auto_stage_number, number_phases, resolve_ipu

BlockId = str
"""How a block is named in stages and annotations."""


def require(condition: bool, message: str) -> None:
    """Raise the ``AssertionError`` that the API promises; ``assert`` would vanish under ``python -O``."""
    if not condition:
        raise AssertionError(message)


def is_int(value: object) -> bool:
    """An integer proper: ``True`` is not an IPU."""
    return isinstance(value, int) and not isinstance(value, bool)


class Stage:
    """Blocks that run one after the other on one IPU.

    >>> Stage("embedding", "encoder").ipu(1)
    Stage('embedding', 'encoder').ipu(1)
    """

    def __init__(self, *block_ids: BlockId) -> None:
        wrong = [block for block in block_ids if not isinstance(block, str)]
        require(not wrong, f"Block IDs are supposed to be strings, but got {wrong!r}. Use names of blocks.")
        self._blocks = tuple(block_ids)
        self._ipu: int | None = None

    @property
    def blocks(self) -> tuple[BlockId, ...]:
        """The block IDs, in order."""
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        """Pin the stage to IPU index ``ipu``, whatever the blocks themselves say."""
        require(is_int(ipu) and ipu >= 0, f"Stage.ipu expects an integer IPU index, not {ipu!r}.")
        self._ipu = ipu
        return self

    @property
    def pinned_ipu(self) -> int | None:
        """The IPU given with :meth:`ipu`, or ``None``."""
        return self._ipu

    def __repr__(self) -> str:
        pin = "" if self._ipu is None else f".ipu({self._ipu})"
        return f"Stage({', '.join(map(repr, self._blocks))}){pin}"


class Phase:
    """Stages that may run at the same time on different IPUs.

    Made from stages, or from the block IDs of a single stage. (With numbers by keyword, ``Phase(stage_id=1)``, it is
    the scope of that name from before SDK 1.4: see :class:`poptorch.placement.legacy.PhaseScope`.)

    >>> phase = Phase(Stage("left"), Stage("right"))
    >>> phase.ipus(0, 2)
    >>> phase.stage(1)
    Stage('right').ipu(2)
    """

    def __new__(cls, *arg: BlockId | Stage, **numbers: int) -> Any:
        if not numbers:
            return super().__new__(cls)
        from poptorch.placement.legacy import PhaseScope

        return PhaseScope(*arg, **numbers)  # type: ignore[arg-type]

    def __init__(self, *arg: BlockId | Stage) -> None:
        if all(isinstance(item, Stage) for item in arg) and arg:
            self.stages: list[Stage] = list(arg)  # type: ignore[arg-type]
            return
        require(
            all(isinstance(item, str) for item in arg),
            "All arguments must either be block IDs (strings) or Stages, but got "
            f"{', '.join(type(item).__name__ for item in arg)}. "
            "(To select an IPU inside a model, as Phase did before SDK 1.4, use poptorch.Block(ipu_id=...) or "
            "poptorch.Phase(stage_id=...).)",
        )
        self.stages = [Stage(*arg)]  # type: ignore[arg-type]

    def stage(self, idx: int) -> Stage:
        """The ``idx``-th stage of the phase."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> None:
        """Give one IPU to each stage, in order."""
        require(
            len(ipus) == len(self.stages),
            f"Phase contains {len(self.stages)} stages but you provided {len(ipus)} ipus",
        )
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self.stages))})"


@dataclass(frozen=True)
class _Slot:
    """Where a strategy has put a block: its stage, and the number of the stage (or of its declared phase)."""

    stage: Stage
    number: int


class ExecutionStrategy:
    """Maps blocks to stages, phases and IPUs, and says how the stages are scheduled."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, _Slot] = {}

    def backendOptions(self) -> dict[str, Any]:
        """The entries that this strategy contributes to ``Options.toDict()``."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is executed")

    def place(self, block_id: Hashable, ipu_id: int | None, *, leading: bool = False) -> Placement | None:
        """Where block ``block_id`` runs when it starts; ``None`` when no IPU is known for it.

        ``leading`` says that layers outside of any block come before the first block.
        """
        raise NotImplementedError(f"{type(self).__name__} does not place blocks")

    def stage(self, block_id: BlockId) -> Stage:
        """The stage that holds ``block_id``."""
        slot = self._slots.get(block_id)
        if slot is None:
            raise AssertionError(f"Unknown block {block_id}. {self._known_blocks()}")
        return slot.stage

    def _add(self, stage: Stage, number: int) -> None:
        for block in stage.blocks:
            require(block not in self._slots, f"{block} associated with more than one stage. List it once")
            self._slots[block] = _Slot(stage, number)

    def _expected(self, block_id: Hashable) -> _Slot:
        """The slot of a block that the user must have declared."""
        slot = self._slots.get(block_id)
        if slot is None:
            raise AssertionError(
                f"Unknown Block '{block_id}'. {self._known_blocks()}. "
                "Rename the block, or add it to a stage of the execution strategy."
            )
        return slot

    def _known_blocks(self) -> str:
        return f"list of expected Blocks: {list(self._slots)}"


class PipelinedExecution(ExecutionStrategy):
    """All IPUs work at once, each on another micro-batch. The default strategy.

    Without arguments, or with one :class:`~poptorch.AutoStage`, each block becomes a stage by itself.
    Otherwise there is one argument per stage: a ``Stage``, a block ID, or an iterable of block IDs.

    >>> strategy = PipelinedExecution("embedding", ["encoder", "pooler"], Stage("head").ipu(0))
    >>> strategy.stage("pooler")
    Stage('encoder', 'pooler')
    >>> strategy.place("head", ipu_id=None)
    Placement(stage=2, phase=0, ipu=0, block='head')
    """

    _execution_mode = 0

    def __init__(self, *args: AutoStage | Stage | BlockId | Iterable[BlockId]) -> None:
        super().__init__()
        self._auto_stage: AutoStage | None = None
        if not args:
            self._auto_stage = AutoStage.SameAsIpu
        elif any(isinstance(arg, AutoStage) for arg in args):
            require(
                len(args) == 1,
                f"{type(self).__name__} accepts one AutoStage or explicit stages, not both: got {args!r}.",
            )
            self._auto_stage = args[0]  # type: ignore[assignment]
        else:
            for number, arg in enumerate(args):
                self._add(_as_stage(arg), number)

    def backendOptions(self) -> dict[str, Any]:
        """The entries that this strategy contributes to ``Options.toDict()``."""
        return {"execution_mode": self._execution_mode}

    def place(self, block_id: Hashable, ipu_id: int | None, *, leading: bool = False) -> Placement:
        """Where block ``block_id`` runs; an automatic stage number, once given, is kept.

        With ``AutoStage.AutoIncrement``, leading layers are stage 0 and the blocks follow.

        >>> strategy = PipelinedExecution(AutoStage.AutoIncrement)
        >>> [strategy.place(name, None).stage for name in ("a", "b", "a")]
        [0, 1, 0]
        """
        if self._auto_stage is None:
            slot = self._expected(block_id)
        elif block_id in self._slots:
            slot = self._slots[block_id]
        else:
            number = auto_stage_number(self._auto_stage, self._slots, block_id, ipu_id)
            slot = self._slots[block_id] = _Slot(Stage(str(block_id)), number)
        number = slot.number + (leading and self._auto_stage == AutoStage.AutoIncrement)
        ipu = resolve_ipu(slot.stage.pinned_ipu, ipu_id, number)
        assert ipu is not None  # the stage number is the last resort
        return Placement(stage=number, phase=0, ipu=ipu, block=str(block_id))

    def __repr__(self) -> str:
        if self._auto_stage is not None:
            return f"{type(self).__name__}(AutoStage.{self._auto_stage.name})"
        stages = dict.fromkeys(slot.stage for slot in self._slots.values())
        return f"{type(self).__name__}({', '.join(map(repr, stages))})"


class ShardedExecution(PipelinedExecution):
    """One IPU works at a time, on one micro-batch: forward through the shards, then backward in reverse.

    Accepts the same arguments as :class:`PipelinedExecution`.

    >>> ShardedExecution().backendOptions()
    {'execution_mode': 1}
    """

    _execution_mode = 1


class PhasedExecution(ExecutionStrategy):
    """What the serial and the parallel phased strategies share: one argument per phase.

    An argument is a ``Phase``, a ``Stage``, a block ID, a list of stages, or a list of block IDs (one stage).
    """

    _serial: bool

    def __init__(self, *phases: Phase | Stage | BlockId | list[Stage] | list[BlockId]) -> None:
        super().__init__()
        require(
            bool(phases),
            "There is currently no AutoStage for PhasedExecution: list the phases as arguments of "
            f"{type(self).__name__}.",
        )
        self._phases = [_as_phase(arg) for arg in phases]
        self._tensors_liveness = Liveness.AlwaysLive
        self._separate_backward_phase = False
        for number, phase in enumerate(self._phases):
            for stage in phase.stages:
                self._add(stage, number)

    @property
    def phases(self) -> Sequence[Phase]:
        """The declared phases, in order."""
        return tuple(self._phases)

    def phase(self, phase: int) -> Phase:
        """The phase with this position among the declared ones."""
        require(
            is_int(phase) and phase >= 0,
            f"Phases are identified by positive integers, not {phase!r}.",
        )
        if phase >= len(self._phases):
            raise IndexError(f"Phase {phase} does not exist: the strategy has {len(self._phases)} phases.")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> PhasedExecution:
        """Start the backward pass in a phase of its own, instead of in the last forward phase."""
        require(isinstance(use, bool), f"useSeparateBackwardPhase expects a bool, not {use!r}.")
        self._separate_backward_phase = use
        return self

    def numbering(self) -> PhaseNumbering:
        """The numbers of the forward and backward phases under the current settings."""
        return number_phases(
            len(self._phases),
            self._tensors_liveness,
            separate_backward=self._separate_backward_phase,
            serial=self._serial,
        )

    def backendOptions(self) -> dict[str, Any]:
        """The entries that this strategy contributes to ``Options.toDict()``."""
        return {
            "execution_mode": 2,
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._tensors_liveness.value,
            "serial_phases_execution": self._serial,
        }

    def place(self, block_id: Hashable, ipu_id: int | None, *, leading: bool = False) -> Placement | None:
        """Where the block runs. The stage number is the position of the stage inside its phase."""
        slot = self._expected(block_id)
        ipu = resolve_ipu(slot.stage.pinned_ipu, ipu_id, None)
        if ipu is None:
            return None
        return Placement(
            stage=self._phases[slot.number].stages.index(slot.stage),
            phase=self.numbering().forward[slot.number],
            ipu=ipu,
            block=str(block_id),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._phases))})"


class SerialPhasedExecution(PhasedExecution):
    """The phases share one group of IPUs and run one after the other.

    >>> strategy = SerialPhasedExecution("first", [Stage("left"), Stage("right")])
    >>> strategy.phase(1).ipus(0, 1)
    >>> strategy.setTensorsLiveness(Liveness.OffChipAfterFwdNoOverlap).place("right", ipu_id=None)
    Placement(stage=1, phase=2, ipu=1, block='right')
    """

    _serial = True

    def setTensorsLiveness(self, liveness: Liveness) -> SerialPhasedExecution:
        """Choose how long tensors that the backward pass needs stay on chip."""
        require(
            isinstance(liveness, Liveness),
            f"setTensorsLiveness expects a poptorch.Liveness, not {liveness!r}.",
        )
        self._tensors_liveness = liveness
        return self


class ParallelPhasedExecution(PhasedExecution):
    """Phases alternate between two groups of IPUs: even phases on even IPUs, odd phases on odd IPUs.

    >>> strategy = ParallelPhasedExecution(Phase(Stage("a0"), Stage("b0")), Phase(Stage("a1"), Stage("b1")))
    >>> strategy.phase(0).ipus(0, 2)
    >>> strategy.phase(1).ipus(1, 3)
    >>> strategy.place("b1", ipu_id=None)
    Placement(stage=1, phase=1, ipu=3, block='b1')
    """

    _serial = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> ParallelPhasedExecution:
        """Move the tensors that the backward pass needs off chip between the two passes."""
        require(isinstance(off_chip, bool), f"sendTensorsOffChipAfterFwd expects a bool, not {off_chip!r}.")
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self


def _as_stage(arg: object) -> Stage:
    if isinstance(arg, Stage):
        return arg
    if isinstance(arg, str):
        return Stage(arg)
    require(
        isinstance(arg, Iterable),
        f"A stage is a poptorch.Stage, a block ID string or an iterable of block ID strings, not {arg!r}.",
    )
    return Stage(*arg)  # type: ignore[misc]


def _as_phase(arg: object) -> Phase:
    if isinstance(arg, Phase):
        return arg
    if isinstance(arg, Stage | str):
        return Phase(arg)
    require(
        isinstance(arg, list),
        "A phase is a poptorch.Phase, a poptorch.Stage, a block ID string, or a list of stages or of "
        f"block IDs, not {arg!r}.",
    )
    require(
        not any(isinstance(item, Phase) for item in arg),  # type: ignore[attr-defined]
        "Phases must be passed as separate arguments, not as one list of phases.",
    )
    return Phase(*arg)  # type: ignore[misc]
