"""Kernels become code, one after the other: the compiler chooses how results lie in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from poptorch.executable.host_program import (
    Constant,
    Factors,
    HandOver,
    HostProgram,
    Kernel,
    KernelCall,
    Prepared,
    Step,
)
from poptorch.host.native.draft import Draft, Recipe
from poptorch.host.native.inductor import Compiled, compile_graph, source_file
from poptorch.host.native.outlining import Outline, in_one_piece, outlined


def compile_kernels(draft: Draft) -> HostProgram:
    """Compile every kernel; one whose layers are equal, or whose gradients leave early, becomes several."""
    return _Compilation(draft).run()


class _Compilation:
    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._kernels: dict[str, Kernel] = {}
        self._same: dict[int, int] = {}
        """Values that turned out to be other values: a kernel returned them as they were."""

        self._results: list[int | None] = []

    def run(self) -> HostProgram:
        """The host program with compiled kernels."""
        draft = self._draft
        steps = list(self._steps(draft.host.steps))
        results = tuple(None if n is None else self._same.get(n, n) for n in draft.host.results)
        return draft.replaced(steps, results=results, kernels=self._kernels)

    def _steps(self, steps: Sequence[Step]) -> Iterator[Step]:
        rest = list(steps)
        while rest:
            step = self._renamed(rest.pop(0))
            if isinstance(step, KernelCall):
                behind = [s for s in rest if isinstance(s, (Factors, HandOver))] if _ends(rest) else []
                rest = rest[len(behind) :]
                yield from self._compiled(step, behind)
            else:
                if isinstance(step, Prepared):
                    self._kernels[step.kernel] = self._draft.host.kernels[step.kernel]
                yield step

    def _compiled(self, call: KernelCall, behind: Sequence[Step]) -> Iterator[Step]:
        """A call of compiled kernels, with what is made of its outputs, and handed over, as soon as they are there."""
        draft, recipe = self._draft, self._draft.recipes[call.kernel]
        fakes = [draft.layouts[number] for number in call.inputs]
        with draft.mode:
            graph_module = recipe.build(fakes)
        if _passes_on(graph_module.graph):
            self._pass_on(call, graph_module.graph)
            yield from map(self._renamed, behind)
            return
        handed = _handed(call, behind)
        owned = [call.inputs.index(number) for number in call.reuses]
        outline = self._outline(recipe, graph_module, fakes, owned, list(handed.values()))
        number = self._numbers(call, outline, graph_module)
        for local, value in outline.constants.items():
            yield Constant(number[local], value)
        for part in outline.parts:
            inputs, outputs = (tuple(number[n] for n in numbers) for numbers in (part.inputs, part.outputs))
            kernel = self._named(part.kernel, call.kernel)
            yield KernelCall(kernel, inputs, outputs, reuses=tuple(number[n] for n in part.reuses))
            done = {list(handed)[bucket] for bucket in part.buckets}
            yield from map(self._renamed, _of_buckets(behind, done))
        if not handed:
            yield from map(self._renamed, behind)

    def _outline(
        self,
        recipe: Recipe,
        graph_module: fx.GraphModule,
        fakes: Sequence[torch.Tensor],
        owned: Sequence[int],
        buckets: Sequence[Sequence[int]],
    ) -> Outline:
        target = self._draft.target
        if recipe.in_one_piece:
            compiled = compile_graph(
                graph_module, fakes, target, is_backward=recipe.is_backward, is_inference=recipe.is_inference,
                fixed=recipe.fixed, owned=owned, common=recipe.common,
            )  # fmt: skip
            return in_one_piece(graph_module, compiled, owned)
        with self._draft.mode:
            return outlined(
                graph_module, fakes, target, is_backward=recipe.is_backward, fixed=recipe.fixed, owned=owned,
                buckets=buckets,
            )  # fmt: skip

    def _numbers(self, call: KernelCall, outline: Outline, graph_module: fx.GraphModule) -> dict[int, int]:
        """The value of each number of the outline; outputs that are there already get no second one."""
        draft = self._draft
        number = dict(zip(outline.inputs, call.inputs, strict=True))
        nodes = graph_module.graph.output_node().args[0]
        for local, output, strides, node in zip(outline.outputs, call.outputs, outline.strides, nodes, strict=True):  # type: ignore[arg-type]
            if local is None or local in number:
                if local is not None:
                    self._same[output] = number[local]
                continue
            number[local] = output
            if strides is not None and isinstance(node, fx.Node):
                value = node.meta["val"]
                with draft.mode:
                    draft.layouts[output] = torch.empty_strided(value.shape, strides, dtype=value.dtype)
        for local in (*outline.constants, *(n for part in outline.parts for n in part.outputs)):
            if local not in number:
                number[local] = draft.new(f"between_{len(draft.naming.names)}")
        return number

    def _pass_on(self, call: KernelCall, graph: fx.Graph) -> None:
        """A graph without operations, for which no kernel is made: some inputs are the outputs."""
        placeholders = graph.find_nodes(op="placeholder")
        for node, output in zip(graph.output_node().args[0], call.outputs, strict=True):  # type: ignore[arg-type]
            self._same[output] = call.inputs[placeholders.index(node)]

    def _named(self, compiled: Compiled, fallback: str) -> str:
        """The name of a kernel: that of its source file."""
        file = source_file(compiled.run)
        base = name = file.rpartition("/")[2].removesuffix(".py") or fallback
        count = 1
        while name in self._kernels and self._kernels[name].run is not compiled.run:
            count += 1
            name = f"{base}-{count}"
        about = self._draft.host.kernels[fallback].about
        self._kernels[name] = Kernel(name, compiled.run, about=f"{fallback}, {about}")
        return name

    def _renamed(self, step: Step) -> Step:
        """The step on the values that there are."""
        same = self._same
        if not same:
            return step
        if isinstance(step, (KernelCall, Prepared)):
            return dataclasses.replace(step, inputs=tuple(same.get(n, n) for n in step.inputs))
        if isinstance(step, Factors):
            left, right = same.get(step.left, step.left), same.get(step.right, step.right)
            return dataclasses.replace(step, left=left, right=right)
        if isinstance(step, HandOver):
            return dataclasses.replace(step, values=tuple(same.get(n, n) for n in step.values))
        return step


def _ends(rest: Sequence[Step]) -> bool:
    """Whether only factors and hand-overs follow."""
    return all(isinstance(step, (Factors, HandOver)) for step in rest)


def _passes_on(graph: fx.Graph) -> bool:
    return all(node.op in ("placeholder", "output") for node in graph.nodes)


def _handed(call: KernelCall, behind: Sequence[Step]) -> Mapping[int, list[int]]:
    """The outputs of a call that each bucket needs, by position."""
    factors = {step.output: (step.left, step.right) for step in behind if isinstance(step, Factors)}
    found = {}
    for step in behind:
        if isinstance(step, HandOver):
            values = [n for value in step.values for n in factors.get(value, (value,))]
            found[step.bucket] = [call.outputs.index(n) for n in values]
    return found


def _of_buckets(behind: Sequence[Step], done: set[int]) -> Iterator[Step]:
    """The hand-overs of some buckets, each after what makes its values."""
    factors = {step.output: step for step in behind if isinstance(step, Factors)}
    for step in behind:
        if isinstance(step, HandOver) and step.bucket in done:
            yield from (factors[value] for value in step.values if value in factors)
            yield step
