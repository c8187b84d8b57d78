"""From which operation on a gradient is final: it is computed, and no later operation of the program looks at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import fx

from poptorch.program.graphs import memory_root
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, value_of


def last_reads(graph: fx.Graph) -> dict[fx.Node, int]:
    """For each node that makes memory, the position of the last operation that reads it; its own if there is none."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    last = dict(position)
    for node in graph.nodes:
        if node.op != "output":
            for operand in node.all_input_nodes:
                root = memory_root(operand)
                last[root] = max(last[root], position[node])
    return last


def final_positions(program: Program, values: Sequence[fx.Node]) -> list[int]:
    """After which operation, counted among all nodes, each of some values is final."""
    last = last_reads(program.graph)
    position = {node: i for i, node in enumerate(program.graph.nodes)}
    return [max(position[value], last[memory_root(value)]) for value in values]


def in_portions(ready: Mapping[int, int], sizes: Mapping[int, int], least: int) -> Iterator[tuple[int, list[int]]]:
    """Items in the order in which they are ready, in portions of at least some size, and when each portion is.

    >>> list(in_portions({0: 9, 1: 5, 2: 5, 3: 2}, {0: 1, 1: 4, 2: 4, 3: 4}, least=4))
    [(2, [3]), (5, [1, 2]), (9, [0])]
    """
    portion: list[int] = []
    size = 0
    for item in sorted(ready, key=lambda i: (ready[i], i)):
        if portion and size >= least and ready[item] > ready[portion[-1]]:
            yield ready[portion[-1]], sorted(portion)
            portion, size = [], 0
        portion.append(item)
        size += sizes[item]
    if portion:
        yield ready[portion[-1]], sorted(portion)


def gradient_buckets(program: Program, least: int) -> tuple[tuple[str, ...], ...]:
    """The names of gradients that are final at about the same time, in the order of back-propagation.

    Each bucket but the last has at least ``least`` bytes. The program alone decides.
    """
    values = program.values_of(OutputKind.GRADIENT)
    ready = dict(enumerate(final_positions(program, values)))
    sizes = {i: value_of(value).numel() * value_of(value).element_size() for i, value in enumerate(values)}
    names = program.gradients
    return tuple(tuple(names[i] for i in portion) for _, portion in in_portions(ready, sizes, least))
