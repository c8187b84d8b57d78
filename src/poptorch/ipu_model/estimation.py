"""From a model, or its device program, to an estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import fx, nn

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.memory import Category
from poptorch.compiler.request import CompileRequest, request_for
from poptorch.errors import createPoptorchError
from poptorch.ipu_model.architecture import Architecture, architecture
from poptorch.ipu_model.book import CostBook, OpRecord, call_of
from poptorch.ipu_model.costing import cost_of
from poptorch.ipu_model.flow import Flow
from poptorch.ipu_model.memory import FRAGMENTATION, memory_of
from poptorch.ipu_model.result import Estimate
from poptorch.ipu_model.settings import CostSettings
from poptorch.ipu_model.timeline import timeline_of
from poptorch.ipu_model.trials import Bench
from poptorch.ipu_model.updating import update_costs
from poptorch.options import Options
from poptorch.program.program import Role


@runtime_checkable
class Wrapped(Protocol):
    """A wrapped model: it knows its options, its optimizer, and perhaps its program."""

    def deviceProgram(self, *args: Any, **kwargs: Any) -> DeviceProgram:
        """What IPUs run for these arguments; without arguments, what was compiled."""

    def compileRequest(self, *args: Any, **kwargs: Any) -> CompileRequest:
        """What a compilation for these arguments starts from."""


def estimate(
    model: nn.Module | Wrapped,
    options: Options | None = None,
    *example_inputs: Any,
    optimizer: torch.optim.Optimizer | None = None,
    arch: str | None = None,
    keywords: Mapping[str, Any] | None = None,
    **knobs: float,
) -> Estimate:
    """Predict cycles, memory and latency of one call of a model on IPUs, without running anything.

    ``example_inputs`` are the arguments of one call as the wrapped model would get them, all micro-batches included;
    ``keywords`` are those that go by name. They and the parameters of the model may be on the meta device: only shapes
    and types matter. With an ``optimizer`` the estimate is about training. A wrapped model has options and an
    optimizer of its own; give ``None`` for the options then, and no inputs if it is compiled.

    ``arch`` is ``"mk1"``, ``"mk2"``, ``"bow"`` or ``"c600"``; by default that of this machine's virtual system, which
    is Mk2 unless ``POPTORCH_SYSTEM`` says otherwise. Other keywords change what is said about the chip, such as
    ``clock`` or ``link_bandwidth``.

    >>> import poptorch
    >>> model = torch.nn.Linear(512, 512, device="meta")
    >>> result = estimate(model, poptorch.Options(), torch.empty(64, 512, device="meta"))
    >>> result.fits, result.samples, result.cycles > 0
    (True, 64, True)
    """
    chip = architecture(arch, **knobs)
    if isinstance(model, Wrapped):
        if options is not None or optimizer is not None:
            raise createPoptorchError(
                "A wrapped model has options and an optimizer of its own: give None for the options, and no optimizer."
            )
        if not example_inputs and not keywords:
            return estimate_program(model.deviceProgram(), chip)
        return estimate_request(model.compileRequest(*example_inputs, **(keywords or {})), chip)
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected a torch.nn.Module or a wrapped model, got {type(model)}")
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise createPoptorchError(f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)")
    return estimate_request(request_for(model, options, example_inputs, keywords, optimizer), chip)


def estimate_request(request: CompileRequest, chip: Architecture) -> Estimate:
    """Predict what a model costs. The estimate can try changes of it, to see what they bring."""
    bench = Bench(request, chip)
    found = bench.estimate()
    bench.tried = 0
    return dataclasses.replace(found, bench=bench)


def estimate_program(device: DeviceProgram, chip: Architecture) -> Estimate:
    """Predict what a lowered program costs."""
    io_tiles = device.settings.io_tiles
    if io_tiles >= chip.tiles:
        raise createPoptorchError(f"{io_tiles} tiles for input and output leave none of {chip.tiles} to compute on.")
    computing = dataclasses.replace(chip, tiles=chip.tiles - io_tiles)
    settings = CostSettings.of(device.settings.backend, device.settings.memory_proportions)
    book = CostBook(computing, lambda node: cost_of(node, computing, settings))
    flow = Flow(device)
    costs: dict[fx.Node, OpRecord] = {}
    for stage in device.plan.stages:
        for node in stage.program.operations():
            costs[node] = book.record(node)
    accumulation = _accumulation(device, book)
    on_ipu: dict[int, list[OpRecord]] = {}
    for slot, records in accumulation.items():
        on_ipu.setdefault(flow.ipu_of(slot), []).extend(records)
    update = update_costs(device, book)
    return Estimate(
        chip=chip,
        device=device,
        flow=flow,
        timeline=timeline_of(flow, computing, costs, accumulation, update, io_tiles),
        ipus=tuple(memory_of(flow, computing, costs, on_ipu, update)),
        micro_batch=_micro_batch(device),
        assumptions=_assumptions(device, chip, io_tiles),
        uncovered_ops=dict(book.uncovered),
        operations=book.operations,
        kinds=book.kinds,
        update=update,
    )


def _accumulation(device: DeviceProgram, book: CostBook) -> dict[int, list[OpRecord]]:
    """Gradients are added to their accumulators, or averaged into them, once per micro-batch."""
    homes = {h.name: h for h in device.memory.of(Category.ACCUMULATOR)}
    found: dict[int, list[OpRecord]] = {}
    if device.update is None or device.loop.gradient_accumulation == 1:
        return found
    weights = {h.name: h for h in device.memory.of(Category.WEIGHT)}
    for stage in device.plan.stages:
        for name in stage.gradients:
            weight, home = weights[name], homes.get(f"Accum___{name}")
            dtype = weight.dtype if home is None else home.dtype
            shape = (-(-weight.elements // (1 if home is None else home.shards)),)
            node = call_of(torch.ops.aten.add_.Tensor, (shape, dtype), (shape, weight.dtype))
            found.setdefault(stage.slot, []).append(book.record(node))
    return found


def _micro_batch(device: DeviceProgram) -> int:
    """The rows of the first input that has some."""
    for port in device.program.ports_of(Role.INPUT):
        if port.shape:
            return port.shape[0]
    return 1


def _assumptions(device: DeviceProgram, chip: Architecture, io_tiles: int) -> tuple[str, ...]:
    found = [
        "the first dimension of the first input counts samples",
        "tensors without a plan are spread evenly over tiles; "
        f"{FRAGMENTATION:.0%} of the memory that is not always live is lost between tensors",
    ]
    if device.settings.backend.outlining:
        found.append("equal operations on an IPU share their code (enableOutlining)")
    if device.ipus_per_replica > 1:
        found.append(f"{chip.link_bandwidth / 1e9:g} GB/s from one IPU to the next")
    if (device.loop.all_replicas or device.loop.replicas) > 1:
        found.append(f"{chip.ring_bandwidth / 1e9:g} GB/s for each IPU in collectives over replicas")
    if device.memory.streaming():
        found.append(
            f"{chip.streaming_bandwidth / 1e9:g} GB/s of streaming memory for each {chip.hosted_ipus} IPUs (not public)"
        )
    found.append(
        f"{chip.host_bandwidth / 1e9:g} GB/s to the host, {chip.shared_host_bandwidth / 1e9:g} GB/s for "
        f"{chip.hosted_ipus} IPUs together; the host always has the next input ready"
    )
    if io_tiles:
        found.append(f"{io_tiles} tiles are set aside for input and output")
    return tuple(found)


__all__ = ["Wrapped", "estimate", "estimate_program", "estimate_request"]
