"""Training that is started again after failures, and goes on from its latest checkpoint.

A launcher starts the processes of a job again when one of them is lost: ``torchrun --max-restarts 3 ...``, perhaps with
another number of them. One process alone needs no launcher for that: what ends with a
:class:`poptorch.RecoverableError` is done again here.
"""

from __future__ import annotations

import re
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from poptorch._logging import logger
from poptorch.distributed import process_group
from poptorch.errors import Error, RecoverableError, createPoptorchError
from poptorch.executor.executor import PoplarExecutor
from poptorch.integrations.sharded_checkpoint import Together, check_sharded, load_sharded, save_sharded

T = TypeVar("T")

_NAME = re.compile(r"checkpoint-(\d{8})")


class Run:
    """One attempt of a training, with the checkpoints of those before."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def restore(self, executor: PoplarExecutor) -> dict[str, Any]:
        """Go on from the latest checkpoint that is whole; returns the values that were saved with it.

        An empty dictionary at the beginning. The model has to be compiled: call ``executor.compile(...)`` with the
        first batch. All processes call this.
        """
        together = Together.of(executor.options)
        name = together.of_first(self._latest, f"look for checkpoints in {self._folder}")
        if not name:
            return {}
        logger.info("Training goes on from %s", self._folder / name)
        return load_sharded(self._folder / name, executor)

    def save(self, executor: PoplarExecutor, values: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint, with plain values of your own such as the step; all processes call this.

        Only the latest ones are kept.
        """
        together = Together.of(executor.options)
        name = together.of_first(self._next, f"choose a name in {self._folder}")
        save_sharded(self._folder / name, executor, values)
        together.of_first(self._forget_old_ones, f"remove old checkpoints from {self._folder}")

    def _names(self) -> list[str]:
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(path.name for path in found if _NAME.fullmatch(path.name))

    def _whole(self) -> Iterator[str]:
        """The names of checkpoints that can be read, the latest first."""
        for name in reversed(self._names()):
            try:
                check_sharded(self._folder / name)
            except (Error, OSError) as error:  # a process ended while it was written
                logger.warning("%s is left out: %s", self._folder / name, str(error)[:300])
                continue
            yield name

    def _latest(self) -> str:
        return next(self._whole(), "")

    def _next(self) -> str:
        names = self._names()
        return f"checkpoint-{int(names[-1].rpartition('-')[2]) + 1 if names else 0:08d}"

    def _forget_old_ones(self) -> None:
        kept = [name for name, _ in zip(self._whole(), range(self._keep), strict=False)]
        for name in self._names():
            if name not in kept and not (self._folder / name).is_symlink():
                shutil.rmtree(self._folder / name, ignore_errors=True)


def run_resumable(train: Callable[[Run], T], folder: str | Path, keep: int = 2, restarts: int = 3) -> T:
    """Call a function that trains, and that asks its argument where to begin; returns what it returns.

    The function makes its model, its optimizer and its executor anew each time. It calls
    ``run.restore(executor)`` before the first step and ``run.save(executor, {...})`` now and then. The latest ``keep``
    checkpoints stay in the folder, which all processes see.

    In a job of several processes, an error ends the process: the launcher starts all of them again. One process alone
    tries ``restarts`` times more after each :class:`poptorch.RecoverableError`.

    >>> import poptorch, tempfile, torch
    >>> class WithLoss(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return poptorch.identity_loss(super().forward(x), reduction="sum")
    >>> def train(run):
    ...     model = WithLoss(2, 1)
    ...     optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    ...     executor = poptorch.trainingModel(model, optimizer=optimizer)
    ...     executor.compile(torch.ones(1, 2))
    ...     begin = run.restore(executor).get("step", 0)
    ...     for step in range(begin, 3):
    ...         executor(torch.ones(1, 2))
    ...         run.save(executor, {"step": step + 1})
    ...     return begin
    >>> folder = tempfile.mkdtemp()
    >>> run_resumable(train, folder), run_resumable(train, folder)
    (0, 3)
    """
    if keep < 1:
        raise createPoptorchError(f"run_resumable: keep is {keep}; at least one checkpoint has to stay.")
    run = Run(Path(folder).expanduser(), keep)
    for left in range(restarts, -1, -1):
        try:
            return train(run)
        except RecoverableError as error:
            if left == 0 or process_group.current() is not None:
                raise
            logger.warning("Training begins again from its latest checkpoint, after this: %s", error.message)
            traceback.clear_frames(error.__traceback__)  # they hold the executor, and it holds IPUs
    raise AssertionError("the last attempt returns or raises")
