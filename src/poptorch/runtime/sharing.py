"""What processes that share replicas tell each other at the end of a call and after an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from poptorch.compiler.portion import Blocks
from poptorch.executable.executable import Executable
from poptorch.program.anchors import SPECIFIC, Anchor, Held
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Role, value_of
from poptorch.runtime.device_memory import DeviceMemory
from poptorch.runtime.links import ReplicaLink
from poptorch.runtime.streams import OutputStream


class Sharing:
    """Outputs and weights of stages that run in different processes."""

    def __init__(self, executable: Executable, blocks: Blocks, link: ReplicaLink) -> None:
        program, self._link, self._blocks = executable.program, link, blocks
        stages = [(stage.description, blocks.of(stage.description)) for stage in executable.code.stages]
        self._results = {index: block for stage, block in stages for index in stage.results}
        self._anchors = {index: block for stage, block in stages for index in stage.anchors}
        values = [value_of(node) for node in program.values_of(OutputKind.RESULT)]
        self._types = [(tuple(value.shape), value.dtype) for value in values]
        update = executable.device.update
        self._state = {} if update is None else {state.name: state.parameter for state in update.state}
        groups = executable.device.settings.groups
        self._ports = {
            p.name: ((groups[p.name].count, *p.shape) if p.name in groups else p.shape, p.dtype)
            for p in program.ports
            if p.role in (Role.PARAMETER, Role.BUFFER) and p.name in blocks.homes
        }

    # -- outputs -------------------------------------------------------------------------------------------------

    def results(self, streams: Sequence[OutputStream]) -> list[torch.Tensor]:
        """What the call returns, in all processes."""
        found, roots = [], []
        for index, stream in enumerate(streams):
            root = self._results[index]
            own = root == self._blocks.own
            found.append(stream.take().contiguous() if own else stream.room(*self._types[index]))
            roots.append(root)
        self._link.broadcast(found, roots)
        return found

    def anchors(self, streams: Mapping[Anchor, OutputStream]) -> dict[str, torch.Tensor]:
        """The anchored values, in all processes."""
        if not streams:
            return {}
        roots = self._anchor_blocks(list(streams))
        own = {
            anchor.short_name: stream.take().contiguous()
            for anchor, stream in streams.items()
            if roots[anchor] == self._blocks.own
        }
        # The shapes of anchored state are known where it is.
        said = self._link.gather_values({n: [list(t.shape), str(t.dtype)] for n, t in own.items()})
        found = {}
        for anchor in streams:
            name = anchor.short_name
            shape, dtype = said[roots[anchor]][name]
            kind = getattr(torch, dtype.removeprefix("torch."))
            found[name] = own[name] if name in own else torch.empty(shape, dtype=kind)
        self._link.broadcast(list(found.values()), [roots[anchor] for anchor in streams])
        return found

    def holds(self, anchor: Anchor) -> bool:
        """Whether this process tells the others the value of an anchored weight or state."""
        return self._held_block(anchor) == self._blocks.own

    def _anchor_blocks(self, anchors: Sequence[Anchor]) -> dict[Anchor, int]:
        computed = [anchor for anchor in anchors if anchor.held is None]
        found = {anchor: self._anchors[index] for index, anchor in enumerate(computed)}
        return found | {anchor: self._held_block(anchor) for anchor in anchors if anchor.held is not None}

    def _held_block(self, anchor: Anchor) -> int:
        if anchor.held is Held.STATE:
            parameter = self._state[anchor.name]
        elif anchor.held is Held.SCALAR:
            parameter = anchor.name.partition(SPECIFIC)[2]
        else:
            parameter = anchor.name
        return self._blocks.homes.get(parameter, 0)

    # -- weights -------------------------------------------------------------------------------------------------

    def share_weights(self, memory: DeviceMemory) -> None:
        """After an update: weights that stages of several processes use are everywhere as where they were updated."""
        names = self._blocks.shared
        if not names:
            return
        rooms = [
            memory.parameters[name] if name in memory.parameters else torch.empty(shape, dtype=dtype)
            for name, (shape, dtype) in ((name, self._ports[name]) for name in names)
        ]
        self._link.broadcast(rooms, [self._blocks.homes[name] for name in names])
        memory.changed()

    def fetch(self, memory: DeviceMemory) -> dict[str, torch.Tensor]:
        """Weights and buffers for the host: of all processes where there is room for them, else those of this one."""
        own = memory.read()
        if not self._link.gathers:
            return own
        names = sorted(self._ports)
        whole = {n: own[n] if self._blocks.homes[n] == self._blocks.own else _empty(*self._ports[n]) for n in names}
        self._link.gather_weights(list(whole.values()), [self._blocks.homes[n] for n in names])
        return {**own, **whole}


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype)
