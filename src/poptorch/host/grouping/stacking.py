"""Several micro-batches as one program, so that the host computes them together.

Micro-batches of an IPU are small, and a host multiplies a few rows at half the speed of many. Between two updates of
the weights micro-batches know nothing of each other, so their inputs can be stacked: every value that depends on them
gets one more dimension in front, and each operation is done for all of them by torch's ``vmap``, or by a rule of
:mod:`poptorch.host.grouping.rules` where the operation itself takes more rows. Gradients are the exception.
They are added up in the end, and most of them are sums over rows anyway: those are summed over the rows of all
micro-batches at once.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._functorch.predispatch import lazy_load_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from poptorch.executable.groups import GroupedProgram
from poptorch.host.grouping.rules import PARTIAL_SUMS, TOTAL_RULES, Operand, StackedCall, rule_for
from poptorch.program.graphs import acts_in_order, descendants, remove_dead_code
from poptorch.program.opinfo import STREAMS, OpInfo, has_info, info_of, is_annotated, set_info
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, Role

aten = torch.ops.aten

_MOST_ELEMENTS = 1 << 20
"""How large gradients may be that exist once for each micro-batch before they are summed."""


class CannotGroup(Exception):
    """The program must be run one micro-batch at a time; says why."""


def stacked(program: Program, count: int) -> Program:
    """A program for ``count`` micro-batches at once.

    Inputs, results and anchored values have ``count`` as their first dimension; gradients are summed over it.
    """
    if acts_in_order(program):
        raise CannotGroup("it writes to buffers, or the order of its micro-batches shows in another way")
    if not program.numerics.plain:
        raise CannotGroup("each of its values is rounded or checked by itself")
    if any(port.dtype in (torch.float16, torch.bfloat16) for port in program.ports_of(Role.PARAMETER)):
        raise CannotGroup("short gradients are rounded after each micro-batch")
    lazy_load_decompositions()  # some of vmap's rules
    stacker = _Stacker(program, count)
    ports = [replace(p, shape=(count, *p.shape)) if p.role is Role.INPUT else p for p in program.ports]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            fakes = [torch.empty(port.shape, dtype=port.dtype) for port in ports]
            module = make_fx(stacker.outputs, tracing_mode="real")(*fakes)
    except (RuntimeError, ValueError, NotImplementedError) as error:  # whatever torch has to say against it
        raise CannotGroup(str(error).partition("\n")[0]) from error
    module.graph.set_codegen(fx.graph.CodeGen())
    fields = {field.name: getattr(program, field.name) for field in dataclasses.fields(Program)}
    fields |= {"graph_module": module, "ports": ports, "log": [*program.log]}
    result = GroupedProgram(**fields, group_size=count)
    remove_dead_code(result)
    return result


class _Stacker(fx.Interpreter):
    """Runs a program on stacked inputs, under a tracer.

    A value is *stacked*, with one micro-batch after the other, or a *total*, their sum, or the same for all of them.
    """

    def __init__(self, program: Program, count: int) -> None:
        super().__init__(program.graph_module, garbage_collect_values=False)  # rules look further back
        self._program = program
        self._count = count
        self._gradients = program.positions_of(OutputKind.GRADIENT)
        inputs = [node for node, port in program.placeholders() if port.role is Role.INPUT]
        random = [node for node in program.operations() if info_of(node).random is not None]
        self._dependent = descendants([*inputs, *random])
        self._wanted = self._wanted_as_totals()
        self._stacked = set(inputs)
        self._totals: set[fx.Node] = set()

    def _wanted_as_totals(self) -> set[fx.Node]:
        """Gradients, and what leads to nothing but gradients by linear operations."""
        others = {value for output, value in self._program.returned() if output.kind is not OutputKind.GRADIENT}
        wanted: set[fx.Node] = set()

        def leads(user: fx.Node) -> bool:
            return user.op == "output" or (user in wanted and self._is_linear(user))

        for node in reversed(list(self._program.operations())):
            if node in self._dependent and node not in others and node.users and all(map(leads, node.users)):
                wanted.add(node)
        return wanted

    def _is_linear(self, node: fx.Node) -> bool:
        """Whether its result for a sum is the sum of its results, in all operands that depend on the micro-batch."""
        if node.target in _SHAPES:
            return True
        if node.target in _SUMS:
            return len(node.args) == 2 and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args)
        first, *others = node.args
        independent = not any(isinstance(other, fx.Node) and other in self._dependent for other in others)
        return node.target in _MULTIPLES and isinstance(first, fx.Node) and independent and not node.kwargs

    # -- running -------------------------------------------------------------------------------------------------

    def outputs(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All outputs of the group."""
        values = self.run(*inputs, enable_io_processing=False)
        nodes = self._program.output_values()
        return tuple(self._output(*item) for item in zip(range(len(nodes)), nodes, values, strict=True))

    def _output(self, position: int, node: fx.Node, value: torch.Tensor) -> torch.Tensor:
        if position in self._gradients:
            return self._as_total(node, value)
        return value if node in self._stacked else value.expand(self._count, *value.shape).clone()

    def _as_total(self, node: fx.Node, value: torch.Tensor) -> torch.Tensor:
        if node in self._totals:
            return value
        return self._sum(node, value) if node in self._stacked else value * self._count

    def _sum(self, node: fx.Node, value: torch.Tensor) -> torch.Tensor:
        if value.numel() > _MOST_ELEMENTS:
            raise CannotGroup(f"{node.target} would make a large gradient for each micro-batch")
        return value.sum(0)

    def run_node(self, n: fx.Node) -> Any:
        """One operation, for all micro-batches."""
        if n.op != "call_function" or n not in self._dependent:
            result = super().run_node(n)
        elif info_of(n).random is not None:
            self._stacked.add(n)
            return self._draw(n, info_of(n))
        elif n.target is operator.getitem:
            result = self._item(n)
        elif n in self._wanted:
            result = self._total(n)
            self._totals.add(n)
        else:
            rule = rule_for(n.target)
            result = None if rule is None or not self._has_use_for(n) else rule(self._described(n))
            if result is None:
                result = self._mapped(n)
                self._stacked.add(n)
            else:
                (self._totals if n.target in PARTIAL_SUMS else self._stacked).add(n)
        if n.op == "call_function":
            _tag(info_of(n) if has_info(n) else None)
        return result

    def _has_use_for(self, n: fx.Node) -> bool:
        """Whether of a rule that sums some results over all micro-batches just these sums are wanted."""
        sums = PARTIAL_SUMS.get(n.target, ())
        return all(user in self._wanted for user in n.users if user.target is operator.getitem and user.args[1] in sums)

    def _item(self, n: fx.Node) -> Any:
        source, index = n.args
        assert isinstance(source, fx.Node)
        value = self.env[source][index]
        if source in self._totals and index in PARTIAL_SUMS[source.target]:
            self._totals.add(n)
        elif n in self._wanted:
            self._totals.add(n)
            return self._sum(n, value)
        else:
            self._stacked.add(n)
        return value

    # -- ways to compute an operation ------------------------------------------------------------------------------

    def _described(self, n: fx.Node) -> StackedCall:
        """The call with its values, for a rule."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)

        def operand(argument: Any, value: Any) -> Operand:
            if not isinstance(argument, fx.Node):
                return Operand(value, False)
            turned = argument.target is aten.t.default
            source = argument.args[0] if turned else argument
            assert isinstance(source, fx.Node)
            return Operand(value, argument in self._stacked, self.env[source] if turned else None)

        return StackedCall(
            n.target,
            [operand(*pair) for pair in zip(n.args, args, strict=True)],
            {key: operand(argument, kwargs[key]) for key, argument in n.kwargs.items()},
            self._count,
        )

    def _mapped(self, n: fx.Node) -> Any:
        """What ``vmap`` makes of it. Missing values of a tuple stay missing."""
        if not _can_be_mapped(n.target):
            raise CannotGroup(f"torch knows no way to compute {n.target} for several micro-batches at once")
        nodes = n.all_input_nodes
        structure: list[Any] = []

        def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
            values = dict(zip(nodes, tensors, strict=True))
            leaves, spec = tree_flatten(_call(n, values.__getitem__))
            structure[:] = [spec, [leaf is not None for leaf in leaves]]
            return [leaf for leaf in leaves if leaf is not None]

        dims = tuple(0 if node in self._stacked else None for node in nodes)
        found = iter(torch.func.vmap(call, in_dims=dims)(*(self.env[node] for node in nodes)))
        spec, present = structure
        return tree_unflatten([next(found) if there else None for there in present], spec)

    def _total(self, n: fx.Node) -> Any:
        """The sum over all micro-batches: of the operands, of the operation's own rows, or of the results."""
        if self._is_linear(n):
            return _call(n, lambda node: self._operand_of_sum(n, node))
        rule = TOTAL_RULES.get(n.target)
        result = None if rule is None else rule(self._described(n))
        return self._sum(n, self._mapped(n)) if result is None else result

    def _operand_of_sum(self, n: fx.Node, node: fx.Node) -> Any:
        if n.target in _MULTIPLES and node not in self._dependent:
            return self.env[node]
        return self._as_total(node, self.env[node])

    def _draw(self, n: fx.Node, info: OpInfo) -> Any:
        """Random numbers: every micro-batch draws its own, as if it were alone."""
        assert info.random is not None
        drawn = []
        for member in range(self._count):

            def value(node: fx.Node, member: int = member) -> Any:
                return self.env[node][member] if node in self._stacked else self.env[node]

            args = [value(node) for node in n.all_input_nodes]
            _tag(info.but(random=None))
            drawn.append(_call(n, dict(zip(n.all_input_nodes, args, strict=True)).__getitem__))
            _tag(info.but(random=info.random + member * STREAMS))
        alone = isinstance(drawn[0], torch.Tensor)
        parts = [drawn] if alone else zip(*drawn, strict=True)
        stacked = [torch.stack(list(part)) for part in parts]
        _tag(info.but(random=None))
        return stacked[0] if alone else tuple(stacked)


_SHAPES = {
    aten.t.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.transpose.int,
    aten.permute.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.clone.default,
    aten.neg.default,
}  # fmt: skip
_SUMS = {aten.add.Tensor, aten.sub.Tensor}
_MULTIPLES = {aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar}


def _can_be_mapped(target: Any) -> bool:
    """Whether ``vmap`` has a rule for an operation. Otherwise it would loop over micro-batches, as we do anyway."""
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("FuncTorchBatched", "FuncTorchBatchedDecomposition")
    return isinstance(target, torch._ops.OpOverload) and any(known(target.name(), key) for key in keys)


def _call(n: fx.Node, value: Callable[[fx.Node], Any]) -> Any:
    """The operation, with other values in place of its operands."""
    args: Any = fx.map_arg(n.args, value)
    kwargs: Any = fx.map_arg(n.kwargs, value)
    return n.target(*args, **kwargs)  # type: ignore[operator]


def _tag(info: OpInfo | None) -> None:
    """Annotate what the tracer recorded since the last time."""
    mode = get_proxy_mode()
    assert mode is not None
    for node in reversed(mode.tracer.graph.nodes):
        if node.op == "placeholder" or is_annotated(node):
            return
        set_info(node, info)
