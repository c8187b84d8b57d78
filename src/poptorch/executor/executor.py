"""The executor: a facade over the compiled program, its weights and its optimizer."""

from __future__ import annotations

import contextlib
import copyreg
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from poptorch import ambient
from poptorch._logging import logger
from poptorch._version import __version__
from poptorch.capture.arguments import BoundCall, Signature, check_devices, check_tracing_rules
from poptorch.capture.refusals import check_model
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.request import CompileRequest, is_offline, resolved_copy
from poptorch.errors import DeviceMoveError, Error, NestedModelError, NotCompiledError, createPoptorchError, misuse
from poptorch.executor import eager_loop, instrumentation, saving
from poptorch.executor.callbacks import Callback, Callbacks
from poptorch.executor.host_weights import HostWeights, Newest, ids_of
from poptorch.executor.inside import Inside
from poptorch.executor.optimizer_link import check_parameters, link_for
from poptorch.executor.private_model import private_model
from poptorch.executor.session import Session, Wrapped, check_options
from poptorch.executor.sharing import sharers
from poptorch.executor.stored import Exported, StoredExecutable
from poptorch.executor.tracebacks import folded, folding
from poptorch.executor.turns import Turns, in_turn
from poptorch.frames import warn_user
from poptorch.options import Options
from poptorch.placement import counting
from poptorch.placement.blocks import forget_compiled, note_compiled
from poptorch.printing import module_repr
from poptorch.profiling import Channel
from poptorch.profiling.trace import SpanKind

T = TypeVar("T")

_OFFLINE = (
    ": options.useOfflineIpuTarget() compiles without one. Export the model with compileAndExport(), or leave the "
    "option out to run it here. [PT1013]"
)


