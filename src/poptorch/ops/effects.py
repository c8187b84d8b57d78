"""Operations that the outside world notices: prints, calls of host functions, exchanges between replicas.

They may stand inside of loops and branches.

They happen in the order of the program, once per execution. Code generators and passes that move, repeat or drop
operations ask here first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from torch import fx

from poptorch.ops.collectives import COLLECTIVES
from poptorch.ops.custom import registry
from poptorch.ops.custom.call import CUSTOM_OP, CUSTOM_OP_GRADIENT
from poptorch.ops.host import HOST_CALL
from poptorch.ops.printing import PRINT
from poptorch.ops.subgraph import body_texts, graph_from_text


def calls_host(node: fx.Node) -> bool:
    """Whether the node runs a function of the user, itself or in a body: it must stay, whoever needs its results."""
    return HOST_CALL in effects_of(node)


def communicates(node: fx.Node) -> bool:
    """Whether the result depends on the replica, because the node exchanges values with others, itself or in a body."""
    return any(effect in _COMMUNICATING for effect in effects_of(node))


def is_ordered(node: fx.Node) -> bool:
    """Whether the node prints, calls the host or communicates, itself or in a body: it must neither move past another
    one, nor happen twice.
    """
    return bool(effects_of(node))


_COMMUNICATING = (*COLLECTIVES, CUSTOM_OP)
_PLAIN = frozenset((HOST_CALL, PRINT, *COLLECTIVES))


def _is_registered_as_talking(node: fx.Node) -> bool:
    domain, name, version = node.args[1:4]
    return registry.communicates(str(domain), str(name), cast(int, version))


def effects_of(node: fx.Node) -> frozenset[Any]:
    """Which kinds of effects the node has, each as the operator that has it."""
    if node.target in _PLAIN:
        return frozenset({node.target})
    if node.target in (CUSTOM_OP, CUSTOM_OP_GRADIENT) and _is_registered_as_talking(node):
        return frozenset({CUSTOM_OP})
    return frozenset().union(*(_effects_of_text(text) for text in body_texts(node)))


@lru_cache(maxsize=512)
def _effects_of_text(text: str) -> frozenset[Any]:
    return frozenset().union(*(effects_of(node) for node in graph_from_text(text).nodes))
