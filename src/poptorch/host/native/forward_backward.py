"""A training program in two graphs, forward and backward, for compilers that fuse whatever shares an operand.

Compiled as one graph, work of the backward pass is pulled into forward kernels and its results are stored for long.
Where to cut is torch's own problem: its partitioner decides what is kept and what is cheaper to compute again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch.host.native.inductor import AnyLayout, contiguous, decompose, plain, simplify
from poptorch.program.graphs import has_side_effect, is_view
from poptorch.program.opinfo import Sweep, info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, Role, is_write

aten = torch.ops.aten


@dataclass
class Sweeps:
    """The two graphs. Placeholders of the forward one are named by position, those of the backward one by value."""

    forward: fx.GraphModule
    """Returns the program's results, then what the backward pass needs."""

    backward: fx.GraphModule
    """Returns gradients and anchors."""

    num_results: int
    forward_inputs: list[int]
    """Positions among the program's placeholders and the random key after them."""

    saved: list[int]
    """For each input of the backward graph, its position among the forward graph's outputs; -1: the seed."""

    seed: Seed
    views: list[InputView | None]
    """For each input of the backward graph, how it is made from an input of the program, if it only looks at one."""

    @property
    def activations(self) -> list[bool]:
        """For each input of the backward graph, whether it lives for the sake of this graph alone."""
        return [i >= self.num_results and view is None for i, view in zip(self.saved, self.views, strict=True)]


@dataclass(frozen=True)
class InputView:
    """A value that shares the memory of an input."""

    position: int
    chain: tuple[fx.Node, ...]
    """The views between them, outermost first."""

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """The same view of another tensor."""
        for node in reversed(self.chain):
            value = node.target(value, *node.args[1:], **node.kwargs)  # type: ignore[operator]
        return value


@dataclass(frozen=True)
class Seed:
    """Where back-propagation starts: ones, or the loss scale."""

    node: fx.Node
    shape: tuple[int, ...]
    dtype: torch.dtype
    port: int | None
    """The position of the loss scale among the placeholders; ``None``: ones."""


def find_seed(program: Program, graph_module: fx.GraphModule) -> Seed | None:
    """What the backward pass starts from; ``None`` when it cannot be told apart."""
    for position, (node, port) in enumerate(program.placeholders()):
        if port.role is Role.LOSS_SCALE:
            return Seed(node, port.shape, port.dtype, position)
    operations = graph_module.graph.find_nodes(op="call_function", target=aten.ones_like.default)
    backward = [n for n in operations if info_of(n).sweep is Sweep.BACKWARD]
    if not backward:
        return None
    value = backward[0].meta["val"]
    return Seed(backward[0], tuple(value.shape), value.dtype, None)


def split(program: Program, graph_module: fx.GraphModule, seed: Seed, fakes: Sequence[torch.Tensor]) -> Sweeps:
    """Cut the program; ``graph_module`` is its graph with a random key, ``fakes`` describe the placeholders.

    What is kept is the partitioner's choice, unless the program says itself which operations run again.
    """
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    writes = [_Write.of(n, graph_module) for n in graph_module.graph.nodes if n.op == "call_function" and is_write(n)]
    results = program.positions_of(OutputKind.GRADIENT).start  # what the forward pass returns
    function = _without_writes(graph_module, writes, seed, results)
    seed_fake = torch.empty(seed.shape, dtype=seed.dtype)
    joint = simplify(decompose(function, [*fakes, seed_fake]))
    _name_placeholders(joint)
    cut: Callable[..., tuple[fx.GraphModule, fx.GraphModule]] = min_cut_rematerialization_partition
    if any(info_of(node).recomputed for node in program.operations()):
        cut = default_partition  # the other one would find the same operations twice, and do them once
        _mark_forward(joint, results + len(writes))
    else:
        _compute_once(joint)
    forward, backward = cut(joint, [*fakes, seed_fake], num_fwd_outputs=results + len(writes))
    # Operations that torch takes for random, such as attention, stay in the backward pass although they are not needed.
    backward.graph.eliminate_dead_code(has_side_effect)
    kept = _write_at_the_end(forward, writes, results)
    inputs = [_position(n) for n in forward.graph.find_nodes(op="placeholder")]
    saved = [
        -1 if n.target == _SEED else kept.index(str(n.target)) for n in backward.graph.find_nodes(op="placeholder")
    ]
    outputs = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    views = [None if i < 0 else _view_of_input(outputs[i]) for i in saved]
    return Sweeps(plain(forward), plain(backward), results, inputs, saved, seed, views)


_SEED = "tangents_1"  # names that the partitioner knows
_INPUT = "primals_"


@dataclass(frozen=True)
class _Write:
    """A ``copy_`` into a placeholder."""

    node: fx.Node
    value: fx.Node
    target: int

    @staticmethod
    def of(node: fx.Node, graph_module: fx.GraphModule) -> _Write:
        placeholders = list(graph_module.graph.find_nodes(op="placeholder"))
        target, value = node.args[:2]
        assert isinstance(target, fx.Node)
        assert isinstance(value, fx.Node)
        return _Write(node, value, placeholders.index(target))


