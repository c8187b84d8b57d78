"""Which custom operators exist, and how one is chosen by domain, name and version."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from poptorch.errors import createPoptorchError


class OperatorKey(NamedTuple):
    """What identifies an operator."""

    domain: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.domain}.{self.name}:{self.version}"


@dataclass(frozen=True)
class GradientOp:
    """One gradient operator: where its inputs come from, and what its outputs are gradients of.

    Sources are (``"in"``, ``"out"`` or ``"grad_out"``, index in the forward operator); targets are forward
    inputs.
    """

    sources: tuple[tuple[str, int], ...]
    targets: tuple[tuple[int, int], ...]


class Operator(ABC):
    """An operator with its attributes fixed. Methods may be called by several threads at once."""

    @abstractmethod
    def infer(self, inputs: Sequence[torch.Tensor]) -> list[tuple[list[int], torch.dtype]]:
        """Shapes and types of the outputs; looks at nothing but the inputs' own."""

    @abstractmethod
    def compute(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs."""

    @abstractmethod
    def gradients(self, inputs: int, outputs: int) -> Sequence[GradientOp]:
        """The gradient operators for so many inputs and outputs; empty if there is no gradient."""

    @abstractmethod
    def gradient(self, index: int, inputs: int, outputs: int) -> Operator:
        """The gradient operator of this index, ready to compute."""

    def cycles(self, inputs: Sequence[torch.Tensor]) -> float | None:
        """Estimated cycles on one IPU, if the author gave an estimate."""
        return None


@dataclass(frozen=True)
class CustomDefinition:
    """A registered operator: how to make it from attributes, and where it comes from."""

    key: OperatorKey
    make: Callable[[str], Operator]
    min_inputs: int
    max_inputs: int
    outputs: int | None
    library: str | None
    """Path of the shared library, or ``None`` for operators written in Python."""

    communicates: bool = False
    """Whether it exchanges values with other replicas."""


_definitions: dict[OperatorKey, CustomDefinition] = {}
_instances: dict[tuple[OperatorKey, str], Operator] = {}
_lock = threading.RLock()
_scanners: list[Callable[[], Iterable[CustomDefinition]]] = []


def add(definition: CustomDefinition) -> None:
    """Register an operator; a later registration of the same key replaces the earlier one."""
    with _lock:
        _definitions[definition.key] = definition
        for cached in [entry for entry in _instances if entry[0] == definition.key]:
            del _instances[cached]


def remove(key: OperatorKey) -> None:
    """Forget an operator: programs find that one of the same name no more, or one that is built in.

    >>> key = OperatorKey("docs.registry", "Double", 1)
    >>> remove(key)
    >>> is_known("docs.registry", "Double")
    False
    """
    _definitions.pop(key, None)
    for known in [known for known in _instances if known[0] == key]:
        del _instances[known]


def add_scanner(scan: Callable[[], Iterable[CustomDefinition]]) -> None:
    """Ask ``scan`` for new operators before each lookup."""
    _scanners.append(scan)


def is_known(domain: str, name: str) -> bool:
    """Whether some version of the operator is registered."""
    with _lock:
        _scan()
        return any((key.domain, key.name) == (domain, name) for key in _definitions)


def communicates(domain: str, name: str, version: int) -> bool:
    """Whether the operator of exactly this version exchanges values with other replicas."""
    definition = _definitions.get(OperatorKey(domain, name, version))
    return definition is not None and definition.communicates


def _scan() -> None:
    for scan in _scanners:
        for definition in scan():
            add(definition)


def find(domain: str, name: str, version: int) -> CustomDefinition:
    """The registered version of the operator that is highest without exceeding ``version``."""
    with _lock:
        _scan()
        versions = [key.version for key in _definitions if (key.domain, key.name) == (domain, name)]
        usable = [known for known in versions if known <= version]
        if usable:
            return _definitions[OperatorKey(domain, name, max(usable))]
    if versions:
        raise createPoptorchError(
            f"No class for {domain}.{name} of version {version} or lower: only {sorted(versions)} are registered."
        )
    raise createPoptorchError(
        f"No class for {domain}.{name}:{version}. Load the library that implements it before compiling the "
        "model "
        '(ctypes.cdll.LoadLibrary("lib….so")), or register it with poptorch.registerCustomOp.'
    )


def instance(domain: str, name: str, version: int, attributes: str) -> Operator:
    """The operator of exactly this version with these attributes, made once."""
    entry = (OperatorKey(domain, name, version), attributes)
    operator = _instances.get(entry)
    if operator is None:
        definition = _definitions.get(entry[0])
        if definition is None:
            definition = find(domain, name, version)
            if definition.key.version != version:
                raise createPoptorchError(
                    f"No class for {domain}.{name} of exactly version {version}, which the program was "
                    "compiled with. Load the same library as then."
                )
        with _lock:
            operator = _instances.setdefault(entry, definition.make(attributes))
    return operator


def requirements(graphs: Iterable[torch.fx.Graph]) -> list[dict[str, Any]]:
    """The custom operators that these graphs need, each with the library it came from (``None``: Python)."""
    from poptorch.ops.subgraph import subgraphs

    needed: dict[OperatorKey, str | None] = {}
    queue = list(graphs)
    while queue:
        for node in queue.pop().nodes:
            target = node.target
            if isinstance(target, torch._ops.OpOverload) and target.namespace == "poptorch":
                queue.extend(subgraphs(node))
                if target._opname in ("custom_op", "custom_op_gradient"):
                    key = OperatorKey(*node.args[1:4])
                    definition = _definitions.get(key)
                    needed[key] = definition.library if definition else None
    return [{**key._asdict(), "library": library} for key, library in sorted(needed.items())]
