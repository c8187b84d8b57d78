"""Generation on IPUs: one program reads the prompt, another one makes a token after the other beside its caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.cache_utils import Cache, StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from poptorch.errors import createPoptorchError
from poptorch.executor.executor import PoplarExecutor
from poptorch.executor.instrumentation import shallow_copy
from poptorch.executor.wrapping import inferenceModel
from poptorch.integrations.transformers.config import IPUConfig
from poptorch.integrations.transformers.placing import placed
from poptorch.options import Options
from poptorch.placement.strategies import ShardedExecution


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """The place of each token in its row, where a mask says which tokens are there."""
    return (mask.cumsum(-1) - 1).clamp_min(0)


def _state(cache: StaticCache) -> list[torch.Tensor]:
    """What a cache holds, layer by layer."""
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values, layer.cumulative_length)]


class _ReadPrompt(nn.Module):
    """The logits behind a prompt, and the caches after it."""

    def __init__(self, model: nn.Module, length: int) -> None:
        super().__init__()
        self.model = model
        self._length = length

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor) -> Any:
        """Run the whole prompt at once."""
        cache = StaticCache(config=self.model.config, max_cache_len=self._length)
        room = F.pad(attention_mask, (0, self._length - attention_mask.shape[1]))
        output = self.model(
            input_ids=input_ids, attention_mask=room, position_ids=position_ids, past_key_values=cache, use_cache=True
        )
        return output.logits[:, -1:], *(tensor for tensor in _state(cache) if tensor.ndim)


class _NextToken(nn.Module):
    """The logits behind one more token. The caches are buffers, which stay on the device between the calls."""

    def __init__(self, model: nn.Module, length: int, prompt: int, caches: list[torch.Tensor], beams: bool) -> None:
        super().__init__()
        self.model = model
        self._length, self._beams = length, beams
        for number, tensor in enumerate(caches):
            self.register_buffer(f"cache_{number}", tensor.clone())
        self.register_buffer("filled", torch.tensor(prompt))

    filled: torch.Tensor

    def names(self) -> list[str]:
        """The buffers, in the order of the caches, and then how many tokens they have."""
        return list(dict(self.named_buffers(recurse=False)))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, order: torch.Tensor
    ) -> Any:
        """Run one token of each row, after the rows of the caches were put in ``order``."""
        cache = StaticCache(config=self.model.config, max_cache_len=self._length)
        buffers = [getattr(self, name) for name in self.names()[:-1]]
        for number, layer in enumerate(cache.layers):
            keys, values = buffers[2 * number], buffers[2 * number + 1]
            if self._beams:
                keys.copy_(keys.index_select(0, order))
                values.copy_(values.index_select(0, order))
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            layer.cumulative_length = self.filled.clone()
        output = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        self.filled.add_(1)
        return output.logits[:, -1:]


class _DeviceCache(Cache):
    """Stands for caches that are on the device: knows how long they are, and in which order beams go on."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.length = 0
        self.order: torch.Tensor | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens so far."""
        return self.length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """The next call goes on with these rows."""
        self.order = beam_idx.clone()


class IPUGenerator:
    """Generates text with a decoder whose caches stay on the IPUs.

    The loop is that of ``model.generate``: greedy search, sampling and beam search, with all its processors of logits
    and criteria. Prompts are padded on the left to ``prompt_length``.

    Args:
        model: A decoder with a head for the next token; it is not changed.
        ipu_config: How it uses IPUs: its layers run on one IPU after the other.
        prompt_length: The longest prompt, in tokens.
        max_new_tokens: The most tokens that a call can add.
        batch_size: Prompts of a call; with fewer, the rest of the program's rows idles.
        num_beams: Beams of each prompt.
    """

    def __init__(
        self,
        model: Any,
        ipu_config: IPUConfig | None = None,
        prompt_length: int = 64,
        max_new_tokens: int = 64,
        batch_size: int = 1,
        num_beams: int = 1,
    ) -> None:
        if model.config.is_encoder_decoder:
            raise createPoptorchError("IPUGenerator is for decoders; this model has an encoder too.")
        if not getattr(model, "_can_compile_fullgraph", True):
            raise createPoptorchError(f"{type(model).__name__} has caches that change their size: it cannot generate.")
        self._model = model.eval()
        self._config = IPUConfig() if ipu_config is None else ipu_config
        self._prompt_length, self._max_new_tokens = prompt_length, max_new_tokens
        self._rows, self._beams = batch_size * num_beams, num_beams
        self._length = prompt_length + max_new_tokens
        self._reader: PoplarExecutor | None = None
        self._writer: PoplarExecutor | None = None
        self._step: _NextToken | None = None
        self._mask = torch.empty(0)
        self._proxy: Any = shallow_copy(model)
        self._proxy.__dict__["forward"] = self._forward

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **settings: Any) -> Any:
        """As ``model.generate``."""
        beams = settings.get("num_beams", self._model.generation_config.num_beams or 1)
        rows = len(input_ids) * beams
        if beams != self._beams or rows > self._rows or input_ids.shape[1] > self._prompt_length:
            raise createPoptorchError(
                f"{len(input_ids)} prompts of {input_ids.shape[1]} tokens with {beams} beams do not fit a generator "
                f"for {self._rows // self._beams} prompts of up to {self._prompt_length} tokens with {self._beams} "
                "beams. Make one with batch_size, prompt_length and num_beams as you need them."
            )
        settings.setdefault("num_beams", self._beams)
        if "max_length" not in settings and "max_new_tokens" not in settings:
            settings["max_new_tokens"] = self._max_new_tokens
        wanted = settings.get("max_new_tokens") or settings["max_length"] - input_ids.shape[1]
        if wanted > self._max_new_tokens:
            raise createPoptorchError(
                f"{wanted} new tokens do not fit a generator that was made with max_new_tokens={self._max_new_tokens}"
            )
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        return self._proxy.generate(
            input_ids, attention_mask=attention_mask, past_key_values=_DeviceCache(), use_cache=True, **settings
        )

    def _forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: _DeviceCache | None = None,
        **unused: Any,
    ) -> CausalLMOutputWithPast:
        """What the loop of ``transformers`` calls for the prompt, and then for each token."""
        assert past_key_values is not None
        cache, rows = past_key_values, len(input_ids)
        if cache.length == 0:
            if attention_mask is None:  # all tokens count
                attention_mask = torch.ones_like(input_ids)
            logits = self._read(self._filled(input_ids), self._filled(attention_mask))
        else:
            logits = self._write(self._filled(input_ids[:, -1:]), cache)
        cache.length += input_ids.shape[1]
        cache.order = None
        return CausalLMOutputWithPast(logits=logits[:rows], past_key_values=cache)

    def _filled(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor[-1:].expand(self._rows - len(tensor), *tensor.shape[1:])])

    def _options(self) -> Options:
        options = self._config.to_options(for_inference=True).deviceIterations(1).replicationFactor(1)
        return options.setExecutionStrategy(ShardedExecution())

    def _read(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        missing = self._prompt_length - input_ids.shape[1]
        pad = self._model.config.pad_token_id or 0
        input_ids = F.pad(input_ids, (missing, 0), value=pad)
        self._mask = F.pad(attention_mask, (missing, 0))
        inputs = (input_ids, self._mask, _positions(self._mask))
        if self._reader is None:
            self._reader = inferenceModel(_ReadPrompt(self._model, self._length), self._options())
            with placed(self._model, self._config, training=False):
                self._reader.compile(*inputs)
        logits, *caches = self._reader(*inputs)
        self._hand_over(caches)
        return logits

    def _hand_over(self, caches: list[torch.Tensor]) -> None:
        """The caches of the prompt go to the program that adds tokens."""
        if self._step is None:
            self._step = _NextToken(self._model, self._length, self._prompt_length, caches, self._beams > 1)
            options = self._options().updatableNamedBuffers(self._step.names())
            self._writer = inferenceModel(self._step, options)
            return
        buffers = dict(self._step.named_buffers(recurse=False))
        for name, tensor in zip(self._step.names(), [*caches, torch.tensor(self._prompt_length)], strict=True):
            buffers[name].copy_(tensor)
        assert self._writer is not None
        if self._writer.isCompiled():
            self._writer.copyNamedBuffersToDevice()

    def _write(self, token: torch.Tensor, cache: _DeviceCache) -> torch.Tensor:
        assert self._writer is not None
        order = torch.arange(self._rows)
        if cache.order is not None:
            order[: len(cache.order)] = cache.order
            self._mask = self._mask[order]
        self._mask = F.pad(self._mask, (0, 1), value=1)
        position = _positions(self._mask)[:, -1:].contiguous()
        room = F.pad(self._mask, (0, self._length - self._mask.shape[1]))
        inputs = (token, room, position, order.int())
        if not self._writer.isCompiled():
            with placed(self._model, self._config, training=False):
                self._writer.compile(*inputs)
        return self._writer(*inputs)
