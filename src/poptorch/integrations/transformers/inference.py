"""Pipelines of ``transformers`` on IPUs: inputs of any length, programs of one."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
from poptorch.executor.executor import PoplarExecutor
from poptorch.executor.instrumentation import shallow_copy
from poptorch.executor.wrapping import inferenceModel
from poptorch.integrations.transformers.config import IPUConfig
from poptorch.integrations.transformers.generation import IPUGenerator
from poptorch.integrations.transformers.placing import placed

_BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "special_tokens_mask")


class _Call(nn.Module):
    """A model with some arguments that are always the same."""

    def __init__(self, model: nn.Module, constants: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self._constants = constants

    def forward(self, **tensors: torch.Tensor) -> Any:
        """The model's own outputs."""
        return self.model(**tensors, **self._constants)


class FixedShapes:
    """Calls a model with batches of any number of rows and any length up to ``max_length``, on programs of one size.

    Tokens are padded at the end and masked, rows are added at the end, and both are cut off the outputs.

    Args:
        model: The model; it is not changed.
        ipu_config: How it uses IPUs.
        max_length: Tokens of a row; ``None`` for inputs that have one size anyhow.
        batch_size: Rows that one replica takes at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        ipu_config: IPUConfig | None = None,
        max_length: int | None = None,
        batch_size: int = 1,
    ) -> None:
        self._model = model.eval()
        self._config = IPUConfig() if ipu_config is None else ipu_config
        self._max_length = max_length
        self._rows = batch_size * self._config.micro_batches(training=False)
        self._pad = getattr(getattr(model, "config", None), "pad_token_id", None) or 0
        self._takes_mask = "attention_mask" in inspect.signature(model.forward).parameters
        self._executors: dict[Any, PoplarExecutor] = {}

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """What the model returns for these arguments."""
        if args:
            inputs = {**inspect.signature(self._model.forward).bind_partial(*args).arguments, **inputs}
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        constants = {name: value for name, value in inputs.items() if name not in tensors}
        rows, length = self._size(tensors)
        padded = self._padded(tensors, length)
        executor = self._executor(padded, constants)
        pieces = []
        for begin in range(0, rows, self._rows):
            part = {name: value[begin : begin + self._rows] for name, value in padded.items()}
            missing = self._rows - min(self._rows, rows - begin)
            filled = {
                name: torch.cat([value, value[-1:].expand(missing, *value.shape[1:])]) for name, value in part.items()
            }
            pieces.append(executor(**filled))
        return self._cut(pieces, rows, length)

    def _size(self, tensors: dict[str, torch.Tensor]) -> tuple[int, int | None]:
        first = next(iter(tensors.values()))
        tokens = next((tensors[name] for name in _BY_TOKEN if name in tensors), None)
        if tokens is None or self._max_length is None:
            return len(first), None
        length = tokens.shape[1]
        if length > self._max_length:
            raise createPoptorchError(
                f"This text has {length} tokens, and the program was made for {self._max_length}. Pass a larger "
                "max_length, or truncate: pipeline(..., truncation=True) with model_max_length of the tokenizer."
            )
        return len(first), length

    def _padded(self, tensors: dict[str, torch.Tensor], length: int | None) -> dict[str, torch.Tensor]:
        if length is None:
            return tensors
        assert self._max_length is not None
        if self._takes_mask and "attention_mask" not in tensors:
            rows = len(next(iter(tensors.values())))
            tensors = {**tensors, "attention_mask": torch.ones(rows, length, dtype=torch.long)}
        missing = self._max_length - length
        padded = {}
        for name, value in tensors.items():
            if name in _BY_TOKEN and value.ndim >= 2 and value.shape[1] == length:
                behind = (0, 0) * (value.ndim - 2) + (0, missing)
                padded[name] = F.pad(value, behind, value=self._pad if name == "input_ids" else 0)
            else:
                padded[name] = value
        return padded

    def _executor(self, tensors: dict[str, torch.Tensor], constants: dict[str, Any]) -> PoplarExecutor:
        shapes = tuple((name, value.shape[1:], value.dtype) for name, value in sorted(tensors.items()))
        key = (shapes, tuple(sorted((name, repr(value)) for name, value in constants.items())))
        if key not in self._executors:
            for other in self._executors.values():
                if other.isAttachedToDevice():
                    other.detachFromDevice()
            executor = inferenceModel(_Call(self._model, constants), self._config.to_options(True))
            example = {
                name: value[:1].expand(self._rows, *value.shape[1:]).contiguous() for name, value in tensors.items()
            }
            with placed(self._model, self._config, training=False):
                executor.compile(**example)
            self._executors[key] = executor
        return self._executors[key]

    def _cut(self, pieces: list[Any], rows: int, length: int | None) -> Any:
        first = pieces[0]
        if isinstance(first, torch.Tensor):
            whole = torch.cat(pieces)[:rows] if first.ndim else first
            if length is not None and whole.ndim >= 2 and whole.shape[1] == self._max_length:
                whole = whole[:, :length]
            return whole
        if isinstance(first, dict):
            cut = {name: self._cut([piece[name] for piece in pieces], rows, length) for name in first}
            return type(first)(**cut)
        if isinstance(first, (tuple, list)):
            return type(first)(self._cut(list(each), rows, length) for each in zip(*pieces, strict=True))
        return first


def pipeline(
    task: str,
    model: Any,
    *args: Any,
    ipu_config: IPUConfig | None = None,
    max_length: int = 128,
    max_new_tokens: int = 20,
    batch_size: int = 1,
    **kwargs: Any,
) -> Any:
    """``transformers.pipeline`` with a model that runs on IPUs.

    Args:
        task: As in ``transformers``.
        model: A model, or the name or folder of one.
        *args: As in ``transformers``.
        ipu_config: How the model uses IPUs.
        max_length: The tokens of the compiled program: no text may be longer. For generation, those of the prompt.
        max_new_tokens: The most tokens to be generated.
        batch_size: Rows that one replica takes at a time.
        **kwargs: Anything else that ``transformers.pipeline`` takes, such as ``tokenizer``.
    """
    made = transformers.pipeline(task, model, *args, batch_size=batch_size, device="cpu", **kwargs)
    plain, proxy = made.model, shallow_copy(made.model)
    if task == "text-generation":
        proxy.__dict__["generate"] = IPUGenerator(plain, ipu_config, max_length, max_new_tokens, batch_size).generate
    elif hasattr(made, "generation_config") and plain.can_generate():
        raise createPoptorchError(f"The task {task!r} is not supported: it generates with an encoder and a decoder.")
    else:
        proxy.__dict__["forward"] = FixedShapes(plain, ipu_config, max_length, batch_size)
    made.model = proxy
    return made
