"""Which changes are worth trying on a model: for its memory, and for its speed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from poptorch.compiler.memory import Category
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.enums import OverlapMode
from poptorch.ipu_model.settings import CostSettings
from poptorch.ipu_model.trials import Change
from poptorch.options import Options, TensorLocationSettings
from poptorch.program.program import Program, Role

if TYPE_CHECKING:
    from poptorch.ipu_model.result import Estimate

_SHARES = (0.1, 0.2, 0.3, 0.6, 0.9)
_LOCATION = "options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings()"


def memory_changes(estimate: Estimate, ipu: int) -> Iterator[Change]:
    """What could make an IPU fit."""
    if estimate.device.settings.training:
        yield from recomputation(estimate)
        yield from optimizer_places(estimate, ipu)
    yield from smaller_batches(estimate)
    yield from moved_blocks(estimate, ipu)
    yield from proportions(estimate, larger=False)


def recomputation(estimate: Estimate) -> Iterator[Change]:
    """Other modes than that in use, from those that recompute least."""
    pipelined = estimate.flow.pipelined
    names = {
        Recomputation.STANDARD: "recompute activations between some that are kept",
        Recomputation.PIPELINE: "recompute stages from their inputs",
        Recomputation.EVERYTHING: "recompute everything from the inputs of its part",
    }
    for mode, name in names.items():
        if mode is not estimate.device.recomputation and (pipelined or mode is not Recomputation.PIPELINE):

            def recompute(options: Options, mode: Recomputation = mode) -> None:
                options._Popart.set("autoRecomputation", int(mode))

            yield Change(name, f'options._Popart.set("autoRecomputation", {int(mode)})', recompute)


def optimizer_places(estimate: Estimate, ipu: int) -> Iterator[Change]:
    """Other places for the state of the optimizer, if it is on the chip."""
    if not estimate.ipu(ipu).memory.get("optimizer state", 0):
        return
    replicas = estimate.device.loop.replicas
    sharded = estimate.device.memory.is_sharded(Category.OPTIMIZER)

    def location(on_chip: bool, shared: bool) -> Change:
        where = TensorLocationSettings().useOnChipStorage(on_chip).useReplicatedTensorSharding(shared)
        code = _LOCATION
        titles = []
        if shared and not sharded:
            titles.append(f"shard the optimizer's state over {replicas} replicas")
        if shared:
            code += ".useReplicatedTensorSharding(True)"
        if not on_chip:
            titles.append("keep the optimizer's state in streaming memory")
            code += ".useOnChipStorage(False)"
        return Change(
            " and ".join(titles), f"{code})", lambda options: options.TensorLocations.setOptimizerLocation(where)
        )

    if replicas > 1 and not sharded:
        yield location(True, True)
    yield location(False, sharded)


def rows_of(estimate: Estimate) -> int:
    """Of the inputs of a micro-batch."""
    inputs = estimate.device.program.ports_of(Role.INPUT)
    return next((port.shape[0] for port in inputs if port.shape), 1)


def smaller_batches(estimate: Estimate) -> Iterator[Change]:
    """Half as many rows at a time."""
    rows = rows_of(estimate)
    if rows % 2 == 0:
        yield _batches(estimate, rows // 2)


def larger_batches(estimate: Estimate) -> Iterator[Change]:
    """Twice as many rows at a time."""
    if repeats_of(estimate) % 2 == 0:
        yield _batches(estimate, rows_of(estimate) * 2)


def repeats_of(estimate: Estimate) -> int:
    """Accumulated micro-batches in training, device iterations in inference."""
    loop = estimate.device.loop
    return loop.gradient_accumulation if estimate.device.settings.training else loop.device_iterations


def _batches(estimate: Estimate, rows: int) -> Change:
    before = rows_of(estimate)
    repeats = repeats_of(estimate) * before // rows
    title, code = f"micro-batches of {rows} instead of {before}", _repeats_code(estimate, repeats)
    return Change(title, code, lambda options: _repeat(estimate, options, repeats))


def _repeats_code(estimate: Estimate, repeats: int) -> str:
    training = estimate.device.settings.training
    return f"options.{'Training.gradientAccumulation' if training else 'deviceIterations'}({repeats})"


def _repeat(estimate: Estimate, options: Options, repeats: int) -> None:
    if estimate.device.settings.training:
        options.Training.gradientAccumulation(repeats)
    else:
        options.deviceIterations(repeats)


def longer_rounds(estimate: Estimate, times: int = 4) -> Iterator[Change]:
    """More micro-batches between two updates, or in one call: a pipeline fills and drains less often."""
    repeats = repeats_of(estimate) * times
    yield Change(
        f"{times} times as many micro-batches in a row",
        _repeats_code(estimate, repeats),
        lambda options: _repeat(estimate, options, repeats),
        longer=times,
    )


def proportions(estimate: Estimate, *, larger: bool) -> Iterator[Change]:
    """Less memory for the temporary needs of products, or more."""
    settings = estimate.device.settings
    costs = CostSettings.of(settings.backend, settings.memory_proportions)
    now = [costs.proportion_on(ipu.ipu, costs.product_proportion) for ipu in estimate.ipus]
    least, most = min(now), max(now)
    shares = [s for s in _SHARES if s > most] if larger else [s for s in reversed(_SHARES) if s < least]
    for share in shares[:2]:
        by_ipu = {f"IPU{ipu.ipu}": share for ipu in estimate.ipus}

        def set_shares(options: Options, by_ipu: Mapping[str, float] = by_ipu) -> None:
            options.setAvailableMemoryProportion(dict(by_ipu))

        yield Change(
            f"{'more' if larger else 'less'} memory for products: {share:g} of a tile instead of {most:g}",
            f"options.setAvailableMemoryProportion({by_ipu})",
            set_shares,
        )


def half_partials(estimate: Estimate) -> Iterator[Change]:
    """Sums of products in float16."""
    import torch

    settings = estimate.device.settings
    costs = CostSettings.of(settings.backend, settings.memory_proportions)
    if costs.product_partials is torch.float32 and any(
        port.dtype is torch.float16 for port in estimate.device.program.ports_of(Role.PARAMETER)
    ):
        yield Change(
            "partial sums in float16",
            "options.Precision.setPartialsType(torch.half)",
            lambda options: options.Precision.setPartialsType(torch.float16),
        )


def half_model(estimate: Estimate) -> Iterator[Change]:
    """The model and its inputs in float16."""
    import torch

    ports = estimate.device.program.ports
    if any(port.dtype is torch.float32 for port in ports if port.role in (Role.PARAMETER, Role.INPUT)):
        yield Change("weights and inputs in float16", "model.half()", half=True)


_IO_TILES = 64


def overlapped_copies(estimate: Estimate) -> Iterator[Change]:
    """Copy inputs while the last ones are computed on, through tiles of their own."""
    if estimate.device.settings.io_tiles or estimate.flow.pipelined:
        return
    training = estimate.device.settings.training
    mode = OverlapMode.OverlapAccumulationLoop if training else OverlapMode.OverlapDeviceIterationLoop

    def overlap(program: Program) -> None:
        program.ports = [
            dataclasses.replace(port, overlap=mode) if port.role is Role.INPUT else port for port in program.ports
        ]

    yield Change(
        f"copy inputs meanwhile, through {_IO_TILES} tiles",
        f"options.TensorLocations.numIOTiles({_IO_TILES}); in forward(): "
        f"x = poptorch.set_overlap_for_input(x, poptorch.OverlapMode.{mode.name})",
        lambda options: options.TensorLocations.numIOTiles(_IO_TILES),
        overlap,
    )


def state_on_chip(estimate: Estimate) -> Iterator[Change]:
    """The state of the optimizer on the chip, if it is not."""
    if any(home.category is Category.OPTIMIZER for home in estimate.device.memory.streaming()):
        shared = estimate.device.memory.is_sharded(Category.OPTIMIZER)
        where = TensorLocationSettings().useReplicatedTensorSharding(shared)
        yield Change(
            "keep the optimizer's state on the chip",
            f"{_LOCATION}.useReplicatedTensorSharding({shared}))",
            lambda options: options.TensorLocations.setOptimizerLocation(where),
        )


# -- moving blocks -----------------------------------------------------------------------------------------------------


def moved_blocks(estimate: Estimate, ipu: int, most: int = 3) -> Iterator[Change]:
    """Give the blocks at either end of an IPU to its neighbour: one block, two, and so on."""
    used = {part.ipu for part in estimate.device.plan.parts}
    blocks = blocks_of(estimate, ipu)
    for count in range(1, min(most, len(blocks) - 1) + 1):
        if ipu + 1 in used:
            moved = blocks[-count:]
            title = f"move the split to {moved[0]}, with {listed(moved)} on IPU {ipu + 1}"
            yield Change(title, _begins(moved[0], ipu + 1), blocks=((moved[0], ipu + 1),))
        if ipu - 1 in used:
            moved, following = blocks[:count], blocks[count]
            title = f"move the split to {following}, with {listed(moved)} on IPU {ipu - 1}"
            yield Change(title, _begins(following, ipu), blocks=((moved[0], ipu - 1), (following, ipu)))


def _begins(block: str, ipu: int) -> str:
    return f'poptorch.BeginBlock(model.get_submodule("{block}"), ipu_id={ipu})'


def blocks_of(estimate: Estimate, ipu: int) -> list[str]:
    """The blocks whose forward pass an IPU runs, in that order, by the names of their modules."""
    found: dict[str, None] = {}
    for stage in estimate.stages:
        if stage.ipu == ipu and not stage.time.backward:
            found |= {block_of(record.scope): None for record in stage.operations if record.scope}
    return [block for block in found if block]


def block_of(scope: str) -> str:
    """The outermost numbered module of a scope or a parameter name, or the outermost module.

    >>> block_of("encoder/layers.3/attention"), block_of("encoder.layers.3.weight"), block_of("head.weight")
    ('encoder.layers.3', 'encoder.layers.3', 'head')
    """
    path = scope.replace("/", ".")
    numbered = re.match(r"(?:.*?\.)?\d+(?=\.|$)", path)
    return numbered[0] if numbered else path.partition(".")[0]


def listed(names: list[str]) -> str:
    """Names for people; neighbours in one list of modules as a range.

    >>> listed(["layers.3", "layers.4", "layers.5"]), listed(["a", "b"])
    ('layers.3 to layers.5', 'a, b')
    """
    return f"{names[0]} to {names[-1]}" if len(names) > 2 else ", ".join(names)


__all__ = [
    "block_of",
    "blocks_of",
    "half_model",
    "half_partials",
    "larger_batches",
    "listed",
    "longer_rounds",
    "memory_changes",
    "moved_blocks",
    "overlapped_copies",
    "proportions",
    "recomputation",
    "repeats_of",
    "smaller_batches",
    "state_on_chip",
]
