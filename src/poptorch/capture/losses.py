"""Finding the loss: built-in torch losses are marked as they run, and one final loss is chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from poptorch import ambient
from poptorch.errors import LossMissingError, SeveralLossesError, misuse
from poptorch.ops.hints import HINTS
from poptorch.program.opinfo import info_of

IDENTITY_LOSS = "identity_loss"

_NAMES = (
    "l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "hinge_embedding_loss",
    "margin_ranking_loss", "cosine_embedding_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
    "multilabel_soft_margin_loss", "multilabel_margin_loss", "multi_margin_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "gaussian_nll_loss", "nll_loss",
    "cross_entropy", "ctc_loss",
)  # fmt: skip


def _built_in_losses() -> dict[Callable[..., Any], str]:
    table: dict[Callable[..., Any], str] = {}
    for name in _NAMES:
        for home in (F, torch, torch._C._nn):
            function = getattr(home, name, None)
            if callable(function):
                table[function] = name
    return table


BUILT_IN_LOSSES = _built_in_losses()


class LossRecorder(TorchFunctionMode):
    """Marks the result of every built-in loss. Losses that a loss calls itself are not seen: the mode is off inside."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        kind = BUILT_IN_LOSSES.get(func)
        if kind is not None and isinstance(result, torch.Tensor):
            reduced = result.ndim == 0 and _reduction(func, args, kwargs) not in ("none", 0)
            ambient.mark_loss(result, kind, reduced)
        return result


def _reduction(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a call of a built-in loss says about its reduction; ``None`` if that cannot be told."""
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a function of C++ has no signature
        return kwargs.get("reduction")
    bound.apply_defaults()
    return bound.arguments.get("reduction")


@dataclass(frozen=True)
class FinalLoss:
    """Where back-propagation starts."""

    value: torch.Tensor
    position: int | None
    """Index among the results, if the user returns it."""

    origin: str
    """Which value it is, in words."""


def final_loss(
    marks: list[ambient.LossMark],
    results: Sequence[torch.Tensor],
    node_of: Callable[[torch.Tensor], fx.Node | None],
    *,
    at_the_mark: bool = False,
) -> FinalLoss:
    """The value that training makes smaller.

    It is the one marked loss that feeds no other. If the user does not return that loss, but one scalar that follows
    from it, the mark is a step on the way to that scalar. ``at_the_mark`` ignores such scalars, as the original did.
    """
    mark = _final_mark(marks, node_of)
    position = next((i for i, result in enumerate(results) if _is_same(result, mark.value, node_of)), None)
    if position is None and not at_the_mark:
        following = [i for i, result in enumerate(results) if _follows(result, mark.value)]
        if len(following) > 1 and mark.kind != IDENTITY_LOSS:
            raise _several_losses([mark], node_of, f" {len(following)} returned values follow from it.")
        if len(following) == 1:
            position = following[0]
            origin = f"result {position} of the model, which follows from the {mark.kind}"
            return FinalLoss(results[position], position, origin)
    return FinalLoss(mark.value, position, f"the {mark.kind}")


def _final_mark(marks: list[ambient.LossMark], node_of: Callable[[torch.Tensor], fx.Node | None]) -> ambient.LossMark:
    """The one mark that counts and feeds no other."""
    candidates = list(marks)
    # Each rule leaves a value that is computed beside the loss out of the choice, unless there is nothing else.
    for rule in (_has_gradient, lambda mark: mark.reduced):
        candidates = [mark for mark in candidates if rule(mark)] or candidates
    if not candidates:
        raise misuse(
            LossMissingError,
            "Couldn't find a loss in graph. A training model must compute its loss in forward(): use a torch loss, or "
            "wrap your own in poptorch.identity_loss(value, reduction=...).",
        )
    final = [m for m in candidates if not any(_feeds(m, other, node_of) for other in candidates if other is not m)]
    final = [mark for mark in final if mark.kind == IDENTITY_LOSS] or final
    if len(final) > 1:
        raise _several_losses(final, node_of)
    return final[0]


def _has_gradient(mark: ambient.LossMark) -> bool:
    return mark.value.requires_grad


def _several_losses(
    marks: list[ambient.LossMark], node_of: Callable[[torch.Tensor], fx.Node | None], why: str = ""
) -> Exception:
    nodes = [node_of(mark.value) for mark in marks]
    sources = [None if node is None else info_of(node).source for node in nodes]
    kinds = ", ".join(
        mark.kind if source is None else f"{mark.kind} at {source}" for mark, source in zip(marks, sources, strict=True)
    )
    return misuse(
        SeveralLossesError,
        "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in "
        f"poptorch.identity_loss. Found: {kinds}.{why} Example: "
        'poptorch.identity_loss(loss1 + loss2, reduction="none").',
    )


def _follows(result: torch.Tensor, loss: torch.Tensor) -> bool:
    """Whether a result is a number that depends on the loss, and back-propagation can tell how."""
    if result.numel() != 1 or result.grad_fn is None or loss.grad_fn is None:
        return False
    return loss.grad_fn in set(autograd_nodes([result.grad_fn]))


def _is_same(result: torch.Tensor, loss: torch.Tensor, node_of: Callable[[torch.Tensor], fx.Node | None]) -> bool:
    """Whether the user returns the loss itself, be it with a mark on it."""
    if result is loss:
        return True
    node = node_of(result)
    while node is not None and node.target in HINTS:
        node = node.args[0]  # type: ignore[assignment]
    return node is not None and node is node_of(loss)


def _feeds(
    source: ambient.LossMark, target: ambient.LossMark, node_of: Callable[[torch.Tensor], fx.Node | None]
) -> bool:
    """Whether ``source`` is used to compute ``target``, by the recorded data flow or by autograd's."""
    start, end = node_of(source.value), node_of(target.value)
    if start is not None and end is not None and start is not end and start in _ancestors(end):
        return True
    source_fn, target_fn = source.value.grad_fn, target.value.grad_fn
    if source_fn is None or target_fn is None or source_fn is target_fn:
        return False
    return source_fn in set(autograd_nodes([target_fn]))


def _ancestors(node: fx.Node) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    queue = [node]
    while queue:
        for parent in queue.pop().all_input_nodes:
            if parent not in seen:
                seen.add(parent)
                queue.append(parent)
    return seen


def autograd_nodes(roots: Iterable[Any]) -> list[Any]:
    """Every autograd node reachable from ``roots``."""
    seen: dict[Any, None] = dict.fromkeys(roots)
    queue = list(seen)
    while queue:
        for parent, _ in queue.pop().next_functions:
            if parent is not None and parent not in seen:
                seen[parent] = None
                queue.append(parent)
    return list(seen)
