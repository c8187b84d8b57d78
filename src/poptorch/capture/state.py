"""The tensors a model owns: parameters and buffers, each once, with all the names it has.

During capture every one of them is replaced by a stand-in (a fake tensor, or a private copy), so that whatever
``forward`` does to its state is recorded and leaves the user's own tensors alone.
"""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from poptorch.capture.gradient_hooks import copy_hooks
from poptorch.capture.tables import captured_tables
from poptorch.errors import ReassignedError, createPoptorchError, misuse
from poptorch.frames import warn_user
from poptorch.program.program import has_values


class StateKind(enum.Enum):
    """Whether a tensor is trained or merely carried along."""

    PARAMETER = "Parameter"
    BUFFER = "Buffer"


@dataclass
class StateEntry:
    """One tensor of the model under all the names that lead to it (tied weights have several)."""

    kind: StateKind
    tensor: torch.Tensor
    names: list[str]
    slots: list[tuple[nn.Module, str, str]] = field(repr=False)
    """The (module, attribute, full name) places that hold it."""

    grouped: bool = False
    """Whether the first dimension counts groups of replicas, which ``forward`` does not see."""

    @property
    def name(self) -> str:
        return self.names[0]


def is_constant(buffer: torch.Tensor) -> bool:
    """Whether a buffer is a constant of the program, as plain attributes are: devices hold dense tensors only.

    >>> is_constant(torch.eye(2)), is_constant(torch.eye(2).to_sparse())
    (False, True)
    """
    with torch._C.DisableTorchFunctionSubclass():  # not a look at its values, which would fetch them
        return buffer.layout is torch.sparse_coo


def collect_state(model: nn.Module) -> list[StateEntry]:
    """All parameters, then all buffers, in the order of ``named_parameters`` and ``named_buffers``.

    Sparse buffers are left out: they are constants.
    """
    entries: dict[int, StateEntry] = {}
    for kind in StateKind:
        for prefix, module in model.named_modules(remove_duplicate=False):
            table = module._parameters if kind is StateKind.PARAMETER else module._buffers
            for attribute, tensor in table.items():
                if tensor is None or (kind is StateKind.BUFFER and is_constant(tensor)):
                    continue
                name = f"{prefix}.{attribute}" if prefix else attribute
                entry = entries.setdefault(id(tensor), StateEntry(kind, tensor, [], []))
                entry.names.append(name)
                if all(holder is not module or slot != attribute for holder, slot, _ in entry.slots):
                    entry.slots.append((module, attribute, name))
    return list(entries.values())


def check_dense(entries: list[StateEntry]) -> None:
    """Refuse parameters and buffers of a form that the device does not have."""
    for entry in entries:
        form = _form_of(entry.tensor)
        if form:
            kind = entry.kind.value.lower()
            raise createPoptorchError(
                f"The {kind} {entry.name} is a {form}, and the device has dense tensors only: use to_dense(). (A "
                "buffer that torch.Tensor.to_sparse() made is a constant of the program.)"
            )


def _form_of(tensor: torch.Tensor) -> str:
    """What is special about a tensor; nothing, if it is dense."""
    if tensor.layout is not torch.strided:
        return f"tensor with the layout {tensor.layout}"
    return "nested tensor" if tensor.is_nested else "quantised tensor" if tensor.is_quantized else ""


def check_not_empty(model: nn.Module) -> None:
    """Refuse parameters and buffers without elements, as the device cannot hold them."""
    for entry in collect_state(model):
        if entry.tensor.numel() == 0:
            what = f"the {entry.kind.value.lower()} {entry.name}"
            if entry.name.endswith(("min_val", "max_val")):
                what += " of an observer, which gets its size from a batch: call the model once on the host first"
            check_has_elements(entry.tensor, what, _owner_and_advice(model, entry))


_ADVICE = (
    "Choose the sizes of this layer so that each is at least one, replace the layer (nn.Identity() computes nothing), "
    "or leave out the tensor: register None in its place."
)


