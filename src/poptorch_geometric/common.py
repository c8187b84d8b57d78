"""Names that several modules need: PyG's classes of batches, and functions that run once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_geometric.data import Batch, Data, HeteroData

DataBatch = type(Batch(_base_cls=Data))
"""The class that PyG makes for batches of ``Data``."""

HeteroDataBatch = type(Batch(_base_cls=HeteroData))
"""The class that PyG makes for batches of ``HeteroData``."""


def _stored_or_counted(name: str) -> property:
    counted = getattr(HeteroData, name)

    def read(batch: Any) -> Any:
        stored = batch._global_store.get(name)
        return counted.fget(batch) if stored is None else stored

    return property(read, doc=counted.__doc__)


# A batch of several micro-batches stores the sizes of one of them. Batches of `Data` look there by themselves.
HeteroDataBatch.num_nodes = _stored_or_counted("num_nodes")
HeteroDataBatch.num_edges = _stored_or_counted("num_edges")


def call_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does something at its first call only; later calls return ``None``.

    >>> say = call_once(print)
    >>> say("hello"), say("hello"), say.has_run
    hello
    (None, None, True)
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if wrapper.has_run:  # type: ignore[attr-defined]
            return None
        wrapper.has_run = True  # type: ignore[attr-defined]
        return function(*args, **kwargs)

    wrapper.has_run = False  # type: ignore[attr-defined]
    return wrapper
