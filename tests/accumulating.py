"""The accumulator of the runtime without a compiled model around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from poptorch.executable.groups import HostLoop
from poptorch.libraries.choice import MKL_ALONE


def executable(
    names: Sequence[str], loop: HostLoop, running: bool = False, types: Mapping[str, torch.dtype] | None = None
) -> Any:
    """What ``poptorch.runtime.accumulate`` looks at in an executable whose weights have these names."""
    update = SimpleNamespace(accumulators=dict(types or {}), running_mean=running, held={})
    device = SimpleNamespace(program=SimpleNamespace(gradients=list(names)), settings=SimpleNamespace(groups={}))
    code = SimpleNamespace(loop=loop, alone=False, libraries=MKL_ALONE)
    return cast(Any, SimpleNamespace(device=device, update=update, code=code))
