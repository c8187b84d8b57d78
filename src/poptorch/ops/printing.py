"""``ipu_print_tensor``: show a tensor, and its gradient, each time the program computes it."""

from __future__ import annotations

import sys
from typing import Any

import torch

from poptorch import ambient
from poptorch.ops._library import define, require_tensor
from poptorch.ops.layout import FLOAT_FORMATS, Layout

_EXTRA = "ops.prints"


def _print(tensor: torch.Tensor, title: str, gradient_title: str, layout: str) -> torch.Tensor:
    # One write per tensor: replicas print at the same time, and lines of two tensors must not mix.
    sys.stderr.write(Layout.from_text(layout).render(title, tensor) + "\n")
    sys.stderr.flush()
    return tensor.clone()


def _like(tensor: torch.Tensor, title: str, gradient_title: str, layout: str) -> torch.Tensor:
    return torch.empty_like(tensor)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    _, _, ctx.gradient_title, ctx.layout = inputs


def _print_gradient(ctx: Any, gradient: torch.Tensor) -> Any:
    if ctx.gradient_title:
        gradient = PRINT(gradient, ctx.gradient_title, "", ctx.layout)
    return gradient, None, None, None


PRINT = define(
    "print_tensor(Tensor x, str title, str gradient_title, str layout) -> Tensor",
    _print,
    _like,
    backward=_print_gradient,
    setup_context=_remember,
)


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print ``tensor`` to stderr whenever the compiled program reaches this point, and return it unchanged.

    Use the result: a print whose result nobody needs may be optimised away. In training the gradient that
    flows back through this point is printed as well, as ``<title>_gradient``. Of ``separator`` and the
    brackets only the first character counts. Outside of a PopTorch model nothing is printed.

    >>> ipu_print_tensor(torch.tensor([1.5]), "activations")
    tensor([1.5000])
    """
    require_tensor(tensor, "poptorch.ipu_print_tensor")
    if float_format not in FLOAT_FORMATS:
        raise KeyError(f"{float_format!r} is not a float_format; use one of {', '.join(FLOAT_FORMATS)}.")
    for name, value in (
        ("separator", separator),
        ("open_bracket", open_bracket),
        ("close_bracket", close_bracket),
    ):
        if not isinstance(value, str) or not value:
            raise ValueError(f"ipu_print_tensor: {name} must be a string of at least one character, not {value!r}.")
    context = ambient.current()
    if context is None:
        return tensor
    name = title or _tensor_name(context)
    gradient_title = (f"{title}_gradient" if title else f"Gradient___{name}") if print_gradient else ""
    layout = Layout(
        summarise_threshold=int(summarise_threshold),
        edge_items=int(edge_items),
        max_line_width=int(max_line_width),
        digits=int(digits),
        float_format=float_format,
        separator=separator[0],
        open_bracket=open_bracket[0],
        close_bracket=close_bracket[0],
    )
    return PRINT(tensor, name, gradient_title, layout.to_text())


def _tensor_name(context: ambient.CaptureContext) -> str:
    number = context.extras.get(_EXTRA, 0)
    context.extras[_EXTRA] = number + 1
    return "/".join([*context.name_scopes, f"PrintTensor:{number}"])
