"""What a program needs beside its tensors: code of all kinds, and the state of vertices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from poptorch.ipu_model.book import OpRecord
from poptorch.ipu_model.calibration import EXCHANGE_CODE, VERTEX_CODE, VERTEX_STATE
from poptorch.ipu_model.steps import CostStep, Exchange
from poptorch.ipu_model.tiles import TileBytes

CODE_BYTES = {
    "conv1x1": 1600,
    "convnx1": 3150,
    "conv": 3150,
    "slic": 1400,
    "hmac": 800,
    "vmac": 1400,
    "outer": 600,
    "reducepartials": 1150,
    "reduce": 1900,
    "scaledadd": 1800,
    "multislice": 500,
    "multiupdate": 980,
    "dynamicslice": 830,
    "pool": 870,
    "gelu": 620,
    "nonlinearity": 500,
    "softmax": 900,
    "broadcast": 860,
    "unary": 500,
    "binary": 750,
    "cast": 400,
    "fill": 530,
    "dropout": 220,
    "random": 460,
    "transpose": 600,
    "copy": 400,
    "norm": 600,
    "sort": 900,
}
"""Bytes of the code of one family, by the beginning of its name; it is on a tile once."""

OTHER_CODE = 600
"""Bytes of the code of any other family."""

STACK = 3168
"""Bytes of the stacks of six workers and the supervisor."""

CONTROL_BASE = 700
"""Bytes of control code of an almost empty program."""

CONTROL_PER_STEP = 17
"""Bytes of control code for one step of an operation."""

CONTROL_PER_CALL = 8
"""Bytes of control code to run an operation again whose code is there already."""

HOST_EXCHANGE = 289
"""Bytes of code for the exchange with host and other IPUs."""

EXCHANGE_BASE = 6
"""Instructions of an exchange, whatever it moves."""

SEND_BYTES = 256
"""What one instruction sends."""


def code_size(codelet: str) -> int:
    """Bytes of the code of a family of vertices.

    >>> code_size("conv1x1"), code_size("binary_add"), code_size("something")
    (992, 465, 372)
    """
    name = codelet.lower().replace("_", "").replace("-", "")
    found = [key for key in CODE_BYTES if name.startswith(key)]
    size = CODE_BYTES[max(found, key=len)] if found else OTHER_CODE
    return round(VERTEX_CODE.value * size)


def exchange_code(exchange: Exchange) -> float:
    """Bytes of instructions of one exchange on the busiest tile.

    >>> round(exchange_code(Exchange(tile_bytes=1024.0, fragments=10)), 1)
    28.0
    """
    instructions = EXCHANGE_BASE + 3 * exchange.fragments + math.ceil(exchange.tile_bytes / SEND_BYTES)
    return EXCHANGE_CODE.value * 4.0 * instructions


@dataclass
class CodeBytes:
    """Bytes on every tile of one IPU by category."""

    tiles: int
    outlined: bool = True
    """Whether equal operations share everything but their call."""

    by_category: dict[str, TileBytes] = field(default_factory=dict)
    _codelets: dict[str, int] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._add("stack", self.tiles, STACK)
        self._add("control code", self.tiles, CONTROL_BASE)
        self._add("host exchange code", self.tiles, HOST_EXCHANGE)

    def add(self, records: Iterable[OpRecord]) -> None:
        """Count these operations."""
        for record in records:
            if not record.cost.steps:
                continue
            if self.outlined and record.kind in self._known:
                self._add("control code", self.tiles, CONTROL_PER_CALL)
                continue
            self._known.add(record.kind)
            self._add("control code", self.tiles, CONTROL_PER_STEP * len(record.cost.steps))
            for step in record.cost.steps:
                self._step(step)

    def _step(self, step: CostStep) -> None:
        if step.exchange is not None:
            # Tiles that do not compute still send.
            senders = math.ceil(step.exchange.total_bytes / max(step.exchange.tile_bytes, 1.0))
            tiles = max(step.tiles, min(self.tiles, senders))
            self._add("exchange code", tiles, exchange_code(step.exchange))
        for vertices in step.vertices:
            tiles = min(self.tiles, max(1, min(step.tiles, vertices.total)))
            share = VERTEX_STATE.value * max(vertices.total * vertices.state_bytes / tiles, 1.0 * vertices.state_bytes)
            self._add("vertex state", tiles, share)
            have = self._codelets.get(vertices.codelet, 0)
            if tiles > have:
                self._add("vertex code", tiles, code_size(vertices.codelet), first=have)
                self._codelets[vertices.codelet] = tiles

    def _add(self, category: str, tiles: int, share: float, first: int = 0) -> None:
        if category not in self.by_category:
            self.by_category[category] = np.zeros(self.tiles)
        self.by_category[category][first:tiles] += share

    def on_tiles(self) -> TileBytes:
        """All of it, on every tile."""
        return np.sum(list(self.by_category.values()), axis=0)


__all__ = ["CODE_BYTES", "CodeBytes", "code_size", "exchange_code"]
