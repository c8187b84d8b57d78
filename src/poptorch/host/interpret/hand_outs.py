"""Gradients that leave a program before it is done, as soon as they are final."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from poptorch.program.finality import final_positions
from poptorch.program.graphs import copy_of
from poptorch.program.opinfo import info_of, set_info
from poptorch.program.program import Program

Buckets = Sequence[Sequence[int]]
"""Positions of outputs that are handed out together, in the order in which they are."""


def hand_out(bucket: int, values: Sequence[Any]) -> None:
    """Stands for the call of the function that takes the values of a bucket, which generated code is given."""


def with_hand_outs(program: Program, buckets: Buckets) -> Program:
    """The program with a call of :func:`hand_out` after the operation from which on each bucket is final.

    It returns the other outputs. A bucket is handed out after the ones before it.
    """
    handing, copied = copy_of(program)
    nodes, outputs = list(program.graph.nodes), program.returned()
    at = len(program.ports) - 1  # not before the last placeholder
    after: list[fx.Node] = []
    for bucket in buckets:
        at = max(at, *final_positions(program, [outputs[i][1] for i in bucket]))
        after.append(nodes[at])
    places: dict[fx.Node, fx.Node] = {}
    for number, (bucket, node) in enumerate(zip(buckets, after, strict=True)):
        values = [copied[outputs[i][1]] for i in bucket]
        with handing.graph.inserting_after(places.get(node, copied[node])):
            call = handing.graph.call_function(hand_out, (number, tuple(values)))
        set_info(call, info_of(values[0]))
        places[node] = call
    handed = {i for bucket in buckets for i in bucket}
    handing.set_outputs((o, copied[value]) for i, (o, value) in enumerate(outputs) if i not in handed)
    return handing
