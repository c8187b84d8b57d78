"""What a training wrapper adds to the user's own model, and takes away again.

The model's class becomes a subclass that fetches trained weights from the device when they are looked at; so do the
classes of its parameters and buffers. Only weak references lead to the executor and its weights: a model that outlives
them is an ordinary model again in all but name.
"""

from __future__ import annotations

import copyreg
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from poptorch.capture.state import is_constant
from poptorch.capture.tables import note_shallow_copy
from poptorch.errors import createPoptorchError
from poptorch.executor.changes import changes
from poptorch.executor.eager_loop import gradient_of
from poptorch.executor.sharing import sharers
from poptorch.executor.turns import Turns

_MARK = "_poptorch_watcher"
_EXECUTOR = "_poptorch_executor"
_FREEZING = frozenset({torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__})  # type: ignore[attr-defined]
"""Functions that decide whether a parameter is trained."""


class Watcher(Protocol):
    """The weights of a wrapped model, as far as its watched tensors know them."""

    @property
    def turns(self) -> Turns:
        """Where threads wait for the executor."""

    def looked_at(self) -> None:
        """A watched tensor or model is used."""

    def download_if_needed(self) -> bool:
        """Bring trained weights to the host if it has old ones; tells whether it did."""

    def group_replicas(self, parameter: torch.Tensor, kind: Any, size: int, retrieval: Any) -> None:
        """Let groups of replicas have values of their own for a parameter."""


class Destroyable(Protocol):
    """The executor, as far as an instrumented model knows it."""

    def destroy(self) -> None:
        """Release the device and unwrap the model."""


def is_instrumented(model: nn.Module) -> bool:
    """Whether a training executor has its hands on the model."""
    return hasattr(type(model), _MARK)


def own_class(model: nn.Module) -> type[nn.Module]:
    """The class that the user wrote."""
    return type(model).__mro__[1] if is_instrumented(model) else type(model)


def watcher_of(model: nn.Module) -> Watcher | None:
    """The weights of the live training executor of an instrumented model, or ``None``."""
    reference: weakref.ref[Watcher] | None = getattr(type(model), _MARK, None)
    return None if reference is None else reference()


def executor_of(model: nn.Module) -> Destroyable | None:
    """The live training executor of an instrumented model, or ``None``."""
    reference: weakref.ref[Destroyable] | None = getattr(type(model), _EXECUTOR, None)
    return None if reference is None else reference()


def is_watched_by(tensor: torch.Tensor, watcher: object) -> bool:
    """Whether every look at the tensor is noticed by ``watcher``."""
    reference = getattr(type(tensor), _MARK, None)
    return reference is not None and reference() is watcher


def check_buffers(model: nn.Module) -> None:
    """Only plain tensors can be watched."""
    for name, buffer in model.named_buffers():
        if type(buffer) is not torch.Tensor and not hasattr(type(buffer), _MARK):
            raise createPoptorchError(
                f"All buffers must be an instance of torch.Tensor: {name} is a {type(buffer).__name__}"
            )


def instrument(model: nn.Module, watcher: Watcher, executor: Destroyable) -> None:
    """Let ``model`` and its tensors fetch their values through ``watcher``, the weights of ``executor``."""
    if is_instrumented(model):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to unwrap "
            "before wrapping again. [PT1010]"
        )
    reference = weakref.ref(watcher)
    _watch_tensors(model, reference)
    model.__class__ = _watched_model(type(model), reference, weakref.ref(executor))


def _watch_tensors(model: nn.Module, reference: weakref.ref[Watcher]) -> None:
    """Let the parameters and buffers of a model that are not watched yet fetch their values."""
    parameter_class = _watched_tensor(nn.Parameter, reference)
    buffer_class = _watched_tensor(torch.Tensor, reference)
    for parameter in _unique(model.named_parameters()):
        if type(parameter) is nn.Parameter or _is_forgotten(parameter):
            parameter.__class__ = parameter_class
    for buffer in _unique(model.named_buffers()):
        if (type(buffer) is torch.Tensor or _is_forgotten(buffer)) and not is_constant(buffer):
            buffer.__class__ = buffer_class
    _watched_models[model] = reference


_watched_models = WeakIdKeyDictionary()  # by identity: a module may define what equality is
"""The weights of each instrumented model: models may share tensors, and only one of them watches each."""


