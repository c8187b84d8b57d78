"""The part of ``horovod.torch`` that programs for PopRun use, over PopDist's own communication.

PopTorch reduces gradients itself, so programs need Horovod for little: equal weights and seeds at the start, and sums
of metrics. Under PopRun, ``import horovod.torch`` finds these functions where Horovod is not installed. The real one
always wins. ``POPDIST_HOROVOD_SHIM=0`` in PopRun's environment switches the stand-in off.

Without PopRun, it has to be asked for: ``python -m popdist.horovod program.py ...`` runs a program as
``python program.py ...`` would, but for that import; :func:`install` does it for the imports that follow.

Tensors are of the host, of any type. Without a launcher there is one instance, and everything works.

>>> import torch
>>> init()
>>> rank(), size(), allreduce(torch.tensor([1.0, 2.0]))
(0, 1, tensor([1., 2.]))
"""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from popdist import backend, collectives, context

__all__ = [
    "Average", "Max", "Min", "Product", "Sum",
    "allgather", "allgather_object", "allreduce", "allreduce_", "barrier", "broadcast", "broadcast_",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "cross_rank", "cross_size", "gloo_built",
    "grouped_allreduce", "grouped_allreduce_", "init", "is_initialized", "local_rank", "local_size", "mpi_built",
    "mpi_threads_supported", "nccl_built", "rank", "shutdown", "size",
]  # fmt: skip

Average, Sum, Min, Max, Product = "Average", "Sum", "Min", "Max", "Product"

_REDUCTIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    Average: torch.Tensor.sum,
    Sum: torch.Tensor.sum,
    Min: torch.Tensor.amin,
    Max: torch.Tensor.amax,
    Product: torch.Tensor.prod,
}


class _State:
    initialized = False


_state = _State()


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"horovod.torch.{name} is not there: this is PopDist's stand-in, with what programs for PopTorch need. Install "
        "Horovod for more; gradients of models that PopTorch trains are reduced without it."
    )


def init(*unused: object, **ignored: object) -> None:
    """Bring the instances in contact, as ``popdist.init()`` does. Doing it again changes nothing."""
    backend.init()
    _state.initialized = True


def shutdown() -> None:
    """The other functions need ``init()`` again. PopDist itself stays in contact."""
    _state.initialized = False


def is_initialized() -> bool:
    """Whether ``init()`` was called."""
    return _state.initialized


def rank() -> int:
    """The number of this instance."""
    _require()
    return context.getInstanceIndex()


def size() -> int:
    """How many instances there are."""
    _require()
    return context.getNumInstances()


def local_rank() -> int:
    """The number of this instance among those of its host."""
    _require()
    return context.getLocalInstanceIndex()


def local_size() -> int:
    """How many instances this host has."""
    _require()
    return int(os.environ.get("LOCAL_WORLD_SIZE", context.getNumInstances()))


def cross_rank() -> int:
    """The number of this host."""
    return rank() // local_size()


def cross_size() -> int:
    """How many hosts there are."""
    return size() // local_size()


def mpi_threads_supported() -> bool:
    """There is no MPI in here."""
    return False


def mpi_built() -> bool:
    """There is no MPI in here."""
    return False


def nccl_built() -> int:
    """There is no NCCL in here."""
    return 0


def gloo_built() -> bool:
    """Instances talk through gloo."""
    return True


def barrier(process_set: object = None) -> None:
    """Wait until all instances are here."""
    _require()
    backend.synchronize()


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: object = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> torch.Tensor:
    """The mean over the instances, or the sum, ... as ``op`` says. Averages of whole numbers are rounded down."""
    _require()
    if average is not None and op is not None:
        raise ValueError("average and op exclude each other: give one of them.")
    chosen = op or (Sum if average is False else Average)
    if chosen not in _REDUCTIONS:
        raise ValueError(f"op is {chosen!r}, but must be one of {', '.join(_REDUCTIONS)}.")
    given = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    parts = collectives.allGather(given)
    wide = parts.float() if parts.dtype in (torch.float16, torch.bfloat16) else parts
    result = _REDUCTIONS[chosen](wide, 0)
    if chosen == Average:
        result = result / len(parts) if result.is_floating_point() else result // len(parts)
    if postscale_factor != 1.0:
        result = result * postscale_factor
    return result.to(tensor.dtype).to(tensor.device)


def allreduce_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As :func:`allreduce`, in place."""
    with torch.no_grad():
        return tensor.copy_(allreduce(tensor, *args, **kwargs))


def grouped_allreduce(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """As :func:`allreduce`, for each of several tensors."""
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """As :func:`grouped_allreduce`, in place."""
    return [allreduce_(tensor, *args, **kwargs) for tensor in tensors]


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: object = None) -> torch.Tensor:
    """The tensors of all instances, one after the other in their first dimension, in which they may differ.

    >>> init()
    >>> allgather(torch.tensor(3.0))
    tensor([3.])
    """
    _require()
    own = tensor.detach()[None] if tensor.dim() == 0 else tensor.detach()
    rows = collectives.allGather(torch.tensor([len(own)])).flatten().tolist()
    padded = own.new_zeros((max(rows), *own.shape[1:]))
    padded[: len(own)] = own
    parts = collectives.allGather(padded)
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)]).to(tensor.device)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: object = None
) -> torch.Tensor:
    """The tensor of instance ``root_rank``."""
    return broadcast_(tensor.detach().clone(), root_rank)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: object = None
) -> torch.Tensor:
    """As :func:`broadcast`, in place."""
    _require()
    with torch.no_grad():
        return collectives.broadcast(tensor, root_rank)


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int, process_set: object = None
) -> None:
    """Give all instances the parameters of instance ``root_rank``: a state dict, or ``model.named_parameters()``."""
    named = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    for _, value in named:
        if isinstance(value, torch.Tensor):
            broadcast_(value.detach(), root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, process_set: object = None) -> None:
    """Give all instances the state and the settings of the optimizer of instance ``root_rank``."""
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: object = None) -> Any:
    """The object of instance ``root_rank``: tensors, numbers, texts, and lists and dictionaries of these."""
    return obj if size() == 1 else _loaded(allgather(_saved(obj if rank() == root_rank else None)), root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: object = None) -> list[Any]:
    """The objects of all instances, in their order."""
    content = allgather(_saved(obj))
    return [_loaded(content, place) for place in range(size())]


def _saved(obj: Any) -> torch.Tensor:
    """The object as bytes, the number of which comes first."""
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    content = buffer.getvalue()
    return torch.frombuffer(bytearray(len(content).to_bytes(8, "little") + content), dtype=torch.uint8)


def _loaded(contents: torch.Tensor, place: int) -> Any:
    data = bytes(contents.numpy())
    for _ in range(place):
        data = data[8 + int.from_bytes(data[:8], "little") :]
    return torch.load(io.BytesIO(data[8 : 8 + int.from_bytes(data[:8], "little")]), weights_only=True)


def _require() -> None:
    if not _state.initialized:
        raise ValueError("Horovod has not been initialized; use hvd.init().")


# -- without PopRun ----------------------------------------------------------------------------------------------------


def install() -> None:
    """Let ``import horovod.torch`` find these functions from here on, unless Horovod is installed.

    >>> install()
    >>> import horovod.torch as hvd
    >>> hvd.allreduce is allreduce
    True
    """
    folder = str(Path(__file__).resolve().parent / "shims")
    if folder not in sys.path:
        sys.path.append(folder)


def _main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m popdist.horovod program.py [arguments ...]")
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as python itself does
    install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()
