"""The zoo: small real architectures, by name. Each mode of execution is tested with all of them.

from zoo_all import ARCHITECTURES
model = ARCHITECTURES["lenet"].trainable()
inputs, targets = ARCHITECTURES["lenet"].batch(rows=4)
output, loss = model(*inputs, *targets)
"""

from __future__ import annotations

import zoo_generative
import zoo_language
import zoo_relational
import zoo_sequence
import zoo_vision
from zoo_architecture import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for room in (zoo_vision, zoo_sequence, zoo_language, zoo_generative, zoo_relational)
    for architecture in room.ARCHITECTURES
}