class PoplarExecutor(Inside):
    """A model wrapped for training or inference. Made by the two wrapping functions, or by libraries with a subclass.

    Calling it runs the compiled program; whatever else is asked of it and it does not have is asked of the model.
    ``model`` is what runs. With a ``user_model``, that one is shown and watched instead: another module around the same
    parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options | None,
        training: bool,
        poptorch_version: str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        user_model: nn.Module | None = None,
    ) -> None:
        if poptorch_version not in (None, __version__):
            raise createPoptorchError(f"This is version {__version__} of poptorch, not {poptorch_version}")
        user_model = model if user_model is None else user_model
        options = Options() if options is None else options
        if not isinstance(options, Options):
            raise createPoptorchError(
                f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options). "
                "Pass options=poptorch.Options(), and an optimizer by its name: optimizer=..."
            )
        for given in (model, user_model):
            if not isinstance(given, nn.Module):
                raise TypeError(
                    f"Expected a torch.nn.Module, got {given if isinstance(given, type) else type(given)}. Pass an "
                    "object of a class that derives from it; IPUContext compiles plain functions."
                )
            check_model(given)
        assert training or optimizer is None, "Optimizer should be None for inference"
        self._turns = sharers.turns_for(ids_of(model)) if training else Turns()
        """Threads wait here: the executor serves one of them at a time."""

        self._training = training
        self._options = resolved_copy(options, training)
        self._user_model, self._apart = user_model, user_model is not model
        self._session: Session | None = None
        """The compiled program; ``None`` as long as there is none."""

        self._traced = bool(self._options.Jit._tracing_requested)
        self._offline = is_offline(self._options)
        self._options.Precision.autocast_policy.apply(model, self._options)
        link = None
        if training:
            link = link_for(user_model, model, optimizer, self._options, self._turns)
        else:
            counting.check_inference_accumulation(
                self._options._execution_strategy, self._options.Training.gradient_accumulation
            )
        if training:
            self._shown, captured, changeable = user_model, instrumentation.plain_shallow_copy(model), model
            self._model = private_model(model, user_model)
            copied: dict[str, Any] | None = dict(vars(captured))
        else:
            own = changeable = instrumentation.shallow_copy(model)
            self._shown = self._model = own if user_model is model else user_model
            captured, copied = instrumentation.plain_view(own), None
        self._weights = HostWeights(captured, user_model, self._options, self, self._turns, training=training)
        self._wrapped = Wrapped(user_model, captured, changeable, copied, self._options, self._weights, link)
        self._signature = Signature(captured.forward)
        if training:
            instrumentation.instrument(user_model, self._weights, self)
        options._freeze()
        self._options._freeze()
        kind = "trainingModel" if training else "inferenceModel"
        channel = Channel(f"poptorch.{kind}")
        channel.instrument(self, "copyWeightsToDevice", "setOptimizer")
        self._trace = channel.trace()
        self._callbacks: Callbacks | None = None
        if self._trace.active:
            self._run = channel.timed(self._run, "__call__")  # type: ignore[method-assign]

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is not PoplarExecutor:  # what a library's own class keeps beside, only the library knows
            raise self._not_copied()
        return copyreg.__newobj__, (PoplarExecutor,), self._pickled()  # type: ignore[attr-defined]

    def __setstate__(self, data: bytes) -> None:
        content, groups = saving.unpickled(data)
        self.__init__(**content)  # type: ignore[misc]
        self._weights.restore_groups(groups)

    @in_turn
    def _pickled(self) -> bytes:
        model, user_model = (self._wrapped.captured, self._shown) if self._apart else (self._shown, None)
        return saving.pickled(self._wrapped, self._session, model, user_model)

    def __copy__(self) -> NoReturn:
        raise self._not_copied()

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise self._not_copied()

    def _not_copied(self) -> Error:
        return createPoptorchError(
            "An executor cannot be copied: it holds a device. Copy its .model, which has the trained weights, and wrap "
            "that; or store the executor with torch.save or pickle, and load it again."
        )

    # -- identity ------------------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The user's model (training), or the shallow copy of it that this executor runs (inference)."""
        return self._shown

    @property
    def options(self) -> Options:
        """The executor's own, frozen copy of the options."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and "_shown" not in self.__dict__:
            raise AttributeError(name)
        try:
            value = getattr(self._shown, name)
        except AttributeError as error:
            what = f"{type(self).__name__!r} object has no attribute {name!r}, and its model has none either: {error}"
            raise AttributeError(what, name=name, obj=self) from error
        if not self._training and isinstance(value, nn.Parameter):
            return self._weights.shown(value)
        if name in eager_loop.TYPE_CHANGES and self._session is not None:
            eager_loop.told_of_type_change(name)
        return value

    def __repr__(self) -> str:
        return module_repr(self._shown)

    # -- life cycle ----------------------------------------------------------------------------------------------

    def isCompiled(self) -> bool:
        """Whether there is a compiled program."""
        return self._session is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the program is loaded on a device."""
        return self._session is not None and self._session.is_attached

    @property
    def _is_attached(self) -> bool:
        """The name by which subclasses in libraries ask the same."""
        return self.isAttachedToDevice()

    def _compiled(self) -> Session:
        if self._session is None:
            raise misuse(
                NotCompiledError,
                "Model has not been compiled or has been destroyed. Call it, or its compile(), with arguments first.",
            )
        return self._session

    @folding
    @in_turn
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Capture and compile the model for arguments like these, and load it on the device.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.Linear(2, 1))
        >>> model.compile(torch.zeros(1, 2))
        >>> model.isCompiled()
        True
        """
        if self._session is not None:
            logger.warning("Call to compile() ignored: model already compiled")
            return
        call = self._bind(args, kwargs)
        with torch.inference_mode(False):
            self._compile(call)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> BoundCall:
        if ambient.current() is not None:
            raise misuse(
                NestedModelError,
                "A wrapped model was called inside the forward() of another one while that is compiled. Call the "
                "plain module there (the wrapped one's .model): it becomes part of the outer program.",
            )
        call = self._signature.bind(args, kwargs)
        if self._traced:
            check_tracing_rules(call, self._signature)
        return call

    def _compile(self, call: BoundCall, stored: StoredExecutable | None = None) -> Session:
        check_options(self._options)
        self._take_model()
        self._weights.fetch_newer()
        with self._trace.span(SpanKind.COMPILE):
            self._session = Session.compile(self._wrapped, call, stored, self._trace)
        note_compiled(self._user_model)
        if self._callbacks is not None:
            self._callbacks.compiled(self._session)
        return self._session

    def _take_model(self) -> None:
        """A training executor that was destroyed and is used again watches its model again."""
        link = self._wrapped.link
        if link is not None and instrumentation.watcher_of(self._user_model) is not self._weights:
            instrumentation.instrument(self._user_model, self._weights, self)
            link.connect()

    @in_turn
    def attachToDevice(self) -> None:
        """Reserve a device for the compiled program and load everything on it."""
        assert not self._offline, f"Trying to attach to an offline device{_OFFLINE}"
        self._compiled().attach()

    @in_turn
    def detachFromDevice(self) -> None:
        """Bring everything to the host and release the device; the compiled program is kept."""
        self._compiled().detach()

    @in_turn
    def destroy(self) -> None:
        """Release program and device; for training, leave the trained weights in the user's model and unwrap it."""
        session = self._session
        if session is not None:
            self.copyWeightsToHostIfNeeded()
            if self._wrapped.link is not None:
                self._wrapped.link.disconnect()
            session.release()
            self._session = None
            forget_compiled(self._user_model)
            if self._callbacks is not None:
                self._callbacks.ended()
        if not self._training:
            return
        if instrumentation.belongs_to(self._user_model, self._weights):
            instrumentation.restore(self._user_model)
        elif session is not None:
            raise createPoptorchError(
                "Cannot unwrap the model: model was never wrapped by this executor, or its class was changed since. "
                "Program and device are released."
            )

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # An argument, because the interpreter clears the names of modules before the last objects go away.
        if is_finalizing():
            return
        # A training executor may be dropped without destroy(): what it learned must not be lost.
        weights: HostWeights | None = self.__dict__.get("_weights")
        if weights is None or weights.newest is Newest.HOST:
            return
        with contextlib.suppress(Error, RuntimeError):
            try:
                self.copyWeightsToHost()
            except KeyboardInterrupt:  # there is no later: bring them all, then let the interrupt go on
                self.copyWeightsToHost()
                raise

    # -- running -------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on these arguments, the same that the user model's ``forward`` takes."""
        assert not self._offline, f"Trying to run a model on an offline device{_OFFLINE}"
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # device memory outlives the caller's mode
                return self(*args, **kwargs)
        try:
            return self._turns.take(self._run, self._bind(args, kwargs))
        except Exception as error:  # noqa: BLE001  (raised again)
            raise folded(error)  # noqa: B904  (the same error)

    def _run(self, call: BoundCall) -> Any:
        session = self._session
        if session is None:
            check_devices(call)
            session = self._compile(call)
        elif not session.is_attached:
            self.attachToDevice()
        if self._weights.fetch_newer():
            if self._training:
                session.follow_weights()
            else:
                logger.debug("Implicit copyWeightsToDevice()")
                self.copyWeightsToDevice()
        if self._callbacks is not None:
            return self._callbacks.run(session, call)
        return session.run(call)

    def addCallback(self, callback: Callback) -> RemovableHandle:
        """Tell ``callback`` what happens to this executor, until the returned handle is removed.

        >>> import poptorch
        >>> from poptorch.executor.callbacks import Callback
        >>> class Print(Callback):
        ...     def on_step(self, event):
        ...         print("step", event.step, event.result.tolist())
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> handle = model.addCallback(Print())
        >>> _ = model(torch.tensor([-1.0, 1.0]))
        step 1 [0.0, 1.0]
        >>> handle.remove()
        """
        if self._callbacks is None:
            self._callbacks = Callbacks(self, self._wrapped.link)
        return self._callbacks.add(callback)

    def sessionFor(self, *args: Any, **kwargs: Any) -> tuple[Session, list[torch.Tensor]]:
        """The loaded program, compiled for these arguments if there is none, and the tensors that it takes of them.

        >>> import poptorch
        >>> session, inputs = poptorch.inferenceModel(torch.nn.ReLU()).sessionFor(torch.ones(2))
        >>> [tuple(tensor.shape) for tensor in inputs]
        [(2,)]
        """
        if self._session is None:
            self.compile(*args, **kwargs)
        elif not self._session.is_attached:
            self.attachToDevice()
        session = self._compiled()
        return session, session.inputs_of(self._bind(args, kwargs))

    def withSession(self, function: Callable[[Session], T]) -> T:
        """What a function returns for the compiled program; meanwhile no other thread uses this executor.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> model.compile(torch.zeros(1))
        >>> model.withSession(lambda session: session.program.training)
        False
        """
        return self._turns.take(lambda: function(self._compiled()))

    # -- weights -------------------------------------------------------------------------------------------------

    @in_turn
    def copyWeightsToDevice(self) -> None:
        """Overwrite the device's parameters and buffers with the host's; training not yet fetched is lost."""
        self._compiled().upload_weights()

    @in_turn
    def copyWeightsToHost(self) -> None:
        """Overwrite the host's parameters and buffers with the device's."""
        self._compiled().download_weights()

    @in_turn
    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch weights if the device trained since the last time; tells whether it did."""
        return self._weights.download_if_needed()

    @in_turn
    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Load into the user's model and, if attached, onto the device."""
        result = self._weights.load_state_dict(self._shown, state_dict, strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    @in_turn
    def copyNamedBuffersToDevice(self) -> None:
        """Refresh the buffers declared with ``Options.updatableNamedBuffers`` from the host, and nothing else."""
        self._compiled().upload_buffers()

    # -- moves -----------------------------------------------------------------------------------------------------

    def cuda(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: the model runs on virtual IPUs."""
        raise misuse(
            DeviceMoveError,
            "The model runs on virtual IPUs, which use the CPU: leave out .cuda(), for the model and for its inputs.",
        )

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """What ``to`` of the model does; a GPU is refused."""
        named = [*args, kwargs.get("device")]
        if any(str(place).startswith("cuda") for place in named if isinstance(place, (str, torch.device))):
            self.cuda()
        return self._model.to(*args, **kwargs)

    # -- optimizer and random numbers ----------------------------------------------------------------------------

    @in_turn
    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace the optimizer, or re-read the attributes of the current one."""
        if self._wrapped.link is None:
            raise createPoptorchError("setOptimizer() needs a training model: this one is for inference")
        with self._weights.unwatched():
            check_parameters(optimizer, self._user_model, self._wrapped.captured)
            if self._session is not None:
                self._session.take_replacements(optimizer)
            self._wrapped.link.replace(optimizer, self._weights.download_if_needed)

    @property
    @in_turn
    def rng_state(self) -> list[int] | None:
        """Seed and position of the device's random numbers."""
        return self._compiled().rng_state

    @rng_state.setter
    @in_turn
    def rng_state(self, state: Sequence[int]) -> None:
        session, words = self._compiled(), list(state)
        if not words or not all(isinstance(word, int) for word in words):
            raise createPoptorchError(
                f"rng_state must be a list of integers that starts with the seed, as reading it returns, not {words!r}"
            )
        session.rng_state = words

    # -- files ---------------------------------------------------------------------------------------------------

    @in_turn
    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program to a file, which :func:`poptorch.load` and :meth:`loadExecutable` read.

        With ``export_model`` the model, its weights and the optimizer are in the file too, pickled: the class of the
        model must be found by its name, so classes made inside functions are exported without. The executor goes on
        as if nothing had happened.

        >>> import pathlib, poptorch, tempfile
        >>> path = str(pathlib.Path(tempfile.mkdtemp()) / "relu.poptorch")
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> output = model(torch.zeros(2))
        >>> model.save(path)
        >>> poptorch.load(path)(torch.tensor([-1.0, 1.0])).tolist()
        [0.0, 1.0]
        """
        session = self._compiled()
        saving.save(session, self.model, filename, export_model=export_model, save_rng_state=save_rng_state)

    @folding
    @in_turn
    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these, then :meth:`save`. Needs no device if the options ask for an offline
        target.

        >>> import pathlib, poptorch, tempfile
        >>> path = str(pathlib.Path(tempfile.mkdtemp()) / "relu.poptorch")
        >>> options = poptorch.Options().useOfflineIpuTarget()
        >>> poptorch.inferenceModel(torch.nn.ReLU(), options).compileAndExport(path, torch.zeros(2))
        """
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    @folding
    @in_turn
    def loadExecutable(self, filename: str) -> None:
        """Take the program from a file instead of compiling it.

        The model is captured again, with the arguments that the file was compiled for, and must give the same graph:
        same model, same options. Weights, optimizer and random numbers are this executor's own. Nothing in the file
        is unpickled.
        """
        if self._session is not None:
            raise createPoptorchError(
                f"Cannot load {filename}: the model is compiled already. Call destroy() first, or wrap it anew."
            )
        self.load_stored(StoredExecutable(filename))

    @in_turn
    def load_stored(self, stored: StoredExecutable, exported: Exported | None = None) -> None:
        """Take the program from an open file; of one that ``exported`` came from, everything else too."""
        if exported is not None:
            self._weights.restore_groups(exported.groups)
        stored.check_version()
        stored.check_custom_ops()
        call = stored.example(trusted=exported is not None)
        check_options(self._options)
        try:
            call.check_fits(self._signature)
            with torch.inference_mode(False):
                self._compile(call, stored)
        except Error:
            raise
        except Exception as error:
            raise createPoptorchError(
                f"{stored.name} was exported from another program: its example arguments do not fit this model's "
                f"forward(): {error}"
            ) from error
        if exported is not None and stored.rng_state is not None:
            self.rng_state = stored.rng_state

    def deviceProgram(self, *args: Any, **kwargs: Any) -> DeviceProgram:
        """What IPUs run: for these arguments, or without arguments what was compiled. Nothing is run or attached.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> model.deviceProgram(torch.ones(2)).ipus_per_replica
        1
        """
        if self._session is not None and not args and not kwargs:
            return self._session.executable.device
        request = self.compileRequest(*args, **kwargs)
        with torch.inference_mode(False), self._weights.unwatched():
            return lower_for_device(request)

    def compileRequest(self, *args: Any, **kwargs: Any) -> CompileRequest:
        """What a compilation for these arguments starts from. Nothing is compiled.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> model.compileRequest(torch.ones(2)).training
        False
        """
        call = self._bind(args, kwargs)
        check_options(self._options)
        return self._wrapped.request(call)


def unwrapped(model: Any) -> Any:
    """The user's model in an executor, or the module that ``torch.compile`` was given; anything else as it is.

    >>> import poptorch
    >>> model = torch.nn.ReLU()
    >>> unwrapped(poptorch.inferenceModel(model)) is unwrapped(model) is model
    True
    """
    if type(model).__name__ == "OptimizedModule" and isinstance(getattr(model, "_orig_mod", None), nn.Module):
        warn_user("torch.compile() has no effect on a wrapped model: the module that it was given is compiled for IPUs")
        return model.get_submodule("_orig_mod")
    return model._user_model if isinstance(model, PoplarExecutor) else model
