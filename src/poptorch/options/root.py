"""``poptorch.Options``: all settings of one model."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from poptorch import environment
from poptorch._logging import logger, warn_deprecated
from poptorch.enums import OutputMode
from poptorch.options import comparison, config_file, json_settings
from poptorch.options.containers import OptionContainer, merge_into, require
from poptorch.options.groups import (
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from poptorch.options.passthrough import _PopartOptions
from poptorch.options.progress import CompilationProgressBar
from poptorch.options.setters import OptionsSetters
from poptorch.options.table import OPTIONS, keys_of, python_side_keys

if TYPE_CHECKING:
    from typing import Self

_GROUP_PROPERTIES = ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")


class Options(OptionsSetters, OptionContainer):
    """All settings of one model: how it is laid out, run, compiled and observed.

    Setters return the object, so that calls can be chained. Passing the object to a model or a data loader
    makes it read-only; :meth:`clone` gives a copy that can be changed.

    >>> opts = Options().deviceIterations(4).replicationFactor(2)
    >>> opts.device_iterations
    4
    >>> opts.Training.gradientAccumulation(8).gradient_accumulation
    8
    """

    _declared = keys_of("Options")
    _python_side = python_side_keys("Options")

    if not TYPE_CHECKING:  # type checkers know that there are no arguments

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if (args or kwargs) and cls.__init__ is Options.__init__:
                name = next(iter(kwargs), "deviceIterations")
                value = kwargs.get(name, 4)
                raise TypeError(
                    "Options() takes no arguments: options are set by methods, for instance "
                    f"poptorch.Options().{name}({value!r})."
                )
            return super().__new__(cls)

    def __init__(self) -> None:
        self._popart = _PopartOptions()
        self._training = _TrainingOptions(self._popart)
        self._precision = _PrecisionOptions(self._popart)
        self._tensor_locations = _TensorLocationOptions()
        self._distributed = _DistributedOptions()
        self._jit = _JitOptions()
        super().__init__()
        self._apply_environment()

    def _apply_environment(self) -> None:
        cache_dir = environment.CACHE_DIR.read()
        if cache_dir is not None:
            logger.info("POPTORCH_CACHE_DIR is set: executables are cached in %s", cache_dir)
            self.enableExecutableCaching(cache_dir)
        defaults = environment.DEFAULT_OPTIONS.read()
        if defaults is not None:
            json_settings.apply(self, defaults, origin=environment.DEFAULT_OPTIONS.name)

    # --- groups ---------------------------------------------------------------------------------------------

    @property
    def Training(self) -> _TrainingOptions:
        """How gradients are accumulated, combined and scaled."""
        return self._training

    @property
    def Precision(self) -> _PrecisionOptions:
        """Number formats: casting, partials, rounding, floating-point exceptions."""
        return self._precision

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where weights, activations, optimizer states and accumulators live."""
        return self._tensor_locations

    @property
    def Distributed(self) -> _DistributedOptions:
        """Which of how many processes this one is."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """How the graph is captured."""
        return self._jit

    @property
    def _Popart(self) -> _PopartOptions:
        """Settings handed to the backend as they are."""
        return self._popart

    @property
    def Popart(self) -> _PopartOptions:
        """Deprecated: use ``_Popart``."""
        warn_deprecated("Options.Popart", "Options._Popart")
        return self._popart

    # --- questions ------------------------------------------------------------------------------------------

    def defaultOutputMode(self) -> bool:
        """Whether the output mode is still to be chosen by the kind of model.

        >>> Options().defaultOutputMode()
        True
        >>> Options().outputMode(OutputMode.All).defaultOutputMode()
        False
        """
        return bool(self.output_mode == OutputMode.Default)

    def defaultAnchorMode(self) -> bool:
        """Deprecated: use :meth:`defaultOutputMode`."""
        warn_deprecated("Options.defaultAnchorMode", "defaultOutputMode")
        return self.defaultOutputMode()

    # --- files ----------------------------------------------------------------------------------------------

    def loadFromFile(self, filepath: str, *, trusted: bool = False) -> Self:
        """Apply the settings in a text file: a call or assignment on each line, without ``options.``.

        Blank lines and lines that start with ``#`` are skipped. A line may call setters with numbers, texts, lists,
        options, and the enums and strategies of ``poptorch``. The file is read, not run: anything else in it, and a
        line that is not Python, raises ``ConfigFileError`` before anything is applied. With ``trusted`` the file is
        executed as Python code with the names ``poptorch`` and ``options``.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "my.conf"
        >>> _ = path.write_text("deviceIterations(4)\\nTraining.gradientAccumulation(8)  # more\\n")
        >>> Options().loadFromFile(str(path)).Training.gradient_accumulation
        8
        """
        config_file.load(self, filepath, trusted)
        return self

    def from_json(self, string: str) -> Self:
        """Apply the settings in a JSON object: each name is the path of a setter, each value its argument(s).

        >>> opts = Options().from_json('{"deviceIterations": 4, "outputMode": ["OutputMode.EveryN", 2]}')
        >>> opts.device_iterations, opts.output_return_period
        (4, 2)
        """
        json_settings.apply(self, string)
        return self

    def to_json(self) -> str:
        """The settings that differ from the defaults, as text for :meth:`from_json`.

        A setting that JSON cannot express, such as an execution strategy, is an error that names it.

        >>> text = Options().deviceIterations(4).outputMode(OutputMode.EveryN, 2).to_json()
        >>> print(text)
        {
         "deviceIterations": 4,
         "outputMode": [
          "OutputMode.EveryN",
          2
         ]
        }
        >>> Options().from_json(text).output_return_period
        2
        """
        return json_settings.written(self)

    def differences(self) -> dict[str, Any]:
        """What differs from the defaults: the path of each such setting, and its value.

        >>> opts = Options().deviceIterations(4)
        >>> opts.Training.gradientAccumulation(8).toDict()["gradient_accumulation"]
        8
        >>> opts.differences()
        {'device_iterations': 4, 'Training.gradient_accumulation': 8}
        """
        return comparison.differences(self)

    # --- copies and conversions -----------------------------------------------------------------------------

    def clone(self) -> Self:
        """An independent copy that can be changed, even if this object is read-only.

        >>> opts = Options().deviceIterations(4)
        >>> opts._freeze()
        >>> opts.clone().deviceIterations(8).device_iterations
        8
        """
        return copy.deepcopy(self)

    def toDict(self) -> dict[str, Any]:
        """Everything that the backend needs to know, as one flat dictionary. Choose an output mode first.

        >>> Options().outputMode(OutputMode.All).toDict()["replication_factor"]
        1
        """
        require(
            not self.defaultOutputMode(),
            "An output mode must be picked before serialisation: call outputMode with another than Default",
        )
        merged: dict[str, Any] = {}
        merge_into(merged, self._execution_strategy.backendOptions())
        merge_into(merged, self._popart.options)
        merge_into(merged, self._values)
        for group in (self._training, self._distributed, self._tensor_locations):
            group.update(merged)
        if self._show_compilation_progress_bar:
            merge_into(merged, {"compilation_progress_bar_fn": CompilationProgressBar()})
        return merged

    def _hint(self, name: str) -> str:
        groups = [row.group for row in OPTIONS if row.method == name and row.group in _GROUP_PROPERTIES]
        if groups:
            return f" It belongs to a group: options.{groups[0]}.{name}(...)."
        return super()._hint(name)

    def _freeze(self) -> None:
        super()._freeze()
        for name in _GROUP_PROPERTIES:
            getattr(self, name)._freeze()

    def _unfreeze(self) -> None:
        super()._unfreeze()
        for name in _GROUP_PROPERTIES:
            getattr(self, name)._unfreeze()

    def __repr__(self) -> str:
        values = [f"{key}={value!r}" for key, value in self._values.items()]
        groups = [f"{name}={getattr(self, name)!r}" for name in _GROUP_PROPERTIES]
        return f"{type(self).__name__}({', '.join(values + groups)})"

    def __str__(self) -> str:
        changed = self.differences()
        if not changed:
            return f"{type(self).__name__}: all as by default"
        lines = [f"  {name} = {value!r}" for name, value in changed.items()]
        return "\n".join([f"{type(self).__name__} that differ from the defaults:", *lines])
