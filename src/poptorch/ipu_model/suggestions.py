"""What would make a model fit: worked out from what is in memory at the fullest moment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from poptorch.compiler.memory import Category
from poptorch.figures import byte_size
from poptorch.ipu_model.flow import Flow
from poptorch.ipu_model.memory import IpuMemory
from poptorch.program.opinfo import Sweep, info_of
from poptorch.program.program import Role


@dataclass(frozen=True)
class Suggestion:
    """A change, and the bytes that it frees on an IPU."""

    text: str
    ipu: int
    saved: float
    needed: float

    def __str__(self) -> str:
        enough = "it fits then" if self.saved >= self.needed else f"{byte_size(self.needed - self.saved)} to go"
        return f"IPU {self.ipu}: {self.text}: −{byte_size(self.saved)}, {enough}"


def suggestions_for(flow: Flow, ipus: Sequence[IpuMemory]) -> list[str]:
    """One line for each way, those that save most first."""
    found = [s for ipu in ipus if not ipu.fits for s in _Ways(flow, ipus, ipu).found() if s.saved > 0]
    return [str(s) for s in sorted(found, key=lambda s: -s.saved)]


class _Ways:
    """The ways to make one IPU fit."""

    def __init__(self, flow: Flow, ipus: Sequence[IpuMemory], ipu: IpuMemory) -> None:
        self._flow = flow
        self._device = flow.device
        self._ipus = {other.ipu: other for other in ipus}
        self._ipu = ipu
        self._tiles = len(ipu.on_tiles)
        self._needed = max(0.0, float(ipu.peak_tile_bytes - ipu.limit)) * self._tiles

    def found(self) -> Iterator[Suggestion]:
        """All that apply."""
        if self._device.settings.training:
            yield from self._recompute()
            yield from self._optimizer()
        yield from self._micro_batch()
        yield from self._move()
        yield from self._proportion()

    def _suggestion(self, text: str, saved: float) -> Suggestion:
        return Suggestion(text, self._ipu.ipu, saved, self._needed)

    def _recompute(self) -> Iterator[Suggestion]:
        """Compute the activations of whole blocks again instead of keeping them; what a block starts with stays."""
        kept = self._kept_by_block()
        savings = {block: sum(sizes) - sizes[-1] for block, sizes in kept.items() if block}
        chosen, saved = [], 0.0
        for block, saving in sorted(savings.items(), key=lambda item: -item[1]):
            if saving > 0 and saved < self._needed:
                chosen.append(block)
                saved += saving
        if chosen:
            order = [block for block in kept if block in chosen]
            yield self._suggestion(f"recompute {_listed(order)} (poptorch.recomputationCheckpoint)", saved)

    def _kept_by_block(self) -> dict[str, list[float]]:
        """Bytes of each activation that waits for a backward pass, by the block that makes it."""
        nodes: dict[str, fx.Node] = {
            node.name: node for stage in self._flow.stages_on(self._ipu.ipu) for node in stage.program.operations()
        }
        kept: dict[str, list[float]] = {}
        if self._flow.pipelined:
            for stash in self._flow.stashes:
                if stash.ipu == self._ipu.ipu and stash.on_chip and stash.value.name in nodes:
                    kept.setdefault(_block(info_of(nodes[stash.value.name]).scope), []).append(stash.bytes)
        for value in self._ipu.liveness.live_at_peak():
            node = nodes.get(value.name)
            if node is None or info_of(node).sweep is not Sweep.FORWARD or info_of(node).recomputed:
                continue
            if any(info_of(user).sweep is Sweep.BACKWARD for user in node.users):
                kept.setdefault(_block(value.scope), []).append(value.bytes)
        return kept

    def _optimizer(self) -> Iterator[Suggestion]:
        on_chip = float(self._ipu.memory.get("optimizer state", 0))
        if not on_chip:
            return
        location = "options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings()"
        yield self._suggestion(
            f"keep the optimizer's state in streaming memory ({location}.useOnChipStorage(False)))", on_chip
        )
        replicas = self._device.loop.replicas
        if replicas > 1 and not self._device.memory.is_sharded(Category.OPTIMIZER):
            yield self._suggestion(
                f"shard the optimizer's state over {replicas} replicas ({location}.useReplicatedTensorSharding(True)))",
                on_chip * (replicas - 1) / replicas,
            )

    def _micro_batch(self) -> Iterator[Suggestion]:
        """Half of everything that grows with the rows of a micro-batch, as far as it is not temporary."""
        inputs = self._device.program.ports_of(Role.INPUT)
        rows = next((port.shape[0] for port in inputs if port.shape), 1)
        if rows < 2:
            return
        live = sum(value.bytes for value in self._ipu.liveness.live_at_peak())
        saved = (live + self._ipu.memory.get("stashes", 0)) / 2
        more = "gradientAccumulation" if self._device.settings.training else "deviceIterations"
        yield self._suggestion(f"micro-batches of {rows // 2} instead of {rows}, and twice the {more}", saved)

    def _move(self) -> Iterator[Suggestion]:
        """Give blocks at either end to the neighbour, if it has room for them."""
        blocks = self._blocks()
        for neighbour, order in ((self._ipu.ipu + 1, blocks[::-1]), (self._ipu.ipu - 1, blocks)):
            other = self._ipus.get(neighbour)
            if other is None or not other.fits:
                continue
            moved: list[str] = []
            size = 0.0
            for block, held in order[:-1]:
                moved.append(block)
                size += held
                if size >= self._needed:
                    break
            room = float(other.limit - other.peak_tile_bytes) * self._tiles
            if size >= self._needed > 0 and size <= room:
                text = (
                    f"move the split to {moved[-1]}"
                    if neighbour > self._ipu.ipu
                    else f"let {_listed(moved)} be on IPU {neighbour}"
                )
                yield self._suggestion(f"{text} (both IPUs fit then)", size)

    def _blocks(self) -> list[tuple[str, float]]:
        """The blocks of this IPU in order, with the bytes of all tensors that always belong to them."""
        sizes: dict[str, float] = {}
        for tensor in self._ipu.tensors:
            block = _block(tensor.name.rpartition("___")[2])
            sizes[block] = sizes.get(block, 0.0) + tensor.bytes
        order: dict[str, None] = {}
        for stage in self._flow.stages_on(self._ipu.ipu):
            order |= {_block(port.name): None for port in stage.program.ports if port.role is Role.PARAMETER}
        return [(block, sizes[block]) for block in order if block in sizes]

    def _proportion(self) -> Iterator[Suggestion]:
        """The operation at the peak may be the one that needs too much itself."""
        liveness = self._ipu.liveness
        if liveness.temporary * self._tiles * 2 < self._needed or not liveness.moments:
            return
        moment = liveness.moments[liveness.peak]
        where = f"{moment.name} in {moment.scope}" if moment.scope else moment.name
        yield self._suggestion(
            f"a smaller available-memory proportion ({where} takes {liveness.temporary / 1024:.0f} KiB of a tile for "
            "itself; options.setAvailableMemoryProportion), counted as half of that",
            liveness.temporary * self._tiles / 2,
        )


def _block(scope: str) -> str:
    """The outermost numbered module of a scope or a parameter name, or the outermost module.

    >>> _block("encoder/layers.3/attention"), _block("encoder.layers.3.weight"), _block("head.weight"), _block("")
    ('encoder.layers.3', 'encoder.layers.3', 'head', '')
    """
    path = scope.replace("/", ".")
    numbered = re.match(r"(?:.*?\.)?\d+(?=\.|$)", path)
    return numbered[0] if numbered else path.partition(".")[0]


def _listed(names: Sequence[str]) -> str:
    """Names for people; neighbours in one list of modules as a range.

    >>> _listed(["layers.3", "layers.4", "layers.5"]), _listed(["a", "b"])
    ('layers.3 to layers.5', 'a, b')
    """
    return f"{names[0]} to {names[-1]}" if len(names) > 2 else ", ".join(names)


__all__ = ["Suggestion", "suggestions_for"]
