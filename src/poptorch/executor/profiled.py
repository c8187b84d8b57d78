"""Ranges of ``torch.profiler``: what a call is busy with, while a profiler of torch is running."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.profiler import record_function

from poptorch.executable.host_code import ELSEWHERE, Code, HostCode, HostStage
from poptorch.runtime.engine import Engine


@contextlib.contextmanager
def ranges(engine: Engine, training: bool) -> Iterator[None]:
    """For one call: a range around it, and inside one around each run of a stage and each update of the weights.

    Stages on threads of their own are seen by a profiler that looks at all threads.
    """
    plain = engine.executable.code
    engine.install(_with_ranges(plain))
    try:
        with record_function(f"poptorch: {'training' if training else 'inference'} call"):
            yield
    finally:
        engine.install(plain)


def _with_ranges(code: HostCode) -> HostCode:
    whole = len(code.stages) == 1
    return dataclasses.replace(
        code,
        stages=tuple(_stage(stage, whole) for stage in code.stages),
        update=None if code.update is None else _named("update", code.update),
        shards=tuple(_named(f"update of shard {number}", shard) for number, shard in enumerate(code.shards)),
        step=None if code.step is None else _named("whole model and update", code.step),
    )


def _stage(stage: HostStage, whole: bool) -> HostStage:
    if stage.code is ELSEWHERE:
        return stage
    name = "whole model" if whole else stage.description.label
    return dataclasses.replace(stage, code=_named(name, stage.code))


def _named(name: str, code: Code) -> Code:
    run: Callable[..., Any] = code.run

    @functools.wraps(run)
    def in_range(*args: Any) -> Any:
        with record_function(f"poptorch: {name}"):
            return run(*args)

    return Code(in_range, code.source)