def _is_forgotten(tensor: torch.Tensor) -> bool:
    """Whether the executor that watched a tensor is gone."""
    reference = getattr(type(tensor), _MARK, None)
    return reference is not None and reference() is None


def exchange(model: nn.Module, watcher: Watcher, old: Iterable[torch.Tensor]) -> None:
    """Watch the tensors that the model has now; the ``old`` ones are ordinary tensors again."""
    for tensor in old:
        if is_watched_by(tensor, watcher):
            tensor.__class__ = nn.Parameter if isinstance(tensor, nn.Parameter) else torch.Tensor
    _watch_tensors(model, weakref.ref(watcher))


def restore(model: nn.Module) -> None:
    """Give the model and its tensors their own classes back."""
    _taken_off.pop(model, None)
    if not is_instrumented(model):
        return
    model.__class__ = type(model).__mro__[1]
    for parameter in _unique(model.named_parameters()):
        if hasattr(type(parameter), _MARK):
            parameter.__class__ = nn.Parameter
    for buffer in _unique(model.named_buffers()):
        if hasattr(type(buffer), _MARK):
            buffer.__class__ = torch.Tensor
    _watched_models.pop(model, None)
    for other, reference in list(_watched_models.items()):
        if reference() is not None:
            _watch_tensors(other, reference)


_taken_off = WeakIdKeyDictionary()  # by identity: a module may define what equality is
"""Models that are plain for a while, with the weights and the executor that they belong to."""


def take_off(model: nn.Module) -> None:
    """Let an instrumented model be an ordinary one with the trained weights, until :func:`put_back`."""
    if not is_instrumented(model):
        return
    watcher, executor = getattr(type(model), _MARK), getattr(type(model), _EXECUTOR)
    if (alive := watcher()) is not None:
        alive.download_if_needed()
    restore(model)
    if alive is not None:
        _taken_off[model] = (watcher, executor)


def put_back(model: nn.Module) -> None:
    """Instrument a model again that :func:`take_off` made plain; other models stay as they are."""
    if model not in _taken_off:
        return
    watcher, executor = (reference() for reference in _taken_off.pop(model))
    if watcher is not None and executor is not None and not is_instrumented(model):
        instrument(model, watcher, executor)


def belongs_to(model: nn.Module, watcher: Watcher) -> bool:
    """Whether the model is instrumented for ``watcher``, or would be if it were not plain for a while."""
    if model in _taken_off and not is_instrumented(model):
        return _taken_off[model][0]() is watcher
    return watcher_of(model) is watcher


def _unique(named: Iterator[tuple[str, Any]]) -> list[Any]:
    return list({id(tensor): tensor for _, tensor in named}.values())


def _fetch(reference: weakref.ref[Watcher]) -> None:
    watcher = reference()
    if watcher is not None:
        watcher.looked_at()
    else:
        sharers.look_at_all()


def _plain(tensor: torch.Tensor, *, copy: bool) -> torch.Tensor:
    """The values of a watched tensor in its original class."""
    with torch._C.DisableTorchFunctionSubclass():
        data = tensor.detach().clone() if copy else tensor.detach()
        return nn.Parameter(data, tensor.requires_grad) if issubclass(type(tensor), nn.Parameter) else data


_GRADIENT: Any = getattr(torch.Tensor.grad, "__get__")  # noqa: B009 - torch types the property as its value


def _watched_tensor(base: type, reference: weakref.ref[Watcher]) -> type:
    """A subclass of ``base`` whose every use through torch first brings the host up to date."""

    class Watched(base):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func == _GRADIENT:  # not a look at the weight: optimizer.zero_grad() in the loop must not fetch it
                return gradient_of(args[0])
            for kind in types:  # operands may belong to several executors, and this is called for the first one only
                watching = getattr(kind, _MARK, None)
                if watching is not None:
                    _fetch(watching)
            if func in _FREEZING:
                changes.note()
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            _fetch(reference)
            if id(self) not in memo:
                memo[id(self)] = _plain(self, copy=True)
            return memo[id(self)]

        def __copy__(self) -> Any:
            _fetch(reference)
            return _plain(self, copy=False)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _fetch(reference)
            return _plain(self, copy=False).__reduce_ex__(protocol)

        def replicaGrouping(self, comm_group_type: Any, shards: int, variable_retrieval_mode: Any) -> None:
            """Let groups of ``shards`` replicas have values of their own: the rows of the first dimension."""
            watcher = reference()
            if watcher is not None:
                watcher.group_replicas(self, comm_group_type, shards, variable_retrieval_mode)

        def __repr__(self, *, tensor_contents: Any = None) -> str:
            _fetch(reference)
            return repr(_plain(self, copy=False))

        def __hash__(self) -> int:
            return id(self)

    Watched.__name__ = Watched.__qualname__ = f"Poptorch{base.__name__}"
    setattr(Watched, _MARK, reference)
    return Watched


