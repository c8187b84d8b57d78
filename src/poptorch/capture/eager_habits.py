"""What works in eager PyTorch because ``forward`` runs in each call, and is said here because it does not any more.

``forward`` runs once, while the model is compiled. What it does to Python values, what hooks do, and what it draws from
generators that are not torch's, happen in that one run; the program has what came of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from poptorch._logging import warn_once
from poptorch.frames import warn_user
from poptorch.program.program import has_values

_PLAIN = (int, float, bool, str)
_OWN_MODULES = ("poptorch.", "torch.")

Values = dict[tuple[str, str], Any]


@contextmanager
def habits_watched(model: nn.Module) -> Iterator[None]:
    """The context in which ``forward`` runs."""
    with hooks_watched(model), python_watched(model):
        yield


@contextmanager
def python_watched(model: nn.Module) -> Iterator[None]:
    """Say which Python values the enclosed run of ``forward`` changes, and which generators beside torch's it uses."""
    before, drawn = _plain_values(model), _generators()
    yield
    _tell_changes(before, _plain_values(model))
    for name, state in _generators().items():
        if drawn[name] != state:
            warn_user(
                f"forward() draws random numbers from {name}. It runs once, while the model is compiled: each call "
                "uses the same numbers. Draw them with torch, or pass them as an input."
            )


def _plain_values(model: nn.Module) -> Values:
    """Numbers and texts that are attributes of modules, by the names of module and attribute."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in module.__dict__.items()
        if type(value) in _PLAIN and name != "training" and not name.startswith("_")
    }


def _tell_changes(before: Values, after: Values) -> None:
    for (path, name), value in after.items():
        old = before.get((path, name), value)
        if old != value and not (old != old and value != value):
            owner = f"{path}.{name}" if path else name
            warn_user(
                f"forward() changes the Python value {owner!r} from {old!r} to {value!r}. It runs once, while the "
                "model is compiled: each call computes with the same number. To keep a value from call to call, make "
                "it a tensor and register it with register_buffer()."
            )


def _generators() -> dict[str, Any]:
    """Where the generators of Python and NumPy are in their sequences."""
    numpy_state: Any = np.random.get_state(legacy=False)
    inner = numpy_state["state"]
    return {
        "numpy.random": (inner.get("pos"), numpy_state["has_gauss"], bytes(np.asarray(inner["key"]))),
        "Python's random": random.getstate(),
    }


@contextmanager
def hooks_watched(model: nn.Module) -> Iterator[None]:
    """Say that a hook of the user that changes no tensor, but counts, prints or saves, does so in this run only."""
    looking: list[str] = []
    with ExitStack() as restored:
        for path, module in model.named_modules():
            for table in (module._forward_pre_hooks, module._forward_hooks):
                for key, hook in list(table.items()):
                    if not _is_ours_or_of_torch(hook):
                        table[key] = _noting(hook, path or type(module).__name__, looking)
                        restored.callback(_restore, table, key, hook)
        yield
    if looking:
        warn_user(
            f"The forward hook {looking[0]} runs once, while the model is compiled, not in each call: what it counts, "
            "prints or saves comes from that one run. Its tensors have no values: poptorch.ipu_print_tensor shows "
            "them, and Options.anchorTensor() returns them."
        )


def _is_ours_or_of_torch(hook: Any) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return f"{home}.".startswith(_OWN_MODULES)


def _noting(hook: Callable[..., Any], owner: str, looking: list[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = hook(*args, **kwargs)
        if result is None:
            looking.append(f"{getattr(hook, '__qualname__', type(hook).__qualname__)} of {owner!r}")
        return result

    return call


def _restore(table: dict[int, Any], key: int, hook: Any) -> None:
    if key in table:  # a hook may remove itself
        table[key] = hook


def warn_of_training_mode(model: nn.Module, operations: Iterable[fx.Node]) -> None:
    """Say that an inference model was wrapped in training mode, if that makes a difference to its ``operations``."""
    names = {str(node.target) for node in operations}
    for path, module in model.named_modules():
        effect = _effect_of_training(module, names) if module.training else None
        if effect is not None:
            warn_user(
                f"The model is in training mode: {path or type(module).__name__!r} {effect}. Call model.eval() before "
                "poptorch.inferenceModel(model) for results as in evaluation."
            )
            return


def _effect_of_training(module: nn.Module, names: set[str]) -> str | None:
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 and _contains(names, "dropout", "bernoulli"):
        return "drops values at random"
    statistics = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    if statistics and _contains(names, "batch_norm"):
        return "uses the statistics of each batch, and changes its running statistics"
    return None


def _contains(names: set[str], *parts: str) -> bool:
    return any(part in name for name in names for part in parts)


@contextmanager
def arguments_explained(constants: Iterable[Any]) -> Iterator[None]:
    """Let an error of ``forward`` about the type of an operand say that an argument of the call is no tensor."""
    try:
        yield
    except TypeError as error:
        array = next((it for it in constants if isinstance(it, np.ndarray)), None)
        if array is not None:
            hint = "An argument of the call is a NumPy array: pass torch.from_numpy(array) instead."
        elif "must be Tensor, not list" in str(error):
            hint = "An argument of the call is a list: pass torch.tensor(list) instead."
        else:
            raise
        raise TypeError(f"{error}. {hint}").with_traceback(error.__traceback__) from None


def warn_of_narrowing(tensors: Iterable[torch.Tensor]) -> None:
    """Say that types that the device does not have are computed in float32."""
    wide: Sequence[torch.dtype] = sorted(
        {tensor.dtype for tensor in tensors} & {torch.float64, torch.bfloat16}, key=str
    )
    for dtype in wide:
        name = str(dtype).removeprefix("torch.")
        warn_once(
            ("narrowed", dtype),
            f"{name.capitalize()} is not supported natively on IPU: weights and inputs of this type are computed as "
            "float32. Use float32 or float16.",
        )


def warn_of_wide_integers(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Say which int64 buffers have values that the device's integers cannot hold."""
    with torch._C.DisableTorchFunctionSubclass():  # they are on the host: what runs next fetched them
        for name, tensor in named:
            if tensor.dtype is not torch.int64 or tensor.layout is not torch.strided:
                continue
            if not has_values(tensor) or not tensor.numel():
                continue
            smallest, largest = (int(value) for value in torch.aminmax(tensor))
            if smallest < _INT32.min or largest > _INT32.max:
                warn_user(
                    f"The buffer {name} has values that do not fit into 32 bits, from {smallest} to {largest}. The "
                    "device has no wider integers: they lose their upper bits in the results. Keep values between "
                    f"{_INT32.min} and {_INT32.max}, split them into two buffers, or return a plain attribute, which "
                    "keeps its type."
                )


_INT32 = torch.iinfo(torch.int32)
