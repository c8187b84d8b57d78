"""Dividing a model into pipeline stages of equal weight, without a single annotation by hand."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedFakeTensorException
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch import work
from poptorch.ambient import Placement
from poptorch.errors import createPoptorchError
from poptorch.figures import Shown, byte_size, columns
from poptorch.placement.blocks import BeginBlock, BlockHook
from poptorch.placement.counting import MAX_IPUS_PER_PROCESS, pipeline_stages
from poptorch.placement.strategies import ExecutionStrategy, PipelinedExecution

_MEMORY_SHARE = 0.25
"""How much of a stage's load is its share of the weights; the rest is its share of the time."""

_TOLERANCE = 1.1
"""A split between larger modules is preferred if it is at most this much worse than the best one."""


Price = Callable[[Any, Any, Any, Any], float]
"""What an operation costs: operator, arguments, keyword arguments, result. The unit does not matter."""


@dataclass(frozen=True)
class AutoStagePart:
    """One stage of an automatic split."""

    ipu: int
    first_module: str
    """The module that the stage starts with; empty for the beginning of the model."""

    time_share: float
    weight_bytes: int


@dataclass(frozen=True)
class Split(Shown):
    """What :func:`poptorch.autoPipeline` decided; prints as a table."""

    stages: tuple[AutoStagePart, ...]

    @property
    def balance(self) -> float:
        """Average time of a stage divided by that of the slowest: 1 is perfect."""
        slowest = max(stage.time_share for stage in self.stages)
        return 1 / (len(self.stages) * slowest) if slowest else 1.0

    def __str__(self) -> str:
        rows = [("IPU", "starts with", "time", "weights")]
        for s in self.stages:
            rows.append((str(s.ipu), s.first_module or "the model", f"{s.time_share:.1%}", byte_size(s.weight_bytes)))
        lines = columns(rows, "><>>", (3, 0, 6, 10))
        lines.append(f"balance {self.balance:.0%}")
        return "\n".join(lines)


def divide(
    model: nn.Module,
    num_ipus: int,
    example_inputs: Any,
    strategy: ExecutionStrategy | None,
    price: Price,
    *,
    verbose: bool,
) -> Split:
    """Annotate ``model`` with one :func:`poptorch.BeginBlock` per IPU, so that the stages cost the same.

    ``price`` says what each operation costs. The model runs on shapes alone, unless its Python needs values.
    """
    _check(model, num_ipus, strategy)
    visits, total = _walk(model, example_inputs, price)
    points = _choose(visits, total, num_ipus)
    starts = [_Visit("", None, 0, 0.0, 0), *points]
    ends = [*points, _Visit("", None, 0, total.cost, total.weights)]
    stages = []
    for ipu, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if start.module is not None:
            BeginBlock(start.module, user_id=f"stage {ipu}", ipu_id=ipu)
        share = (end.cost - start.cost) / total.cost if total.cost else 0.0
        stages.append(AutoStagePart(ipu, start.name, share, end.weights - start.weights))
    split = Split(tuple(stages))
    if verbose:
        print(split)
        print(_advice(num_ipus))
    return split


def _advice(num_ipus: int) -> str:
    needed = pipeline_stages(num_ipus, training=True)
    return (
        f"train with gradientAccumulation of at least {needed}, run inference with deviceIterations of at least "
        f"{num_ipus}"
    )


def _check(model: nn.Module, num_ipus: int, strategy: ExecutionStrategy | None) -> None:
    if not isinstance(model, nn.Module):
        raise createPoptorchError(f"autoPipeline divides a torch.nn.Module, not a {type(model).__name__}.")
    if isinstance(num_ipus, bool) or not isinstance(num_ipus, int) or not 1 <= num_ipus <= MAX_IPUS_PER_PROCESS:
        raise createPoptorchError(f"autoPipeline: num_ipus must be from 1 to {MAX_IPUS_PER_PROCESS}, not {num_ipus!r}.")
    annotated = [
        name
        for name, module in model.named_modules()
        if any(isinstance(hook, BlockHook) for hook in module._forward_pre_hooks.values())
    ]
    if annotated:
        raise createPoptorchError(
            f"autoPipeline: the model is annotated already ({', '.join(annotated)}). Call poptorch.removeBlocks(model) "
            "first."
        )
    if strategy is None:
        return
    strategy = copy.deepcopy(strategy)  # it remembers every block that it is asked about
    try:
        placed = [strategy.place(f"stage {ipu}", ipu) for ipu in range(num_ipus)]
    except AssertionError as why:
        raise createPoptorchError(
            "autoPipeline names its blocks 'stage 0', 'stage 1' …, which the strategy of the options does not know. "
            f"Use poptorch.PipelinedExecution() or poptorch.ShardedExecution() without arguments. ({why})"
        ) from why
    if not isinstance(strategy, PipelinedExecution) or not all(isinstance(p, Placement) for p in placed):
        raise createPoptorchError(
            f"autoPipeline divides models for pipelined and sharded execution, not for {type(strategy).__name__}."
        )


