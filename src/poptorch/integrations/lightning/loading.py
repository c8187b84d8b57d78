"""Data loaders whose batches have the rows of a whole call."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from torch.utils.data import BatchSampler, IterableDataset

from poptorch.data import DataLoader
from poptorch.errors import createPoptorchError


def with_rows(loader: Any, factor: int, drop_last: bool) -> Any:
    """A loader like this one, with ``factor`` times as many rows in a batch; ``poptorch.DataLoader`` as it is.

    >>> loader = torch.utils.data.DataLoader(range(6), batch_size=1)
    >>> [len(batch) for batch in with_rows(loader, 4, drop_last=True)]
    [4]
    """
    if not isinstance(loader, torch.utils.data.DataLoader) or isinstance(loader, DataLoader):
        return loader
    kwargs: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    batches = loader.batch_sampler
    if isinstance(batches, _IndexBatchSamplerWrapper):  # for predictions: remembers which rows a batch has
        kwargs["batch_sampler"] = _IndexBatchSamplerWrapper(_larger(batches._batch_sampler, factor, drop_last))
    elif isinstance(loader.dataset, IterableDataset) and loader.batch_size is not None:
        kwargs |= {"batch_size": loader.batch_size * factor, "drop_last": loader.drop_last or drop_last}
    else:
        kwargs["batch_sampler"] = _larger(batches, factor, drop_last)
    return torch.utils.data.DataLoader(loader.dataset, **kwargs)


def _larger(batches: Any, factor: int, drop_last: bool) -> BatchSampler:
    if type(batches) is not BatchSampler:
        raise createPoptorchError(
            f"Batches of a {type(batches).__name__} cannot be joined to the {factor} micro-batches of a call. Return a "
            "poptorch.DataLoader, made with the strategy's options, or a DataLoader with a batch_size."
        )
    return BatchSampler(batches.sampler, batches.batch_size * factor, batches.drop_last or drop_last)
