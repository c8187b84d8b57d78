"""How many pipeline stages and IPUs a placement needs, and the rules that these numbers must obey."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from poptorch import _logging
from poptorch.ambient import Placement
from poptorch.errors import (
    AccumulationError,
    IpuCountError,
    PipelineTooShortError,
    StageOrderError,
    TooManyIpusError,
    backend_error,
    misuse,
)
from poptorch.placement.strategies import (
    ExecutionStrategy,
    ParallelPhasedExecution,
    PipelinedExecution,
    ShardedExecution,
)

MAX_IPUS_PER_PROCESS = 64


# --- counting ---------------------------------------------------------------------------------------------


@dataclass
class PipelineStage:
    """What an IPU runs between two changes of IPU."""

    ipu: int
    blocks: list[str | None]
    """IDs of its blocks; ``None`` for the layers outside of any block."""

    def __str__(self) -> str:
        names = ", ".join("outside of any block" if name is None else f"block '{name}'" for name in self.blocks)
        return f"IPU {self.ipu} ({names})"


def forward_stages(starts: Iterable[Placement]) -> list[PipelineStage]:
    """Pipeline stages of the forward pass: the first, and one more at each change of IPU.

    ``starts`` are the blocks that have operations, in the order in which they start.

    >>> [str(stage) for stage in forward_stages([Placement(ipu=ipu, block=f"{ipu}") for ipu in (0, 0, 1, 0)])]
    ["IPU 0 (block '0')", "IPU 1 (block '1')", "IPU 0 (block '0')"]
    """
    stages: list[PipelineStage] = []
    for start in starts:
        if not stages or start.ipu != stages[-1].ipu:
            stages.append(PipelineStage(start.ipu, []))
        if start.block not in stages[-1].blocks:
            stages[-1].blocks.append(start.block)
    return stages or [PipelineStage(0, [None])]


def starts_with_operations(block_starts: Iterable[Placement], used: Collection[Placement]) -> list[Placement]:
    """The blocks that have operations, after the layers before the first block, if there are any.

    ``used`` are the placements of all operations.

    >>> a, b, outside = Placement(block="a"), Placement(ipu=1, block="b"), Placement()
    >>> [start.block for start in starts_with_operations([a, b], [outside, b])]
    [None, 'b']
    """
    starts = [start for start in block_starts if start in used]
    outside = Placement()
    return [outside, *starts] if outside in used and outside not in starts else starts


def pipeline_stages(forward: int, *, training: bool) -> int:
    """All pipeline stages. In training the last forward and the first backward stage are one.

    >>> pipeline_stages(4, training=True), pipeline_stages(4, training=False)
    (7, 4)
    """
    return 2 * forward - 1 if training else forward


def ipus_per_replica(used: Iterable[int]) -> int:
    """IPUs that one replica occupies, given the IPU indices of its operations.

    >>> ipus_per_replica([0, 3]), ipus_per_replica([])
    (4, 0)
    """
    indices = set(used)
    return max(len(indices), max(indices, default=-1) + 1)


def next_power_of_two(count: int) -> int:
    """The smallest power of two that is not below ``count``.

    >>> [next_power_of_two(n) for n in (1, 3, 4, 33)]
    [1, 4, 4, 64]
    """
    return 1 << max(count - 1, 0).bit_length()


def uses_pipelining(strategy: ExecutionStrategy, ipus: int) -> bool:
    """Whether stages overlap: a pipelined strategy on one IPU has nothing to overlap.

    >>> uses_pipelining(PipelinedExecution(), 1), uses_pipelining(PipelinedExecution(), 2)
    (False, True)
    """
    return _is_pipelined(strategy) and ipus > 1


def _is_pipelined(strategy: ExecutionStrategy) -> bool:
    return isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution)


# --- the number of IPUs -----------------------------------------------------------------------------------


def reserve_ipus(
    per_replica: int, replication_factor: int = 1, *, auto_round: bool = False, hardware: bool = True
) -> int:
    """The number of IPUs to reserve for a model; checks the limit and the power-of-two rule.

    ``hardware`` is false for the IPU Model and for offline targets, which take any number.

    >>> reserve_ipus(2, replication_factor=4)
    8
    >>> reserve_ipus(3, hardware=False)
    3
    """
    required = check_ipu_count(per_replica, replication_factor, auto_round=auto_round, hardware=hardware)
    if required == 0:
        _logging.logger.info("The model contains no operation that runs on an IPU: No IPUs are used.")
        return 0
    reserved = next_power_of_two(required)
    if reserved == required or not hardware:
        return required
    _logging.logger.warning(
        "%d IPUs are reserved because the number of IPUs per process must be a power of 2, but the model "
        "uses %d: %d IPUs will be reserved but not used.",
        reserved,
        required,
        reserved - required,
    )
    return reserved


def check_ipu_count(
    per_replica: int, replication_factor: int = 1, *, auto_round: bool, hardware: bool, details: str = ""
) -> int:
    """The IPUs that a model uses; refuses more than one process can have, and what hardware cannot reserve.

    ``details`` end the message.

    >>> check_ipu_count(3, 2, auto_round=True, hardware=True)
    6
    """
    required = per_replica * replication_factor
    if required > MAX_IPUS_PER_PROCESS:
        raise backend_error(
            f"Too many IPUs requested ({required}). Experiments that need more than {MAX_IPUS_PER_PROCESS} IPUs need "
            f"distributed execution: start several processes, for instance with poprun. The model asks for "
            f"{per_replica} IPUs for each of {replication_factor} replicas.",
            kind=TooManyIpusError,
        )
    reserved = next_power_of_two(required)
    if required not in (0, reserved) and hardware and not auto_round:
        raise backend_error(
            f"The model specifies the use of {required} IPUs, however PopTorch must reserve a minimum of "
            f"{reserved} in order to allow the model to run, because PopTorch must reserve a power of 2 or "
            "maximum of 64 IPUs per process. Please reconfigure your model to use a different number of "
            f"IPUs or set poptorch.Options().autoRoundNumIPUs(True). {reserved - required} IPUs would then stay idle."
            f"{details}",
            kind=IpuCountError,
        )
    return required


def check_selected_device(device_ipus: int, required: int, device_id: int) -> None:
    """Compare the device that the user chose with ``Options.useIpuId`` with what the model needs."""
    if device_ipus < required:
        raise backend_error(
            f"Expected at least replication factor * used IPUs = {required} IPUs, but device {device_id} "
            f"selected with poptorch.Options().useIpuId has {device_ipus}. Select a larger device or use "
            "fewer IPUs."
        )
    if device_ipus > required:
        _logging.logger.warning(
            "Device %d has %d IPUs and the model uses %d, which means some of them will not be used.",
            device_id,
            device_ipus,
            required,
        )


# --- pipelines --------------------------------------------------------------------------------------------


def check_pipeline_depth(
    strategy: ExecutionStrategy,
    stages: Sequence[PipelineStage],
    *,
    training: bool,
    gradient_accumulation: int,
    device_iterations: int,
) -> None:
    """A pipeline must be filled: enough micro-batches for its stages. Other strategies accept any number.

    >>> stages = forward_stages([Placement(stage=ipu, ipu=ipu) for ipu in range(4)])
    >>> check_pipeline_depth(
    ...     PipelinedExecution(), stages, training=True, gradient_accumulation=7, device_iterations=1
    ... )
    """
    if not _is_pipelined(strategy):
        return
    forward = len(stages)
    needed = pipeline_stages(forward, training=training)
    if training and gradient_accumulation < needed:
        raise backend_error(
            "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number "
            f"of pipeline stages ({needed}) when using poptorch.PipelinedExecution. Please note that a model with "
            f"{forward} pipeline stages in PopTorch will have an additional {forward - 1} stages when training. "
            f"It is {gradient_accumulation}.{list_stages(stages)}",
            kind=PipelineTooShortError,
        )
    if not training and device_iterations < needed:
        raise backend_error(
            "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline "
            f"stages ({needed}) when using poptorch.PipelinedExecution. It is {device_iterations}."
            f"{list_stages(stages)}",
            kind=PipelineTooShortError,
        )


def list_stages(stages: Sequence[PipelineStage]) -> str:
    """The stages with their blocks, as the end of a message.

    >>> list_stages([PipelineStage(0, ["a"]), PipelineStage(1, ["b", "c"])])
    " Stages: 0 on IPU 0 (block 'a'); 1 on IPU 1 (block 'b', block 'c')."
    """
    return f" Stages: {'; '.join(f'{number} on {stage}' for number, stage in enumerate(stages))}."


def check_inference_accumulation(strategy: ExecutionStrategy, gradient_accumulation: int) -> None:
    """Gradients are not accumulated in inference; the message for pipelines names what was probably meant."""
    if gradient_accumulation == 1:
        return
    hint = (
        " Use poptorch.Options().deviceIterations to process a sufficient number of batches each run for pipelined "
        "execution instead."
        if _is_pipelined(strategy)
        else ""
    )
    raise misuse(
        AccumulationError,
        "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default "
        f"value (1) when running a poptorch.inferenceModel().{hint} It is {gradient_accumulation}.",
    )


def check_stage_order(strategy: ExecutionStrategy, edges: Iterable[tuple[Placement, Placement]]) -> None:
    """Data of a pipeline must not flow back to an earlier stage; ``edges`` are (producer, consumer) pairs."""
    if not _is_pipelined(strategy):
        return
    for producer, consumer in edges:
        if consumer.stage < producer.stage:
            raise backend_error(
                f"{_where(consumer)} uses a value of {_where(producer)}: the stages of a pipeline must not "
                "decrease along the data flow. Use "
                "poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), or list the stages in the "
                "order in which they run.",
                kind=StageOrderError,
            )


# --- phases -----------------------------------------------------------------------------------------------


def check_phase_ipus(strategy: ExecutionStrategy, placements: Sequence[Placement]) -> None:
    """Parallel phases alternate between the even and the odd IPUs."""
    if not isinstance(strategy, ParallelPhasedExecution):
        return
    for placement in placements:
        if placement.phase % 2 != placement.ipu % 2:
            raise backend_error(
                f"{_where(placement)} is in phase {placement.phase}: in poptorch.ParallelPhasedExecution "
                "even phases must run on even IPUs and odd phases on odd IPUs. Change the IPUs with "
                "Phase.ipus or Stage.ipu.",
                kind=StageOrderError,
            )


def _where(placement: Placement) -> str:
    block = f"Block '{placement.block}'" if placement.block is not None else "The part before the first block"
    return f"{block} (stage {placement.stage}, IPU {placement.ipu})"
