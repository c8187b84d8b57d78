"""The fitted constants of the IPU Model: few, with names, the same for every model.

Other constants are public facts, follow from such, or were chosen by hand; the page about accuracy lists the choices
that were made with the published numbers in view. ``python -m poptorch.ipu_model.validate`` says which values fit
best to the published numbers that each of them names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Knob:
    """A fitted constant."""

    name: str
    value: float
    meaning: str
    fitted_on: str


PLANNED_COMPUTE = Knob(
    "planned compute",
    1.14,
    "Vertices of products and convolutions take this many times as long as in the best plan: real plans are chosen for "
    "several passes together, and tiles are not equally loaded.",
    "all throughputs of applications",
)

VERTEX_CODE = Knob(
    "vertex code",
    0.62,
    "Share of the open assembly of a family of codelets that is on a tile: only the variants that are used.",
    "vertex code of BERT-Large inference",
)

VERTEX_STATE = Knob(
    "vertex state",
    0.71,
    "Share of the state of vertices that is stored: equal fields are stored once.",
    "vertex state of BERT-Large inference",
)

EXCHANGE_CODE = Knob(
    "exchange code",
    0.175,
    "Share of the instructions of exchanges that is stored: neighbouring pieces are sent together, and equal exchanges "
    "share their code.",
    "exchange code of BERT-Large inference",
)

KNOBS = (PLANNED_COMPUTE, VERTEX_CODE, VERTEX_STATE, EXCHANGE_CODE)
"""All of them."""

__all__ = ["EXCHANGE_CODE", "KNOBS", "PLANNED_COMPUTE", "VERTEX_CODE", "VERTEX_STATE", "Knob"]