def _owner_and_advice(model: nn.Module, entry: StateEntry) -> str:
    """The layer that has a tensor, what layers of torch it is inside of, and what to do."""
    holder, _, name = entry.slots[0]
    path = name.rpartition(".")[0]
    layers = [] if holder is model else [f"It belongs to {holder}"]
    while path := path.rpartition(".")[0]:
        outer = model.get_submodule(path)
        if type(outer).__module__.startswith("torch.nn.") and not isinstance(outer, _CONTAINERS):
            layers.append(f"part of {path}, of the class {type(outer).__name__}")
    advice = _ADVICE_FOR_TAILS if any("AdaptiveLogSoftmax" in layer for layer in layers) else _ADVICE
    return f"{', '.join(layers)}. {advice}" if layers else advice


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_ADVICE_FOR_TAILS = "Its tails have in_features // div_value ** i features: choose a smaller div_value."


def check_has_elements(tensor: torch.Tensor, what: str, advice: str = "Give it elements, or leave it out.") -> None:
    """Refuse one tensor with a zero-sized dimension."""
    if tensor.numel() == 0:
        raise createPoptorchError(
            f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}). It is {what}. {advice}"
        )


@contextmanager
def replaced(entries: list[StateEntry], stand_ins: list[torch.Tensor]) -> Iterator[None]:
    """Put ``stand_ins`` where the entries' tensors are; the originals come back whatever happens.

    Other threads go on seeing the originals. On normal exit the model is also checked: ``forward`` may change its state
    in place only.
    """
    problem: Exception | None = None
    with ExitStack() as stack:
        modules = {id(module): module for entry in entries for module, _, _ in entry.slots}
        for module in modules.values():
            stack.enter_context(captured_tables(module))
            if isinstance(module, nn.RNNBase):
                stack.enter_context(_for_this_thread_alone(module))
        try:
            for entry, stand_in in zip(entries, stand_ins, strict=True):
                _fill(entry, stand_in)
            memory = [stand_in.untyped_storage()._cdata for stand_in in stand_ins]
            yield
            problem = _first_rebinding(entries, stand_ins) or _first_exchange(entries, stand_ins, memory)
        finally:
            for entry in entries:
                _fill(entry, entry.tensor)
    if problem is not None:
        raise problem


_KINDS = {"_parameters": "Parameter", "_buffers": "Buffer", "_modules": "Module"}


@contextmanager
def additions_taken_away(model: nn.Module) -> Iterator[None]:
    """What ``forward`` adds to the tables of modules has no values, and goes again; new parameters are refused.

    A buffer that ``forward`` makes where there is none is computed by the program, and nothing else.
    """
    before = [
        (f"{prefix}." if prefix else "", module, {table: dict(module.__dict__[table]) for table in _KINDS})
        for prefix, module in model.named_modules()
    ]
    added: list[_Added] = []
    try:
        yield
    finally:
        for prefix, module, tables in before:
            for table, known in tables.items():
                added += _take_away(module.__dict__[table], known, f"{_KINDS[table]} {prefix}")
    for what, is_trained in added:
        if is_trained:
            raise createPoptorchError(
                f"{what} is added to the model when calling the forward method. Neither the optimizer nor the device "
                "would know its parameters: create it in __init__, or call the model once on the host before wrapping."
            )


_Added = tuple[str, bool]
"""What was added, and whether it is a parameter or has some."""


def _take_away(table: dict[str, object], known: Mapping[str, object], prefix: str) -> list[_Added]:
    added: list[_Added] = []
    for name, value in list(table.items()):
        if value is None or (known.get(name) is not None and not isinstance(value, nn.Module)):
            continue  # tensors in the place of others are the business of `replaced`
        if value is known.get(name) or (isinstance(value, nn.Module) and not _has_state(value)):
            continue
        is_trained = any(True for _ in value.parameters()) if isinstance(value, nn.Module) else False
        added.append((prefix + name, is_trained or isinstance(value, nn.Parameter)))
        if name in known:
            table[name] = known[name]
        else:
            del table[name]
    return added


