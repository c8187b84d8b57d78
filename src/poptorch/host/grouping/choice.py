"""How many micro-batches the host computes at once.

The answer follows from the program and its loops alone, never from the machine: it decides in which order numbers are
added, and the same program gives the same bits everywhere.
"""

from __future__ import annotations

import math

import torch

from poptorch import environment
from poptorch._logging import logger
from poptorch.compiler.device_program import DeviceProgram
from poptorch.executable.groups import MANY_REPLICAS
from poptorch.host.cost import NEGLIGIBLE_CALLS_SECONDS, estimated_work
from poptorch.host.grouping.stacking import CannotGroup, stacked
from poptorch.ops.traits import flops_of, traits_of
from poptorch.placement import counting
from poptorch.program.footprint import working_bytes
from poptorch.program.graphs import descendants
from poptorch.program.program import Program, Role, value_of
from poptorch.program.update import UpdateProgram

_ENOUGH_ROWS = 256
"""From here on matrix products do not get faster. Measured on one core, 256 to 1024 columns, in GFLOP/s with 16, 32,
64, 128, 256 and 512 rows: 33, 46, 56, 64, 67, 67."""

_MOST = 64
_LEAST_BYTES = 4 << 20
"""Activations may take as much memory as the weights do, or this much."""


def group(device: DeviceProgram) -> Program:
    """The program for several micro-batches at once, or for one where that is impossible or brings nothing."""
    program, loop, settings = device.undivided, device.loop, device.settings
    if settings.anchors or device.watch.elements or settings.groups or settings.ordering.is_phased:
        return program
    if device.update is not None and not _only_sums(device.update):
        return program
    if loop.replicas >= MANY_REPLICAS:
        return program
    # There must be at least so many groups for all IPUs of a pipeline to be at work.
    lanes = device.ipus_per_replica if counting.uses_pipelining(settings.strategy, device.ipus_per_replica) else 1
    available = loop.gradient_accumulation if program.training else loop.device_iterations
    size = _size(available, available // max(1, lanes), _wanted(program) if available > 1 else 1)
    if size == 1:
        return program
    try:
        result = stacked(program, size)
    except CannotGroup as reason:
        logger.debug("Micro-batches run one by one: %s", str(reason).partition("\n")[0])
        return program
    logger.debug("%d micro-batches run as one", size)
    return result


def _only_sums(update: UpdateProgram) -> bool:
    """Whether the update wants nothing but the sum of the gradients, in their own type or in float32."""
    return not update.running_mean and all(dtype is torch.float32 for dtype in update.accumulators.values())


def _wanted(program: Program) -> float:
    """How many micro-batches make products of enough rows, and enough work for the calls not to count."""
    chosen = environment.GROUP.read()
    if chosen:
        return chosen
    rows, work = _mean_rows(program), estimated_work(program)
    wanted = max(_ENOUGH_ROWS / rows, NEGLIGIBLE_CALLS_SECONDS / max(work, 1e-9))
    weights = sum(math.prod(p.shape) * p.dtype.itemsize for p in program.ports_of(Role.PARAMETER))
    room = max(weights, _LEAST_BYTES) / max(1, working_bytes(program))
    return min(wanted, room, _MOST)


def _size(available: int, most: int, wanted: float) -> int:
    """The smallest divisor of ``available`` that is enough; or the largest below, if that would be too many.

    >>> [_size(8, 8, 3.0), _size(8, 2, 3.0), _size(6, 6, 4.5), _size(7, 3, 4.0)]
    [4, 2, 6, 1]
    """
    divisors = [n for n in range(1, most + 1) if available % n == 0] or [1]
    return next((n for n in divisors if n >= wanted), divisors[-1])


def _mean_rows(program: Program) -> float:
    """The rows that weights are multiplied with, on average over all floating-point operations."""
    dependent = descendants(node for node, port in program.placeholders() if port.role is Role.INPUT)
    total = weighted = 0.0
    for node in program.operations():
        traits = traits_of(node)
        if traits.weight is None or traits.is_backward or node.args[traits.weight] in dependent:
            continue
        value, flops = value_of(node), flops_of(node)
        channels = value.shape[1] if value.ndim > 1 else 1
        total += flops
        weighted += flops * value.numel() / channels
    return weighted / total if total else math.inf
