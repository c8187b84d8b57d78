"""Values that are computed when the weights have changed, and kept with them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from poptorch.executable.host_program import HostProgram, Prepared
from poptorch.runtime.values.weights import Weights


class Preparing:
    """One :class:`~poptorch.executable.host_program.Prepared` step, ready to run."""

    def __init__(self, program: HostProgram, step: Prepared) -> None:
        run = program.kernels[step.kernel].run
        assert run is not None
        self._run = run
        at = {n: (a.name, i) for a in program.arguments for i, n in enumerate(a.values)}
        self._inputs = [at[number] for number in step.inputs]
        self._lock = threading.Lock()

    def __call__(self, parameters: Any, **others: Any) -> Sequence[Any]:
        """The values for these weights; a plain list of weights has none that outlive the call."""
        groups = {"parameters": parameters, **others}
        if not isinstance(parameters, Weights):
            return self._made(groups)
        with self._lock:  # replicas that share weights prepare them once
            found = parameters.derived.get(self)
            if found is None:
                found = parameters.derived[self] = self._made(groups)
            return found

    def _made(self, groups: dict[str, Any]) -> Sequence[Any]:
        return self._run([groups[name][index] for name, index in self._inputs])
