"""Finding the loss: built-in torch losses are marked as they run, and one final loss is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from poptorch import ambient
from poptorch.errors import createPoptorchError

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
        result = func(*args, **(kwargs or {}))
        kind = BUILT_IN_LOSSES.get(func)
        if kind is not None and isinstance(result, torch.Tensor):
            ambient.mark_loss(result, kind)
        return result


def final_loss(
    marks: list[ambient.LossMark], node_of: Callable[[torch.Tensor], fx.Node | None]
) -> ambient.LossMark:
    """The one loss that feeds no other loss."""
    if not marks:
        raise createPoptorchError(
            "Couldn't find a loss in graph. A training model must compute its loss in forward(): use a torch loss, or "
            "wrap your own in poptorch.identity_loss(value, reduction=...)."
        )
    final = [m for m in marks if not any(_feeds(m, other, node_of) for other in marks if other is not m)]
    if len(final) > 1:
        kinds = ", ".join(m.kind for m in final)
        raise createPoptorchError(
            "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in "
            'poptorch.identity_loss. For example: poptorch.identity_loss(loss1 + loss2, reduction="none"). '
            f"The losses are: {kinds}."
        )
    return final[0]


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
