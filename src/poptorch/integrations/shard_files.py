"""Pieces of tensors in files of safetensors, written and read by torch's own distributed checkpoints.

Each process writes and reads by itself: what torch would agree about with the others is known here before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from poptorch.errors import createPoptorchError
from poptorch.executor.shards import Piece
from poptorch.integrations.requirements import require

require("safetensors", "safetensors")

FILE_BYTES = 1 << 28
"""About so much is in one file: it is copied once more in memory while it is written."""


def write(folder: Path, process: int, pieces: Sequence[Piece]) -> None:
    """Write pieces to files of this process."""
    if pieces:
        with _as_they_were():
            save({}, storage_writer=_Writer(folder, process, pieces), planner=_Saves(pieces), no_dist=True)


def read(folder: Path, pieces: Sequence[Piece]) -> None:
    """Fill pieces with what processes have written, however they had divided it."""
    if pieces:
        reader = HuggingFaceStorageReader(str(folder))
        with _as_they_were(), _Rows(pieces) as rows:
            load({}, storage_reader=reader, planner=_Loads(rows, pieces), no_dist=True)


@contextlib.contextmanager
def _as_they_were() -> Iterator[None]:
    """Torch wraps all exceptions in one that is none (Ctrl-C, full disks, and ours), and warns of a single process."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)", UserWarning)
            yield
    except CheckpointException as error:
        for cause, _ in error.failures.values():
            raise cause from None
        raise


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    offsets = (piece.start,) if piece.divided else (0,) * len(piece.shape)
    return ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(piece.sizes))


class _Writer(HuggingFaceStorageWriter):
    """Files with the number of a process in their names, none of them much larger than :data:`FILE_BYTES`."""

    def __init__(self, folder: Path, process: int, pieces: Sequence[Piece]) -> None:
        super().__init__(str(folder), save_distributed=True)
        self._process = process
        self._files = dict(_files(pieces))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Where this process writes what it has."""
        where = {"fqn_to_index_mapping": self._files, "shard_index": self._process + 1}
        return [dataclasses.replace(plan, storage_data=where) for plan in plans]


def _files(pieces: Sequence[Piece]) -> Iterator[tuple[str, int]]:
    number, size = 1, 0
    for piece in pieces:
        if size and size + piece.values.nbytes > FILE_BYTES:
            number, size = number + 1, 0
        size += piece.values.nbytes
        yield piece.name, number


class _Saves(SavePlanner):
    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = {piece.name: piece for piece in pieces}

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Nothing: the pieces are known."""

    def create_local_plan(self) -> SavePlan:
        """One item for each piece."""
        return SavePlan([self._item(piece) for piece in self._pieces.values()])

    @staticmethod
    def _item(piece: Piece) -> WriteItem:
        chunk, properties = _chunk(piece), TensorProperties(dtype=piece.values.dtype)
        data = TensorWriteData(chunk=chunk, properties=properties, size=torch.Size(piece.shape))
        return WriteItem(MetadataIndex(piece.name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The same plan: no two processes write the same."""
        return all_plans, Metadata({})

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """The same plan."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """The values of an item, in rows."""
        piece = self._pieces[write_item.index.fqn]
        return piece.values.detach().reshape(piece.sizes).contiguous()


class _Rows:
    """The values of pieces in the shapes that files have; what lies otherwise in memory is written back at the end."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._of: dict[str, torch.Tensor] = {}
        for piece in pieces:
            values = piece.values.detach()
            if not values.is_contiguous():
                values = torch.empty(piece.values.shape, dtype=piece.values.dtype)
                self._back.append((piece.values.detach(), values))
            self._of[piece.name] = values.view(piece.sizes)

    def __enter__(self) -> Mapping[str, torch.Tensor]:
        return self._of

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            for target, values in self._back:
                target.copy_(values)


class _Loads(LoadPlanner):
    def __init__(self, rows: Mapping[str, torch.Tensor], pieces: Sequence[Piece]) -> None:
        self._rows = rows
        self._pieces = pieces
        self._saved: Mapping[str, Any] = {}

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Hear what the files have."""
        assert metadata is not None
        self._saved = metadata.state_dict_metadata

    def create_local_plan(self) -> LoadPlan:
        """What to read from which chunk; everything is checked before anything is read."""
        return LoadPlan([item for piece in self._pieces for item in self._items(piece)])

    def _items(self, piece: Piece) -> list[ReadItem]:
        saved = self._saved.get(piece.name)
        if not isinstance(saved, TensorStorageMetadata):
            raise createPoptorchError(f"it has no {piece.name}")
        dtype = saved.properties.dtype
        if tuple(saved.size) != piece.shape or dtype != piece.values.dtype:
            raise createPoptorchError(
                f"{piece.name} has the shape {list(saved.size)} and the type {dtype} there, and the model needs "
                f"{list(piece.shape)} and {piece.values.dtype}"
            )
        items = create_read_items_for_chunk_list(piece.name, saved, [_chunk(piece)])
        if sum(math.prod(item.lengths) for item in items) != piece.values.numel():
            raise createPoptorchError(f"it has not all elements of {piece.name}, or some of them twice")
        return items

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """The same plan: processes read by themselves."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """The same plan."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Refused: there are tensors only."""
        raise createPoptorchError(f"{read_item.dest_index.fqn} is no tensor there")

    def resolve_bytes(self, read_item: ReadItem) -> io.BytesIO:
        """Refused: there are tensors only."""
        raise createPoptorchError(f"{read_item.dest_index.fqn} is no tensor there")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """The memory that an item is read into."""
        found = self._rows[read_item.dest_index.fqn]
        for dimension, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            found = found.narrow(dimension, offset, length)
        return found

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing: it was read into its place."""