# -- what each module costs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Visit:
    """The moment at which a module starts: what the model has done and how much of its weights it has met."""

    name: str
    module: nn.Module | None
    depth: int
    cost: float
    weights: int


@dataclass
class _Total:
    cost: float = 0.0
    weights: int = 0


class _Meter(TorchDispatchMode):
    """Adds up what operations cost, and the weights that they are the first to use."""

    def __init__(self, total: _Total, weights: Iterable[torch.Tensor], price: Price) -> None:
        super().__init__()
        self._price = price
        self._total = total
        self._unmet = {id(tensor): tensor for tensor in weights}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in pytree.tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
        for tensor in tensors:
            weight = self._unmet.pop(id(tensor), None)
            if weight is not None:
                self._total.weights += work.num_bytes([weight])
        self._total.cost += self._price(func, args, kwargs or {}, result)
        return result


def _walk(model: nn.Module, example_inputs: Any, price: Price) -> tuple[list[_Visit], _Total]:
    """Run the model on shapes and note when each module starts."""
    try:
        return _Walk(model, price).on_shapes(example_inputs)
    except (UnsupportedFakeTensorException, RuntimeError, NotImplementedError):
        # The model's Python needs values: run a copy of it for real.
        return _Walk(model, price).on_values(example_inputs)


class _Walk:
    def __init__(self, model: nn.Module, price: Price) -> None:
        self._model = model
        self._price = price
        self._names = {id(m): name for name, m in model.named_modules()}
        self._total = _Total()
        self._visits: list[_Visit] = []
        self._calls: dict[str, int] = {}

    def on_shapes(self, example_inputs: Any) -> tuple[list[_Visit], _Total]:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        state: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        state.update(self._model.named_buffers())
        fakes: dict[str, torch.Tensor] = {n: mode.from_tensor(t.detach()) for n, t in state.items()}
        args, kwargs = _arguments(pytree.tree_map_only(torch.Tensor, mode.from_tensor, example_inputs))
        with torch.random.fork_rng(devices=[]), mode:
            weights = [fakes[name] for name, _ in self._model.named_parameters()]
            return self._run(lambda: torch.func.functional_call(self._model, fakes, args, kwargs), self._model, weights)

    def on_values(self, example_inputs: Any) -> tuple[list[_Visit], _Total]:
        twin = copy.deepcopy(self._model)
        self._names = {id(m): name for name, m in twin.named_modules()}
        args, kwargs = _arguments(example_inputs)
        with torch.random.fork_rng(devices=[]):
            visits, total = self._run(lambda: twin(*args, **kwargs), twin, list(twin.parameters()))
        own = dict(self._model.named_modules())
        return [_Visit(v.name, own[v.name], v.depth, v.cost, v.weights) for v in visits], total

    def _run(self, call: Any, model: nn.Module, weights: list[Any]) -> tuple[list[_Visit], _Total]:
        handles = [m.register_forward_pre_hook(self._enter) for m in model.modules()]
        try:
            with torch.no_grad(), _Meter(self._total, weights, self._price):
                call()
        finally:
            for handle in handles:
                handle.remove()
        repeated = [name for name, count in self._calls.items() if count > 1]
        single = [
            v for v in self._visits if v.name and not any(v.name == r or v.name.startswith(f"{r}.") for r in repeated)
        ]
        return single, self._total

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self._names[id(module)]
        self._calls[name] = self._calls.get(name, 0) + 1
        depth = name.count(".") + 1 if name else 0
        self._visits.append(_Visit(name, module, depth, self._total.cost, self._total.weights))


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