def _without_writes(
    graph_module: fx.GraphModule, writes: Sequence[_Write], seed: Seed, results: int
) -> Callable[..., tuple[Any, ...]]:
    """The program as a function of its placeholders and the seed. What it writes follows its results."""
    skipped = {w.node for w in writes}
    name = seed.node.name if seed.port is None else None

    class Replay(AnyLayout):
        seed_value: Any = None

        def run_node(self, n: fx.Node) -> Any:
            if n.name == name and n.op == "call_function":
                return self.seed_value
            return None if n in skipped else super().run_node(n)

    interpreter = Replay(graph_module, garbage_collect_values=False)

    def function(*flat: torch.Tensor) -> tuple[Any, ...]:
        *inputs, interpreter.seed_value = flat
        if seed.port is not None:
            inputs[seed.port] = interpreter.seed_value
        outputs = interpreter.run(*inputs, enable_io_processing=False)
        written = [interpreter.env[w.value] for w in writes]
        interpreter.env.clear()
        return (*map(contiguous, outputs[:results]), *written, *outputs[results:])

    return function


def _name_placeholders(joint: fx.GraphModule) -> None:
    """Names by which the partitioner tells the seed from the inputs."""
    placeholders = list(joint.graph.find_nodes(op="placeholder"))
    for position, node in enumerate(placeholders):
        name = _SEED if position == len(placeholders) - 1 else f"{_INPUT}{position}"
        node.target = node.name = name
    joint.recompile()


def _compute_once(joint: fx.GraphModule) -> None:
    """Tell the partitioner what takes longer to compute again than to keep.

    GELU and its derivative need the same error function: the forward pass computes both and keeps the derivative in
    place of the operand.
    """
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.find_nodes(op="call_function", target=aten.erf.default):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _mark_forward(joint: fx.GraphModule, outputs: int) -> None:
    """Tell the partitioner which operations the first outputs need; all others belong to the backward pass.

    It takes everything before the last of them for forward, so they come first.
    """
    joint.graph.eliminate_dead_code()
    values = list(joint.graph.output_node().args[0])  # type: ignore[arg-type]
    queue = [v for v in values[:outputs] if isinstance(v, fx.Node)]
    while queue:
        node = queue.pop()
        if "partitioner_tag" not in node.meta:
            node.meta["partitioner_tag"] = "is_forward"
            queue += node.all_input_nodes
    for node in joint.graph.nodes:  # all results of one operation: the partitioner cannot keep several as one value
        if node.target is operator.getitem and "partitioner_tag" in node.args[0].meta:
            node.meta["partitioner_tag"] = "is_forward"
    operations = [n for n in joint.graph.nodes if n.op not in ("placeholder", "output")]
    first_of_backward = next((n for n in operations if "partitioner_tag" not in n.meta), None)
    if first_of_backward is not None:
        for node in operations:
            if "partitioner_tag" in node.meta:
                first_of_backward.prepend(node)


def _position(placeholder: fx.Node) -> int:
    return int(str(placeholder.target).removeprefix(_INPUT))


def _write_at_the_end(forward: fx.GraphModule, writes: Sequence[_Write], results: int) -> list[str]:
    """Turn the values to write from outputs into writes. Returns the names of the outputs that are left."""
    graph = forward.graph
    output = graph.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    placeholders = {_position(n): n for n in graph.find_nodes(op="placeholder")}
    kept = [*values[:results], *values[results + len(writes) :]]
    names = [v.name if isinstance(v, fx.Node) else "" for v in kept]
    written = {placeholders[w.target] for w in writes if w.target in placeholders}
    with graph.inserting_before(output):
        for index in range(results, len(kept)):
            if kept[index] in written:  # the backward pass is to see it as it was before
                old = kept[index]
                kept[index] = graph.call_function(aten.clone.default, (old,))
                kept[index].meta = dict(old.meta)
        for write, value in zip(writes, values[results:], strict=False):
            graph.call_function(aten.copy_.default, (_placeholder(graph, placeholders, write), value))
    output.args = (tuple(kept),)
    return names


def _view_of_input(value: fx.Node) -> InputView | None:
    chain = []
    while value.op == "call_function" and is_view(value):
        chain.append(value)
        value = value.args[0]  # type: ignore[assignment]
    return InputView(_position(value), tuple(chain)) if value.op == "placeholder" else None


def _placeholder(graph: fx.Graph, known: dict[int, fx.Node], write: _Write) -> fx.Node:
    """The placeholder that is written to; a value that is only written was dropped by the partitioner."""
    if write.target not in known:
        last = list(graph.find_nodes(op="placeholder"))[-1]
        with graph.inserting_after(last):
            node = graph.placeholder(f"{_INPUT}{write.target}")
        target = write.node.args[0]
        assert isinstance(target, fx.Node)
        node.meta["val"] = target.meta["val"]
        known[write.target] = node
    return known[write.target]
