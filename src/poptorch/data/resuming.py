"""Going on in the middle of an epoch: where an epoch began, and passing over what was loaded before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from poptorch.data.partition import PartitionedDataset
from poptorch.errors import createPoptorchError

State = dict[str, Any]
Action = Callable[[], object]
_VERSION = 1


class SkippingSampler:
    """A sampler that can be told to begin later, once; nothing is loaded for what it passes over.

    >>> sampler = SkippingSampler([[0, 1], [2, 3], [4]])
    >>> sampler.skip(batches=1)
    >>> list(sampler), list(sampler)
    ([[2, 3], [4]], [[0, 1], [2, 3], [4]])
    >>> sampler.skip(rows=3)
    >>> list(sampler)
    [[3], [4]]
    """

    def __init__(self, base: Any) -> None:
        self.base = base
        self._pending: tuple[int | None, int, Action | None, Action | None] | None = None

    def skip(
        self, batches: int | None = 0, rows: int = 0, before: Action | None = None, after: Action | None = None
    ) -> None:
        """Let the next iteration begin after so many batches (``None``: after all), or after so many of their rows.

        ``before`` and ``after`` are called just before the first batch is drawn, and when all of those are passed over.
        """
        self._pending = (batches, rows, before, after)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.base) if self._pending is None else self._remaining()

    def _remaining(self) -> Iterator[Any]:
        """What is left of some batches.

        Nothing is drawn before the first one is wanted, as without skipping: torch makes iterators that it drops.
        """
        skipped, rows, before, after = self._pending or (0, 0, None, None)
        self._pending = None
        if before is not None:
            before()
        batches = iter(self.base)
        for _ in islice(batches, skipped):
            pass
        rest: list[Any] = []
        while rows > 0 and (batch := next(batches, None)) is not None:
            rest, rows = list(batch[rows:]), rows - len(batch)
        if after is not None:
            after()
        if rest:
            yield rest
        yield from batches

    def __len__(self) -> int:
        return len(self.base)


def epoch_start(loader: DataLoader[Any]) -> State:
    """What decides about the order of an epoch that is about to begin."""
    # torch's iterators draw a number of their own, but not when workers that are kept begin another epoch.
    kept = loader.persistent_workers and loader._iterator is not None
    start: State = {"torch": torch.get_rng_state(), "kept_workers": kept}
    for name, generator in _generators(loader).items():
        start[name] = generator.get_state()
    if isinstance(loader.dataset, PartitionedDataset):
        start["partition"] = loader.dataset.state_dict()
    for name, sampler in _stateful_samplers(loader).items():
        start[name] = sampler.state_dict()
    return start


def restore(loader: DataLoader[Any], start: Mapping[str, Any]) -> None:
    """Let the next epoch of a loader be the one that began so."""
    torch.set_rng_state(start["torch"])
    generators, samplers = _generators(loader), _stateful_samplers(loader)
    for name, state in start.items():
        if name in generators:
            generators[name].set_state(state)
        elif name in samplers:
            samplers[name].load_state_dict(state)
        elif name == "partition" and isinstance(loader.dataset, PartitionedDataset):
            loader.dataset.load_state_dict(state)
        elif name not in ("torch", "kept_workers"):
            raise createPoptorchError(
                f"The state is of a DataLoader with another {name.replace('_', ' ')}. Make the loader with the same "
                "arguments as the one that was saved."
            )


def random_numbers_of(loader: DataLoader[Any], resume: State) -> tuple[Action | None, Action | None]:
    """What to do before the first batch of a resumed epoch is drawn, and after the last one that is passed over."""
    start, now = resume["start"], resume["now"]

    def draw_as_then() -> None:
        torch.set_rng_state(start["torch"])
        for name, generator in _generators(loader).items():
            generator.set_state(start[name])

    return (
        draw_as_then if start["kept_workers"] else None,
        None if now is None else lambda: torch.set_rng_state(now),
    )


def state_of(loader: DataLoader[Any], start: State, batches: int, finished: bool, now: torch.Tensor | None) -> State:
    """The position of a loader. ``now`` is the state of this process's random numbers, if they are the loader's."""
    return {
        "version": _VERSION,
        "batches": batches,
        "finished": finished,
        "start": start,
        "now": now,
        "batch_size": loader.batch_size,
    }


def checked(loader: DataLoader[Any], state: Mapping[str, Any]) -> State:
    """A state that fits a loader."""
    if state.get("version") != _VERSION or "start" not in state:
        raise createPoptorchError("This is no state of a poptorch.DataLoader: give what state_dict() returned.")
    if state["batch_size"] != loader.batch_size:
        raise createPoptorchError(
            f"The state is of a DataLoader that loads {state['batch_size']} rows at a time; this one loads "
            f"{loader.batch_size}. Make it with the same batch_size and options."
        )
    return dict(state)


def discard(batches: Iterator[Any], count: int) -> None:
    """Load and drop: a stream cannot be entered in the middle."""
    for _ in islice(batches, count):
        pass


def whole_batches(rows: int, size: int | None) -> int:
    """How many batches of ``size`` have so many rows; a stream cannot be cut inside of a batch.

    >>> whole_batches(12, 4)
    3
    """
    if size is None or rows % size:
        raise createPoptorchError(
            f"A stream can go on after whole batches of its workers only: {rows} rows are no multiple of {size}. "
            "Choose a rebatched_worker_size that divides the combined batch size."
        )
    return rows // size


def is_stream(loader: DataLoader[Any]) -> bool:
    """Whether the data set decides about the order itself."""
    return isinstance(loader.dataset, IterableDataset)


def _generators(loader: DataLoader[Any]) -> dict[str, torch.Generator]:
    found = {"generator": loader.generator}
    for name, sampler in _samplers(loader).items():
        found[f"generator_of_{name}"] = getattr(sampler, "generator", None)
    return {name: generator for name, generator in found.items() if isinstance(generator, torch.Generator)}


def _stateful_samplers(loader: DataLoader[Any]) -> dict[str, Any]:
    return {
        name: sampler
        for name, sampler in _samplers(loader).items()
        if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
    }


def _samplers(loader: DataLoader[Any]) -> dict[str, Iterable[Any]]:
    batch_sampler = loader.batch_sampler
    found = {"sampler": loader.sampler, "batch_sampler": batch_sampler}
    inner = getattr(batch_sampler, "sampler", None)
    if inner is not None and inner is not loader.sampler:
        found["inner_sampler"] = inner
    return {name: sampler for name, sampler in found.items() if sampler is not None}
