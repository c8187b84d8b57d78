"""``IPUContext``: a function that runs on the IPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from poptorch import ambient
from poptorch.capture.structure import unflatten
from poptorch.enums import Compiler
from poptorch.errors import createPoptorchError
from poptorch.executor.tracebacks import folding
from poptorch.experimental.arguments import Arguments
from poptorch.experimental.compiled import (
    CompiledCode,
    DeviceState,
    check_gradients_fit,
    check_loadable,
    check_model,
    check_optimizer,
    checked_compiler,
    front_end_of,
    own_options,
)
from poptorch.experimental.function import OPTIMIZER_STATE, Captured, FunctionModule, record_function
from poptorch.experimental.later_calls import LaterCalls
from poptorch.experimental.optimizers import StateSlot, existing_state
from poptorch.options import Options
from poptorch.program.program import Program


def IPUContext(
    func: Callable[..., Any] | None = None,
    *,
    compiler: Compiler = Compiler.MLIR,
    options: Options | None = None,
    training: bool = False,
    dict_optimizer: dict[str, Any] | None = None,
    model: nn.Module | None = None,
) -> Any:
    """Compile a function for the IPU; a call of the result, or a decorator.

    Tensors among the arguments are inputs of the program. All other arguments are frozen at the first call. The tensors
    of ``model`` are state, which lives on the device; those of other modules are constants. The function may contain a
    whole training step: ``training`` says nothing that the function does not.

    >>> import poptorch
    >>> @IPUContext
    ... def double(x):
    ...     return x + x
    >>> double(torch.tensor([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """
    if func is None:
        return functools.partial(
            IPUContext,
            compiler=compiler,
            options=options,
            training=training,
            dict_optimizer=dict_optimizer,
            model=model,
        )
    check_optimizer(dict_optimizer)
    return CapturedFunction(func, checked_compiler(compiler), options, model)


class CapturedFunction:
    """A function with its compiled program. Made by :func:`IPUContext`."""

    def __init__(
        self, function: Callable[..., Any], compiler: Compiler, options: Options | None, model: nn.Module | None
    ) -> None:
        if not callable(function):
            raise createPoptorchError(f"IPUContext needs a function or another callable, not {function!r}")
        check_model(model)
        functools.update_wrapper(self, function)
        self._function = function
        self._front_end = front_end_of(record_function, compiler)
        self._options = own_options(options)
        self._model = model
        self._code: CompiledCode | None = None
        self._module: FunctionModule | None = None
        self._later: LaterCalls | None = None
        """What calls after the first one are compared with."""

        self._slots: list[tuple[StateSlot, torch.Tensor]] | None = None
        """State of optimizers; ``None`` before the first compilation."""

        self._carried: DeviceState | None = None
        """What an earlier program left on the device."""

    @folding
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Capture and compile for arguments like these.

        >>> f = IPUContext(torch.exp)
        >>> f.compile(torch.zeros(1))
        >>> f(torch.zeros(1)).tolist()
        [1.0]
        """
        self._compile(self._first(args, kwargs))

    def loadExecutable(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Take the executable from a file instead of compiling it, for arguments like these."""
        check_loadable(self._front_end.compiler)
        self._compile(self._first(args, kwargs), filename)

    @property
    def program(self) -> Program:
        """The compiled program; ``print`` it to read it."""
        if self._code is None:
            raise createPoptorchError("The function has not been compiled: call it, or its compile(), first.")
        return self._code.session.program

    @folding
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on these arguments; the first call compiles it."""
        if ambient.current() is not None:
            return self._function(*args, **kwargs)  # part of the program that is being captured
        arguments = self._first(args, kwargs) if self._later is None else self._later.arguments(args, kwargs)
        if self._must_take_gradients(arguments):
            self._carry_on()
        if self._code is None:
            self._compile(arguments)
        assert self._code is not None
        assert self._module is not None
        assert self._module.captured is not None
        captured = self._module.captured
        captured.numbers.warn_of_changes()
        values = self._code.run(arguments.call(self._module.gradient_inputs))
        ends = captured.num_results, captured.num_results + len(captured.new_state)
        captured.gradients.give(arguments.tensors, values[ends[1] :])
        if captured.new_state:
            self._keep(captured, values[ends[0] : ends[1]])
        return unflatten(captured.structure, values[: ends[0]])

    def _first(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments of the call that the function is captured with."""
        model = self._model
        return Arguments.of(args, kwargs, [] if model is None else [*model.parameters(), *model.buffers()])

    def _compile(self, arguments: Arguments, filename: str | None = None) -> None:
        if self._code is not None:
            raise createPoptorchError("The function is compiled already: a new IPUContext compiles it anew.")
        if self._slots is None:
            self._slots = [] if self._model is None else existing_state(list(self._model.parameters()))
        later = self._later or LaterCalls(self._function, arguments)
        module = FunctionModule(self._function, arguments, self._model, self._slots, _has_gradients(arguments))
        code = CompiledCode(module, arguments.call(module.gradient_inputs), self._options, self._front_end, filename)
        assert module.captured is not None
        if module.captured.new_state:
            _check_one_micro_batch(code)
        if module.captured.gradients:
            check_gradients_fit(code)
        if self._carried is not None:
            code.carry_on(self._carried)
        self._code, self._module, self._later = code, module, later

    def _must_take_gradients(self, arguments: Arguments) -> bool:
        """Whether leaf arguments have gradients, and had none when the function was captured."""
        return self._module is not None and not self._module.gradient_inputs and _has_gradients(arguments)

    def _carry_on(self) -> None:
        """The next program is another one. It goes on with what is on the device."""
        if self._code is not None:
            self._carried = self._code.state()
            self._code.release()
            self._code = None

    def _keep(self, captured: Captured, values: Sequence[torch.Tensor]) -> None:
        """The first step has made state. From the next call on it is state of the program, like the parameters."""
        assert self._code is not None
        assert self._slots is not None
        self._carry_on()
        assert self._carried is not None
        state = self._carried.values
        known = [(slot, state[f"{OPTIMIZER_STATE}.{index}"]) for index, (slot, _) in enumerate(self._slots)]
        new = [
            (found.slot, value.as_subclass(torch.Tensor).reshape(found.value.shape))
            for found, value in zip(captured.new_state, values, strict=True)
        ]
        self._slots = known + new


def _has_gradients(arguments: Arguments) -> bool:
    return any(arguments.tensors[index].grad is not None for index in arguments.leaves())


def _check_one_micro_batch(code: CompiledCode) -> None:
    loop = code.session.executable.device.loop
    if loop.device_iterations * loop.replicas > 1:
        code.release()
        raise createPoptorchError(
            "An optimizer makes its state in its first step, and that step is another program than those that follow. "
            "With deviceIterations or replicationFactor, one call would need both. Call the function without them."
        )