def _watched_model(
    base: type[nn.Module], reference: weakref.ref[Watcher], executor_reference: weakref.ref[Destroyable]
) -> type[nn.Module]:
    """A subclass of the user's class that fetches weights before they are used or looked at."""

    class Watched(base):  # type: ignore[misc, valid-type]
        def copyWeightsToHostIfNeeded(self) -> bool:
            """Bring trained weights to the host if it has old ones; tells whether it did."""
            watcher = reference()
            return watcher is not None and watcher.download_if_needed()

        def destroy(self) -> None:
            """Unwrap the model: release its device and make it an ordinary module again."""
            executor = executor_reference()
            if executor is not None:
                executor.destroy()
            restore(self)  # the executor is gone, or this is a copy of the model it wrapped

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            _fetch(reference)
            return super().__call__(*args, **kwargs)

        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            _fetch(reference)
            return super().named_parameters(*args, **kwargs)

        def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
            _fetch(reference)
            return super().named_buffers(*args, **kwargs)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            _fetch(reference)
            return _plain_state(super().state_dict(*args, **kwargs))

        def __copy__(self) -> Any:
            _fetch(reference)
            return _shallow_copy(self, type(self))

        def __reduce_ex__(self, protocol: Any) -> Any:
            _fetch(reference)
            return _plain_reduction(_shallow_copy(self, base), protocol)

    Watched.__name__ = f"Poptorch{base.__name__}"
    Watched.__qualname__ = Watched.__name__
    Watched.__module__ = base.__module__
    setattr(Watched, _MARK, reference)
    setattr(Watched, _EXECUTOR, executor_reference)
    return Watched


def _shallow_copy(model: nn.Module, as_class: type) -> Any:
    copied: Any = object.__new__(as_class)
    copied.__dict__ = dict(model.__dict__)
    note_shallow_copy(copied, model)
    return copied


def _plain_reduction(plain: nn.Module, protocol: Any) -> Any:
    """How to pickle ``plain`` in place of the instrumented model.

    Pickle insists that ``__newobj__`` builds the class of the very object it was asked to save, which is not so here.
    """
    reduced: Any = plain.__reduce_ex__(protocol)
    function, arguments, *rest = reduced
    if function is copyreg.__newobj__ and len(arguments) == 1:  # type: ignore[attr-defined]
        return copyreg._reconstructor, (arguments[0], object, None), *rest  # type: ignore[attr-defined]
    return function, arguments, *rest


def shallow_copy(model: nn.Module) -> nn.Module:
    """A second module object around the same parameters, buffers and children."""
    copied: nn.Module = _shallow_copy(model, type(model))
    return copied


def plain_view(model: nn.Module) -> nn.Module:
    """The model in the user's own class: itself, or for an instrumented one an object with the same attributes.

    What is written to one of them is seen in the other.
    """
    if not is_instrumented(model):
        return model
    view: nn.Module = object.__new__(own_class(model))
    view.__dict__ = model.__dict__
    return view


def plain_shallow_copy(model: nn.Module) -> nn.Module:
    """Like :func:`shallow_copy`, in the user's own class even if the model is instrumented."""
    copied: nn.Module = _shallow_copy(model, own_class(model))
    return copied


def _plain_state(state: Any) -> Any:
    """A state dict without any of our classes; entries that share a tensor go on sharing it."""
    known: dict[tuple[Any, ...], torch.Tensor] = {}
    result: OrderedDict[str, Any] = OrderedDict()
    metadata = getattr(state, "_metadata", None)
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and not is_constant(value):
            if hasattr(type(value), _MARK):
                value = _plain(value, copy=False)
            place = (value.data_ptr(), value.shape, value.stride(), value.dtype, type(value))
            value = known.setdefault(place, value) if value.data_ptr() else value
        result[key] = value
    if metadata is not None:
        result._metadata = metadata  # type: ignore[attr-defined]
    return result