# -- where to cut --------------------------------------------------------------------------------------------------


def _choose(visits: Sequence[_Visit], total: _Total, count: int) -> list[_Visit]:
    """The ``count - 1`` cuts with the smallest heaviest stage; between modules as large as possible."""
    candidates = _candidates(visits, total)
    if len(candidates) < count - 1:
        raise createPoptorchError(
            f"autoPipeline cannot divide this model for {count} IPUs: only {len(candidates)} of its modules can begin "
            "a stage (they must be called exactly once, after the first operation). Use fewer IPUs or annotate by hand."
        )
    ways = []
    for depth in sorted({v.depth for v in candidates}):
        allowed = [v for v in candidates if v.depth <= depth]
        if len(allowed) >= count - 1:
            cuts = _partition([_load(v.cost, v.weights, total) for v in allowed], count)
            loads = [0.0, *(_load(allowed[c].cost, allowed[c].weights, total) for c in cuts), 1.0]
            heaviest = max(b - a for a, b in itertools.pairwise(loads))
            ways.append((heaviest, [allowed[c] for c in cuts]))
    best = min(heaviest for heaviest, _ in ways)
    return next(cuts for heaviest, cuts in ways if heaviest <= best * _TOLERANCE)


def _candidates(visits: Iterable[_Visit], total: _Total) -> list[_Visit]:
    """One module for each moment, the outermost, leaving out the very beginning and the very end.

    A module that costs nothing, such as a dropout of probability 0, starts at the moment of the one after it: the
    border is where the outer one starts.
    """
    by_moment: dict[float, _Visit] = {}
    for visit in visits:
        if 0.0 < visit.cost < total.cost:
            known = by_moment.get(visit.cost)
            if known is None or visit.depth < known.depth:
                by_moment[visit.cost] = visit
    return list(by_moment.values())


@dataclass(frozen=True)
class CutPoint:
    """A module that a stage may begin with."""

    name: str
    load: float
    """What comes before it, as a share of the time and of the weights of the model."""


def cut_points(model: nn.Module, example_inputs: Any, price: Price, most: int) -> list[CutPoint]:
    """At most so many places where a model can be cut, in order: borders of modules, the outer ones first."""
    visits, total = _walk(model, example_inputs, price)
    candidates = _candidates(visits, total)
    depths = sorted({visit.depth for visit in candidates})
    chosen: list[_Visit] = []
    for depth in depths:
        deeper = [visit for visit in candidates if visit.depth <= depth]
        if len(deeper) > most and chosen:
            break
        chosen = deeper
    return [CutPoint(visit.name, _load(visit.cost, visit.weights, total)) for visit in chosen[:most]]


def best_cuts(points: Sequence[CutPoint], count: int) -> tuple[int, ...]:
    """The ``count - 1`` points that make ``count`` stages with the smallest heaviest one.

    >>> best_cuts([CutPoint("a", 0.2), CutPoint("b", 0.5), CutPoint("c", 0.9)], 2)
    (1,)
    """
    return tuple(_partition([point.load for point in points], count))


def _load(cost: float, weights: int, total: _Total) -> float:
    time = cost / total.cost if total.cost else 0.0
    memory = weights / total.weights if total.weights else time
    return (1 - _MEMORY_SHARE) * time + _MEMORY_SHARE * memory


def _partition(positions: Sequence[float], count: int) -> list[int]:
    """Indices of the ``count - 1`` positions on [0, 1] that cut it with the smallest longest piece.

    >>> _partition([0.1, 0.3, 0.7, 0.8], 3)
    [1, 2]
    """
    size = len(positions)
    longest = [positions[i] for i in range(size)]  # of the pieces up to position i
    back: list[list[int]] = []
    for _ in range(count - 2):
        nearer = [math.inf] * size
        origin = [0] * size
        for i in range(size):
            for j in range(i):
                piece = max(longest[j], positions[i] - positions[j])
                if piece < nearer[i]:
                    nearer[i], origin[i] = piece, j
        longest = nearer
        back.append(origin)
    if count == 1:
        return []
    end = min(range(size), key=lambda i: max(longest[i], 1.0 - positions[i]))
    cuts = [end]
    for origin in reversed(back):
        cuts.append(origin[cuts[-1]])
    return cuts[::-1]
