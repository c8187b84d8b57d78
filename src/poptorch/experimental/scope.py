"""``IPUScope``: the body of a ``with`` statement that runs on the IPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from poptorch import ambient
from poptorch.capture.arguments import ArgumentLayout, BoundCall, InputNormaliser
from poptorch.capture.block_recorder import BlockRecorder
from poptorch.capture.structure import flatten
from poptorch.capture.tracer import Recording, Request
from poptorch.compiler.checks import micro_batch_inputs
from poptorch.compiler.request import capture_settings, loop_of
from poptorch.enums import Compiler
from poptorch.errors import createPoptorchError
from poptorch.executor.tracebacks import folded, folding
from poptorch.experimental.arguments import check_dense, collects_gradient
from poptorch.experimental.compiled import (
    CompiledCode,
    check_gradients_fit,
    check_loadable,
    check_model,
    check_optimizer,
    checked_compiler,
    front_end_of,
    own_options,
)
from poptorch.experimental.function import StateModule, TorchErrors, check_results, warn_of_host_tensors
from poptorch.experimental.gradients import LeafGradients
from poptorch.experimental.optimizers import Optimizers, existing_state
from poptorch.options import Options


class IPUScope:
    """Captures what runs inside a ``with`` statement on tensors that are moved to, or made on, the device.

    The block runs once, on copies of the inputs. Calling the scope after it runs the compiled program. The tensors of
    ``model`` are state of the program; those of other modules are constants.

    >>> x = torch.tensor([1.0, 2.0])
    >>> with IPUScope([x]) as ipu:
    ...     y = x.to("ipu") * 2
    ...     ipu.outputs(y)
    >>> ipu(torch.tensor([3.0, 4.0])).tolist()
    [6.0, 8.0]
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        model: nn.Module | None = None,
        options: Options | None = None,
        training: bool = False,
        dict_optimizer: dict[str, Any] | None = None,
        compile_using: Compiler = Compiler.PopART,
        skip_compilation: bool = False,
    ) -> None:
        if not isinstance(inputs, (list, tuple)):
            raise ValueError("You can only pass a list or tuple as the inputs argument to IPUScope.")
        if not all(isinstance(tensor, torch.Tensor) for tensor in inputs):
            raise ValueError("You can only pass torch.Tensors as inputs to IPUScope.")
        check_dense(inputs)
        check_model(model)
        check_optimizer(dict_optimizer)
        self._compiler = checked_compiler(compile_using)
        self._options = own_options(options)
        self._inputs = list(inputs)
        self._compiles = not skip_compilation
        slots = [] if model is None else existing_state(list(model.parameters()))
        self._module = StateModule(model, slots)
        self._open: ExitStack | None = None
        self._recorder: BlockRecorder | None = None
        self._optimizers: Optimizers | None = None
        self._results: tuple[Any] | None = None
        self._gradients = LeafGradients()
        """Of the inputs; the values follow the results."""

        self._recording: Recording | None = None
        self._code: CompiledCode | None = None

    # -- the block -----------------------------------------------------------------------------------------------

    def __enter__(self) -> IPUScope:
        if self._recorder is not None:
            raise createPoptorchError("An IPUScope captures one block: make another one for another block.")
        if ambient.current() is not None:
            raise createPoptorchError("An IPUScope inside of code that is captured already: leave it out.")
        call = self._call(self._inputs)
        layout, loop = ArgumentLayout(call), loop_of(self._options, training=False)
        inputs = micro_batch_inputs(layout, call.positional, loop, InputNormaliser(), takes_empty=True)
        request = Request(self._module, layout, inputs, False, frozenset(), capture_settings(self._options))
        recorder = BlockRecorder(request, self._inputs)
        with ExitStack() as stack:
            recorder.open()
            stack.push(recorder.close)
            stack.enter_context(TorchErrors())
            self._optimizers = self._module.optimizers()
            stack.enter_context(self._optimizers.on_device(self._module.state_on_device()))
            self._open = stack.pop_all()
        self._recorder = recorder
        return self

    def outputs(self, tensors: Any) -> None:
        """Say, once and inside the block, what calls return: tensors in any structure."""
        if self._open is None or self._recorder is None:
            raise createPoptorchError("outputs() belongs into the block of an IPUScope.")
        if self._results is not None:
            raise createPoptorchError("outputs() was called already: give it everything that the block returns.")
        results, structure = flatten(tensors)
        check_results(structure)
        warn_of_host_tensors(results)
        self._results = (tensors,)

    def __exit__(
        self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._open is not None
        stack, self._open = self._open, None
        if value is not None:
            stack.__exit__(exc_type, value, traceback)
            if isinstance(value, Exception):
                folded(value)  # the block runs in the user's own frame, where no function of ours could do it
            return
        self._end(stack)

    @folding
    def _end(self, stack: ExitStack) -> None:
        """Close a block that has come to its end, and compile it."""
        with stack:
            recording = self._finished()
        if recording is not None:
            self._recording = recording
            self._code = self._compiled() if self._compiles else None

    def _finished(self) -> Recording | None:
        """What the block has recorded, while it is still open; ``None`` if it has no outputs."""
        assert self._recorder is not None
        assert self._optimizers is not None
        if self._results is None:
            return None
        if self._optimizers.finish():
            raise createPoptorchError(
                "An optimizer has made its state in the block, which runs only once, so that the state would start "
                "anew with every call. Capture the training step as a function with IPUContext."
            )
        gradients = self._recorder.gradients([collects_gradient(tensor) for tensor in self._inputs])
        self._gradients = LeafGradients(replaced=tuple(gradients))
        return self._recorder.finish((*self._results, list(gradients.values())))

    # -- the program ---------------------------------------------------------------------------------------------

    def loadExecutable(self, filename: str) -> None:
        """Take the executable of the block from a file instead of compiling it."""
        check_loadable(self._compiler)
        self._captured()
        self._code = self._compiled(filename)

    @folding
    def __call__(self, *args: torch.Tensor) -> Any:
        """Run the block on other tensors, in the order of the inputs; returns what ``outputs`` was given."""
        self._captured()
        if self._code is None:
            raise createPoptorchError("The block was captured with skip_compilation=True: call loadExecutable() first.")
        if len(args) != len(self._inputs):
            raise createPoptorchError(
                f"The block has {len(self._inputs)} inputs, but {len(args)} were given. Pass a tensor for each of them."
            )
        results, gradients = self._code.run(self._call(args))
        self._gradients.add(args, gradients)
        return results

    def _captured(self) -> Recording:
        if self._recording is None:
            raise createPoptorchError(
                "There is no program: the block of the IPUScope has not called outputs(), or has not ended. "
                "Call outputs() in it with what it returns."
            )
        return self._recording

    def _compiled(self, filename: str | None = None) -> CompiledCode:
        recording = self._captured()
        front_end = front_end_of(lambda request: recording, self._compiler)
        code = CompiledCode(self._module, self._call(self._inputs), self._options, front_end, filename)
        if self._gradients:
            check_gradients_fit(code)
        return code

    @staticmethod
    def _call(tensors: Sequence[torch.Tensor]) -> BoundCall:
        names = tuple(f"inputs[{index}]" for index in range(len(tensors)))
        return BoundCall(names, tuple(t.detach() for t in tensors), {})
