"""Operations that the outside world notices: prints, and calls of host functions, also inside loops and branches.

They happen in the order of the program, once per execution. Code generators and passes that move, repeat or drop
operations ask here first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import fx

from poptorch.ops.host import HOST_CALL
from poptorch.ops.printing import PRINT
from poptorch.ops.subgraph import body_texts, graph_from_text


def calls_host(node: fx.Node) -> bool:
    """Whether the node runs a function of the user, itself or in a body: it must stay, whoever needs its results."""
    return HOST_CALL in effects_of(node)


def is_ordered(node: fx.Node) -> bool:
    """Whether the node prints or calls the host, itself or in a body: it must neither move past another one, nor
    happen twice.
    """
    return bool(effects_of(node))


def effects_of(node: fx.Node) -> frozenset[Any]:
    """Which of the two kinds of effects the node has."""
    if node.target in (HOST_CALL, PRINT):
        return frozenset({node.target})
    return frozenset().union(*(_effects_of_text(text) for text in body_texts(node)))


@lru_cache(maxsize=512)
def _effects_of_text(text: str) -> frozenset[Any]:
    return frozenset().union(*(effects_of(node) for node in graph_from_text(text).nodes))
