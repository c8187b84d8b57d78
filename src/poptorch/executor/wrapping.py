"""``trainingModel``, ``inferenceModel`` and ``load``: how programs come by an executor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from poptorch._logging import logger
from poptorch.errors import createPoptorchError
from poptorch.executor import instrumentation
from poptorch.executor.executor import PoplarExecutor, unwrapped
from poptorch.executor.stored import StoredExecutable
from poptorch.options import Options
from poptorch.options.run_time import restore_compiled


def trainingModel(
    model: nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a model for training on virtual IPUs: forward, backward and weight update in one compiled program.

    The model must compute its loss in ``forward``. Without an optimizer, SGD with a learning rate of 0.01 is used.

    >>> import poptorch
    >>> class WithLoss(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(2, 1)
    ...     def forward(self, x, target):
    ...         y = self.layer(x)
    ...         return y, torch.nn.functional.mse_loss(y, target)
    >>> training = poptorch.trainingModel(WithLoss())
    >>> output, loss = training(torch.ones(4, 2), torch.zeros(4, 1))
    >>> output.shape
    torch.Size([4, 1])
    """
    return PoplarExecutor(unwrapped(model), options, training=True, optimizer=optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """Wrap a model for inference on virtual IPUs.

    >>> import poptorch
    >>> inference = poptorch.inferenceModel(torch.nn.ReLU())
    >>> inference(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return PoplarExecutor(unwrapped(model), options, training=False)


def unwrap_model(model: nn.Module | PoplarExecutor) -> None:
    """Make a model that is wrapped for training an ordinary module for a while: its class, parameters and buffers.

    The module has the trained weights. The executor stays as it is, and :func:`rewrap_model` connects them again. A
    model that is not wrapped stays as it is.

    >>> import poptorch
    >>> model = torch.nn.Linear(1, 1)
    >>> executor = poptorch.trainingModel(model)
    >>> unwrap_model(model)
    >>> type(model), type(model.weight)
    (<class 'torch.nn.modules.linear.Linear'>, <class 'torch.nn.parameter.Parameter'>)
    """
    instrumentation.take_off(unwrapped(model))


def rewrap_model(model: nn.Module | PoplarExecutor) -> None:
    """Connect a model that :func:`unwrap_model` unwrapped with its executor again; any other model stays as it is.

    >>> import poptorch
    >>> model = torch.nn.Linear(1, 1)
    >>> executor = poptorch.trainingModel(model)
    >>> unwrap_model(model)
    >>> rewrap_model(model)
    >>> type(model).__name__
    'PoptorchLinear'
    """
    instrumentation.put_back(unwrapped(model))


def load(
    filename: str,
    edit_opts_fn: Callable[[Options], object] | None = None,
    *,
    trusted: bool = True,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """An executor that is ready to run, from a file written by ``save`` or ``compileAndExport``.

    ``edit_opts_fn`` may change the options in place before the model is wrapped, for instance to choose a device.

    The model in the file is pickled, and unpickling runs whatever the author of the file wants: load files that you
    trust only. With ``trusted=False`` nothing is unpickled. Then give the model yourself, and the optimizer of a
    training model: program, native code, example arguments and random state come from the file; weights and options
    are those that you give.

    >>> import pathlib, poptorch, tempfile
    >>> path = str(pathlib.Path(tempfile.mkdtemp()) / "relu.poptorch")
    >>> poptorch.inferenceModel(torch.nn.ReLU()).compileAndExport(path, torch.zeros(2))
    >>> poptorch.load(path)(torch.tensor([-1.0, 1.0])).tolist()
    [0.0, 1.0]
    >>> poptorch.load(path, trusted=False, model=torch.nn.ReLU())(torch.tensor([-1.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    stored = StoredExecutable(filename)
    if not trusted:
        return _loaded_without_pickle(stored, edit_opts_fn, model, optimizer)
    if model is not None or optimizer is not None:
        raise createPoptorchError(
            f"The model and the optimizer come from {filename}. Use trusted=False to take your own instead."
        )
    exported = stored.exported()
    _edit(exported.options, edit_opts_fn, filename)
    executor = PoplarExecutor(exported.model, exported.options, exported.training, optimizer=exported.optimizer)
    executor.load_stored(stored, exported)
    return executor


def _loaded_without_pickle(
    stored: StoredExecutable,
    edit_opts_fn: Callable[[Options], object] | None,
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
) -> PoplarExecutor:
    stored.check_version()
    if model is None:
        raise createPoptorchError(
            f"The model in {stored.name} is pickled, and trusted=False refuses to unpickle it. Give the model "
            "yourself: poptorch.load(..., trusted=False, model=...); everything else is loaded from the file."
        )
    options = Options()
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    executor = PoplarExecutor(model, options, stored.metadata.training, optimizer=optimizer)
    executor.load_stored(stored)
    if stored.rng_state is not None:
        executor.rng_state = stored.rng_state
    return executor


def _edit(options: Options, edit_opts_fn: Callable[[Options], object] | None, filename: str) -> None:
    """Let the user change options of a compiled program; those that are compiled in stay as they are."""
    if edit_opts_fn is None:
        return
    compiled = options.clone()
    edit_opts_fn(options)
    ignored = restore_compiled(options, compiled)
    if ignored:
        logger.warning(
            "edit_opts_fn changed %s, with no effect: the program in %s is compiled already. Only options of the run, "
            "such as useIpuId, count.",
            ", ".join(ignored),
            filename,
        )
