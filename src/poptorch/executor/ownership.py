"""Which tensors of a model a process needs, where several share each replica."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.request import request_for
from poptorch.options import Options
from poptorch.program.program import Role


def tensorsOfProcess(model: nn.Module, options: Options, *args: Any, **kwargs: Any) -> list[str]:
    """The parameters and buffers that this process needs for a model that is called with these arguments.

    All tensors of the model, and the arguments, may be on the meta device. Give values to the listed ones before the
    model is wrapped. With ``options.Distributed.processesPerReplica``, the others may stay there: a model that is too
    large for one machine can then run on several. Without it, all that take part are listed.

    >>> import torch, poptorch
    >>> with torch.device("meta"):
    ...     model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    >>> _ = poptorch.BeginBlock(model[1], ipu_id=1)
    >>> options = poptorch.Options()
    >>> _ = options.Distributed.configureProcessId(1, 2).processesPerReplica(2)
    >>> poptorch.tensorsOfProcess(model, options, torch.empty(8, 4, device="meta"))
    ['1.weight', '1.bias']
    """
    device = lower_for_device(dataclasses.replace(request_for(model, options, args, kwargs), only_placed=True))
    held = (Role.PARAMETER, Role.BUFFER)
    return [port.name for port in device.program.ports if port.role in held and device.uses(port.name)]