def _has_state(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


@contextmanager
def _for_this_thread_alone(module: nn.RNNBase) -> Iterator[None]:
    """Recurrent layers hand a list of their weights to torch as it is, so that all threads see the same one."""
    thread = threading.get_ident()

    def refuse(called: nn.Module, args: object) -> None:
        if threading.get_ident() != thread:
            raise createPoptorchError(
                f"This {type(called).__name__} is part of a model that another thread compiles at the moment. Use it "
                "when that is done, or give each thread a module of its own (copy.deepcopy)."
            )

    handle = module.register_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


_TABLES = ("_parameters", "_buffers", "_modules", "_flat_weights")
"""Attributes of modules with what belongs to the state; the last one mirrors the first."""


def plain_without_values(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The tensors without values in plain attributes, with the full names of the attributes."""
    return [
        (f"{prefix}.{attribute}" if prefix else attribute, leaf)
        for prefix, module in model.named_modules()
        for attribute, value in _plain_attributes(module)
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor) and not has_values(leaf)
    ]


def _plain_attributes(module: nn.Module) -> list[tuple[str, object]]:
    """The attributes, outside the model's state, that may hold tensors."""
    kinds = (torch.Tensor, list, tuple, dict)
    return [(k, v) for k, v in module.__dict__.items() if isinstance(v, kinds) and k not in _TABLES]


@dataclass(frozen=True)
class Rebinding:
    """A plain attribute with a tensor that ``forward`` replaced by another one."""

    holder: nn.Module
    attribute: str
    old: torch.Tensor = field(repr=False)
    new: torch.Tensor = field(repr=False)


def plain_names(model: nn.Module) -> dict[int, str]:
    """The full names of plain attributes that are tensors, by the identity of the tensor."""
    return {
        id(value): f"{prefix}.{attribute}" if prefix else attribute
        for prefix, module in model.named_modules()
        for attribute, value in _plain_attributes(module)
        if isinstance(value, torch.Tensor)
    }


@contextmanager
def plain_attributes_kept(
    model: nn.Module, stand_ins: Mapping[int, torch.Tensor]
) -> Iterator[Callable[[], list[Rebinding]]]:
    """Tensors that ``forward`` stores in plain attributes are stand-ins: afterwards the attributes are as before.

    ``stand_ins`` are for the tensors without values that are there already, by ``id``. What it yields lists the
    attributes with a tensor that have another one by now.
    """
    before = [(module, dict(module.__dict__)) for module in model.modules()]
    containers = _containers(model)
    for module, _ in before if stand_ins else ():
        for attribute, value in _plain_attributes(module):
            if any(id(leaf) in stand_ins for leaf in pytree.tree_leaves(value)):
                module.__dict__[attribute] = pytree.tree_map(lambda leaf: stand_ins.get(id(leaf), leaf), value)

    def rebound() -> list[Rebinding]:
        return [
            Rebinding(module, name, old, new)
            for module, attributes in before
            for name, new in _plain_attributes(module)
            if isinstance(new, torch.Tensor) and isinstance(old := attributes.get(name), torch.Tensor)
            if new is not old and id(old) not in stand_ins
        ]

    try:
        yield rebound
    finally:
        for module, attributes in before:
            changed = [k for k, v in module.__dict__.items() if v is not attributes.get(k) and _has_tensor(v)]
            for name in changed:
                if name in attributes:
                    module.__dict__[name] = attributes[name]
                else:
                    del module.__dict__[name]
        _restore_containers(containers)


_Container = tuple[str, list[Any] | dict[Any, Any] | set[Any], Any]


def _containers(model: nn.Module) -> list[_Container]:
    """The lists, dictionaries and sets in plain attributes, with their names and copies of them."""
    return [
        (f"{prefix}.{attribute}" if prefix else attribute, value, value.copy())
        for prefix, module in model.named_modules()
        for attribute, value in module.__dict__.items()
        if type(value) in (list, dict, set) and attribute not in _TABLES and not attribute.endswith("_hooks")
    ]


def _restore_containers(containers: list[_Container]) -> None:
    """Take away the tensors without values that ``forward`` has put into them."""
    for name, container, before in containers:
        values = list(container.values()) if isinstance(container, dict) else list(container)
        if not any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(values)):
            continue
        warn_user(
            f"forward() puts tensors into the attribute {name} of the model. It runs once, while the model is "
            "compiled, and these tensors never get a value: the attribute is as before. Return them from forward(), or "
            "keep what calls have in common in a buffer.",
        )
        container.clear()
        container.extend(before) if isinstance(container, list) else container.update(before)


def _has_tensor(value: object) -> bool:
    """Whether tensors, or weak references such as recurrent layers keep, are somewhere in the value."""
    return any(isinstance(leaf, (torch.Tensor, weakref.ref)) for leaf in pytree.tree_leaves(value))


def _fill(entry: StateEntry, tensor: torch.Tensor) -> None:
    for module, attribute, _ in entry.slots:
        table = module._parameters if entry.kind is StateKind.PARAMETER else module._buffers
        table[attribute] = tensor  # type: ignore[assignment]
        # A tensor assigned by `self.name = tensor` on a deleted slot would hide the table's entry.
        module.__dict__.pop(attribute, None)
        _refresh_flat_weights(module, attribute, tensor)


def _refresh_flat_weights(module: nn.Module, attribute: str, tensor: torch.Tensor) -> None:
    """Recurrent layers keep a second list of references to their weights."""
    if isinstance(module, nn.RNNBase) and attribute in module._flat_weights_names:
        module._flat_weights[module._flat_weights_names.index(attribute)] = tensor


def _first_rebinding(entries: list[StateEntry], stand_ins: list[torch.Tensor]) -> Exception | None:
    for entry, stand_in in zip(entries, stand_ins, strict=True):
        for module, attribute, name in entry.slots:
            if isinstance(module, nn.modules.batchnorm._NormBase):
                continue
            table = module._parameters if entry.kind is StateKind.PARAMETER else module._buffers
            kind = entry.kind.value
            if attribute not in table:
                return misuse(
                    ReassignedError,
                    f"{kind} {name} is removed from the model when calling the forward method. "
                    "Keep it, and change its values in place.",
                )
            if table[attribute] is not stand_in:
                return misuse(
                    ReassignedError,
                    f"{kind} {name} is reassigned within the model when calling the forward method. "
                    f"This is not supported. Consider using self.{name}.copy_(src) to copy data from a "
                    "source tensor, where src is the name of the source tensor.",
                )
    return None


def _first_exchange(entries: list[StateEntry], stand_ins: list[torch.Tensor], memory: list[int]) -> Exception | None:
    """The error for a tensor of the state that ``tensor.data = other`` moved to other memory."""
    for entry, stand_in, before in zip(entries, stand_ins, memory, strict=True):
        if stand_in.untyped_storage()._cdata != before:
            return misuse(
                ReassignedError,
                f"The data of {entry.kind.value.lower()} {entry.name} is replaced when calling the forward method "
                "(.data = ...). This is not supported: copy the values into it with .copy_(), under torch.no_grad().",
            )
    return None


def stand_ins_for(entries: list[StateEntry], make: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Fresh tensors for each entry; parameters stay parameters and keep their ``requires_grad``."""
    result: list[torch.Tensor] = []
    for entry in entries:
        tensor = make(entry.tensor.detach()[0] if entry.grouped else entry.tensor.detach())
        if entry.kind is StateKind.PARAMETER:
            wants_grad = entry.tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
            tensor = nn.Parameter(tensor, requires_grad=wants_grad)
            if wants_grad:
                copy_hooks(entry.name, entry.tensor, tensor)
        result.append(tensor)
    return result
