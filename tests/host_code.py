"""Running other code than an executor compiled: what tests put between its stages and the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from poptorch.executable.host_code import Code, HostStage


def change_stages(executor: Any, change: Callable[[int, HostStage], Code]) -> None:
    """Let every stage run the code that ``change`` returns for its number and itself."""
    code = executor.executable.code
    stages = tuple(dataclasses.replace(s, code=change(i, s)) for i, s in enumerate(code.stages))
    executor.session.install(dataclasses.replace(code, stages=stages))


def change_code(executor: Any, **fields: Any) -> None:
    """Let the executor run with other parts of its code."""
    executor.session.install(dataclasses.replace(executor.executable.code, **fields))


def runner_of(executor: Any) -> Any:
    """What runs the tasks of a model on several IPUs or replicas."""
    return executor.session.engine.parallel
