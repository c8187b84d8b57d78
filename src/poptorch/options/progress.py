"""The progress bar shown while a model is compiled."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

_BAR_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


class CompilationProgressBar:
    """Called with ``(done, total)`` as compilation advances; the bar closes when both are equal.

    The bar is made at the first call, so that an object which is never called shows nothing. Nothing is shown
    either where standard error is not a terminal: a log file is no place for a bar.
    """

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = tqdm(total=total, desc="Graph compilation", bar_format=_BAR_FORMAT, disable=None)
        self._bar.total = total
        self._bar.n = min(done, total)
        self._bar.refresh()
        if done >= total:
            self._bar.close()
            self._bar = None


class Progress:
    """The progress bar of one compilation; closed whatever happens."""

    def __init__(self, options: Any, total: int) -> None:
        self._bar = options.toDict().get("compilation_progress_bar_fn")
        self._done = 0
        self._total = total

    def __enter__(self) -> Progress:
        return self

    def step(self) -> None:
        """One more step is done."""
        self._done += 1
        self._show(min(self._done, self._total - 1))

    def _show(self, done: int) -> None:
        if self._bar is not None:
            self._bar(done, self._total)

    def __exit__(self, *error: object) -> None:
        self._show(self._total)
