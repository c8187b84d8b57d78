"""What no program can be compiled with: refused with the reason, before or after the model is captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from poptorch._logging import backend
from poptorch.capture.arguments import ArgumentLayout, InputNormaliser, check_input
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.plan import Ordering
from poptorch.compiler.settings import ProgramDivision, Settings
from poptorch.errors import createPoptorchError
from poptorch.options.backend import resolve_derived
from poptorch.placement import counting
from poptorch.program.loop import Loop
from poptorch.program.opinfo import SourceLocation
from poptorch.program.program import Program, Role


def check_loss_scaling(training: bool, automatic: bool) -> None:
    """Refuse automatic loss scaling where there is no gradient, before anything is captured."""
    if automatic and not training:
        raise createPoptorchError(
            "Automatic loss scaling is only supported for training: an inference model has no gradient to watch. Give "
            " poptorch.inferenceModel options without setAutomaticLossScaling(True)."
        )


def micro_batch_inputs(
    layout: ArgumentLayout,
    tensors: Sequence[torch.Tensor],
    loop: Loop,
    normalise: InputNormaliser,
    takes_empty: bool = False,
) -> list[torch.Tensor]:
    """The first micro-batch of every input, after checking types and sizes.

    ``takes_empty`` says whether an input may have no elements.
    """
    result = []
    for spec, tensor in zip(layout.specs, tensors, strict=True):
        check_input(tensor, spec.path, takes_empty)
        factor = loop.input_factor
        if factor > 1 and (tensor.ndim == 0 or tensor.shape[0] % factor):
            size = tensor.shape[0] if tensor.ndim else "no"
            raise AssertionError(
                f"Invalid batch dimension: In the input {spec.path} of shape {tuple(tensor.shape)}, the batch "
                f"dimension ({size}) must be a multiple of {loop.explain()} = {factor} because it is used to "
                "calculate the batch size which will be executed on the device in any given iteration. For a full "
                "explanation see docs/batching.md. [PT1003]"
            )
        tensor = normalise.with_strides(tensor, spec.path)
        result.append(tensor.narrow(0, 0, tensor.shape[0] // factor) if factor > 1 else tensor)
    return result


def check_buffers(
    program: Program, by_user: Mapping[str, SourceLocation | None], settings: Settings, loop: Loop
) -> None:
    """Refuse buffers that ``forward`` itself writes and that all replicas are to share.

    ``by_user`` are those, with the line. Running statistics of normalisations are no such buffers: each replica has its
    own.
    """
    if loop.replicas == 1 or not settings.broadcasts_buffers:
        return
    written = [p.name for p in program.mutated() if p.role in (Role.BUFFER, Role.PARAMETER) and p.name in by_user]
    if written:
        lines = (name if by_user[name] is None else f"{name} (at {by_user[name]})" for name in written)
        raise createPoptorchError(
            "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming out of "
            "sync between replicas, you can disable buffer broadcasting using "
            f"poptorch.Options.broadcastBuffers(False). The model writes {', '.join(lines)}."
        )


def division_of(settings: Settings, program: Program, loop: Loop, *, only_placed: bool = False) -> ProgramDivision:
    """Check the placement of the program, and say how IPUs share it."""
    strategy, placements, training = settings.strategy, program.placements(), settings.training
    machine = settings.machine
    counting.check_phase_ipus(strategy, placements)
    stages = counting.forward_stages(counting.starts_with_operations(program.block_starts, placements))
    ipus = counting.ipus_per_replica(p.ipu for p in placements)
    counting.check_ipu_count(
        ipus // machine.blocks or ipus,
        loop.replicas,
        auto_round=machine.rounds_up,
        hardware=machine.hardware,
        details=counting.list_stages(stages),
    )
    if settings.pipelining is not False:
        if not only_placed:
            counting.check_pipeline_depth(
                strategy,
                stages,
                training=training,
                gradient_accumulation=loop.gradient_accumulation,
                device_iterations=loop.device_iterations,
            )
        edges = (
            (info.placement, other.placement)
            for info, other in program.forward_edges()
            if info.placement is not other.placement
        )
        counting.check_stage_order(strategy, edges)
    forced = {} if settings.pipelining is None else {"enablePipelining": settings.pipelining}
    pipelining = resolve_derived(forced, "enablePipelining", counting.uses_pipelining(strategy, ipus))
    backend.debug("enablePipelining set to value %d", pipelining)
    serial = settings.ordering is Ordering.PIPELINED and not pipelining
    default = Recomputation.PIPELINE if pipelining and training else Recomputation.OFF
    return ProgramDivision(
        Ordering.SHARDED if serial else settings.ordering,
        default if settings.recomputation is None else settings.recomputation,
        ipus,
    )
