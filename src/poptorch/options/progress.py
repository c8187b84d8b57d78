"""The progress bar shown while a model is compiled."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

_BAR_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class CompilationProgressBar:
    """Called with ``(done, total)`` as compilation advances; the bar closes when both are equal.

    :attr:`stage` says what is being done; it is shown with the next call.

    The bar is made at the first call, so that an object which is never called shows nothing. Nothing is shown
    either where standard error is neither a terminal nor a notebook: a log file is no place for a bar.
    """

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self.stage = ""

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = _bar(total)
        self._bar.total = total
        self._bar.n = min(done, total)
        self._bar.set_postfix_str(self.stage)
        if done >= total:
            self._bar.close()
            self._bar = None


def _bar(total: int) -> tqdm[Any]:
    """A bar of text, or in a notebook one that is drawn."""
    from tqdm.auto import tqdm  # at the first bar: it imports asyncio

    in_notebook = "ipykernel" in sys.modules
    return tqdm(total=total, desc="Graph compilation", bar_format=_BAR_FORMAT, disable=False if in_notebook else None)


class Progress:
    """The progress bar of one compilation; closed whatever happens."""

    def __init__(self, options: Any, total: int) -> None:
        self._bar = options.toDict().get("compilation_progress_bar_fn")
        self._begun = 0
        self._total = total

    def __enter__(self) -> Progress:
        return self

    def extend(self, count: int) -> None:
        """There are more stages than was known at first."""
        self._total += count

    def begin(self, stage: str) -> None:
        """The stage before is done, and this one begins."""
        self._begun += 1
        self.note(stage)

    def note(self, text: str) -> None:
        """Say more about the stage that goes on."""
        self._show(min(max(self._begun - 1, 0), self._total - 1), text)

    def _show(self, done: int, stage: str) -> None:
        if self._bar is not None:
            if isinstance(self._bar, CompilationProgressBar):
                self._bar.stage = stage
            self._bar(done, self._total)

    def __exit__(self, *error: object) -> None:
        self._show(self._total, "")
