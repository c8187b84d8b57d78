"""Changes to a model or its options, and what the IPU Model says of the model after each of them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from poptorch.compiler.lowering import Rewritten, rewrite
from poptorch.compiler.request import CompileRequest, backend_texts, loop_of
from poptorch.errors import Error
from poptorch.options import Options
from poptorch.placement.blocks import BeginBlock
from poptorch.program.program import Program

if TYPE_CHECKING:
    from poptorch.ipu_model.architecture import Architecture
    from poptorch.ipu_model.result import Estimate

_PASSES = ("partialsTypeMatMuls", "convolutionOptions")
"""Options of the backend that passes over the whole model read."""


@dataclass(frozen=True)
class Change:
    """One thing that could be done otherwise."""

    title: str
    """What to do, for people."""

    code: str = ""
    """The statement that does it."""

    options: Callable[[Options], object] | None = field(default=None, repr=False, compare=False)
    """Changes options in place."""

    edit: Callable[[Program], None] | None = field(default=None, repr=False, compare=False)
    """Changes the program before it is divided."""

    longer: int = 1
    """So many times the micro-batches of a call, and of its inputs."""

    blocks: tuple[tuple[str, int], ...] = ()
    """Modules that begin a block, each with its IPU; later marks of a module win."""

    half: bool = False
    """Whether the model and its inputs become float16."""

    @property
    def text(self) -> str:
        """Title and statement in one line."""
        return f"{self.title} ({self.code})" if self.code else self.title


class Bench:
    """Tries changes on one model. The model is captured once for each size of micro-batches.

    >>> from poptorch.compiler.request import request_for
    >>> from poptorch.ipu_model.architecture import architecture
    >>> request = request_for(nn.Linear(64, 64), Options().deviceIterations(4), (torch.ones(16, 64),))
    >>> bench = Bench(request, architecture("mk2"))
    >>> smaller = Change("smaller micro-batches", options=lambda options: options.deviceIterations(8))
    >>> bench.estimate().micro_batch, bench.estimate(smaller).micro_batch
    (4, 2)
    """

    def __init__(self, request: CompileRequest, chip: Architecture) -> None:
        self._request: CompileRequest | None = request
        self._chip = chip
        self._programs: dict[Hashable, Rewritten] = {}
        self.tried = 0

    @property
    def is_open(self) -> bool:
        """Whether changes can be tried."""
        return self._request is not None

    @property
    def options(self) -> Options:
        """Those of the model."""
        assert self._request is not None
        options: Options = self._request.options
        return options

    def close(self) -> None:
        """Give the model and its arguments free."""
        self._request = None
        self._programs.clear()

    def estimate(self, *changes: Change) -> Estimate:
        """The estimate of the model with these changes; an error if it cannot be like that."""
        from poptorch.ipu_model.estimation import estimate_program

        assert self._request is not None, "the bench is closed"
        request = self._request
        options = request.options.clone()
        for change in changes:
            if change.options is not None:
                change.options(options)
        half = any(change.half for change in changes)
        blocks = tuple(block for change in changes for block in change.blocks)
        program = self._program(options, half, blocks, math.prod(change.longer for change in changes))

        def edit(copied: Program) -> None:
            for change in changes:
                if change.edit is not None:
                    change.edit(copied)

        self.tried += 1
        with torch.inference_mode(False):
            return estimate_program(program.divided(options, edit), self._chip)

    def attempt(self, *changes: Change) -> Estimate | None:
        """The same; nothing for what cannot be."""
        try:
            return self.estimate(*changes)
        except (Error, AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
            return None  # such as a pipeline that is too short: then it is no way to do it

    def _program(self, options: Options, half: bool, blocks: tuple[tuple[str, int], ...], longer: int) -> Rewritten:
        assert self._request is not None
        request = self._request
        cuts = loop_of(options, request.training).input_factor / longer
        key = cuts, half, blocks, *backend_texts(options, _PASSES)
        if key not in self._programs:
            if longer == 1:
                request = dataclasses.replace(request, options=options)
            with torch.inference_mode(False), _annotated(request.model, blocks):
                self._programs[key] = rewrite(_halved(request) if half else request)
        return self._programs[key]


@contextlib.contextmanager
def _annotated(model: nn.Module, blocks: tuple[tuple[str, int], ...]) -> Iterator[None]:
    """Meanwhile, these modules begin blocks, too."""
    modules = [model.get_submodule(name) for name, _ in blocks]
    before = [(module, dict(module._forward_pre_hooks)) for module in modules]
    try:
        for module, (_, ipu) in zip(modules, blocks, strict=True):
            BeginBlock(module, ipu_id=ipu)
        yield
    finally:
        for module, hooks in before:
            module._forward_pre_hooks.clear()
            module._forward_pre_hooks.update(hooks)


def _halved(request: CompileRequest) -> CompileRequest:
    """The same call of the same model in float16, on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in [*request.model.parameters(), *request.model.buffers()]:
        made = torch.empty_like(tensor, device="meta", dtype=_half(tensor.dtype))
        memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    model = copy.deepcopy(request.model, memo)
    spec = request.optimizer_spec
    if spec is not None:
        groups = tuple(
            dataclasses.replace(group, parameters=tuple(memo.get(id(p), p) for p in group.parameters))
            for group in spec.groups
        )
        spec = dataclasses.replace(spec, groups=groups)
    positional, keyword = pytree.tree_map_only(
        torch.Tensor,
        lambda tensor: torch.empty_like(tensor, device="meta", dtype=_half(tensor.dtype)),
        (request.call.positional, request.call.keyword),
    )
    call = dataclasses.replace(request.call, positional=positional, keyword=keyword)
    return dataclasses.replace(request, model=model, optimizer_spec=spec, call=call)


def _half(dtype: torch.dtype) -> torch.dtype:
    return torch.float16 if dtype == torch.float32 else dtype


__all__ = ["Bench", "Change"]
