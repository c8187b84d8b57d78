"""``IPUConfig``: how a model of ``transformers`` uses IPUs, as a JSON file beside the model's own configuration."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from poptorch._logging import logger
from poptorch.enums import OutputMode, ReductionType
from poptorch.errors import createPoptorchError
from poptorch.options import Options, TensorLocationSettings

FILE_NAME = "ipu_config.json"

_COUNTS = (
    "replication_factor", "gradient_accumulation_steps", "device_iterations", "projection_serialization_factor",
    "embedding_serialization_factor",
)  # fmt: skip
"""Numbers from 1 on; most of them have a partner for inference."""

_EXPLAINED = {
    "optimum_version": "says who wrote the file",
    "transformers_version": "says who wrote the file",
    "explicit_ir_inference": "programs have one form here",
    "decompose_graph_during_export": "programs are not exported by tracing",
    "pod_type": "choose sizes by the options, not by the name of a system",
    "enable_half_first_order_momentum": "pass first_order_momentum_accum_type to an optimizer of poptorch.optim",
    "use_popdist": "processes are found by their environment",
    "execute_encoder_on_cpu_for_generation": "encoders run as all else does",
    "log_insertions": "the log of a compilation (level DEBUG) names the blocks",
    "sharded_execution_for_inference": "inference on several IPUs is a pipeline",
    "synthetic_data": "data always come from the program",
}
"""Keys of existing files that have no effect here, and why."""

_UNSUPPORTED = {
    "serialized_embedding_splits_per_ipu": None,
    "inference_serialized_embedding_splits_per_ipu": None,
    "serialized_projection_splits_per_ipu": None,
    "inference_serialized_projection_splits_per_ipu": None,
}
"""Keys that spread the pieces of a large embedding over IPUs: accepted with the value that cuts nothing."""


@dataclass
class IPUConfig:
    """How a model uses IPUs. The keys are those of existing ``ipu_config.json`` files.

    Args:
        layers_per_ipu: How many layers of the model each IPU of a replica runs; one of them may be -1 and takes what
            is left. ``[-1]`` is one IPU.
        inference_layers_per_ipu: The same for evaluation and inference; by default as in training.
        replication_factor: Copies of the model that train on data of their own.
        inference_replication_factor: The same for inference.
        gradient_accumulation_steps: Micro-batches whose gradients are added before each update.
        device_iterations: Updates in one call of the compiled program.
        inference_device_iterations: Micro-batches per replica in one call of inference.
        output_mode: ``"final"``, ``"all"``, ``"sum"`` or ``"everyN"``; the trainer itself needs all losses.
        seed: Seed of the random numbers on the IPUs; by default that of the training arguments.
        auto_loss_scaling: Let the loss scale follow the gradients.
        matmul_proportion: Share of an IPU's memory for products: one for all IPUs, or a list.
        inference_matmul_proportion: The same for inference.
        projection_serialization_factor: Compute the product of a language model's head, which has a column for each
            word, in so many pieces: this takes less memory at a time. It must divide the number of words.
        inference_projection_serialization_factor: The same for inference; by default as in training.
        embedding_serialization_factor: What older files say instead: it counts for the head where the factor of the
            projection is 1. Looking up words needs no pieces.
        inference_embedding_serialization_factor: The same for inference; by default as in training.
        enable_half_partials: Add up products of half precision in half precision.
        executable_cache_dir: Where compiled programs are kept.
        optimizer_state_offchip: Keep the state of the optimizer outside of the IPUs.
        replicated_tensor_sharding: Let each replica own a slice of the optimizer's state.
        recompute_checkpoint_every_layer: Keep nothing but the inputs of layers from forward to backward.
        ipus_per_replica: To be checked against ``layers_per_ipu``.
        inference_ipus_per_replica: The same for inference.
        profile_dir: Where reports are written.

    >>> config = IPUConfig.from_dict({"layers_per_ipu": [2, -1], "inference_device_iterations": 4})
    >>> config.layers_of_each_ipu(layers=6)
    [2, 4]
    """

    layers_per_ipu: list[int] = field(default_factory=lambda: [-1])
    inference_layers_per_ipu: list[int] | None = None
    replication_factor: int = 1
    inference_replication_factor: int = 1
    gradient_accumulation_steps: int = 1
    device_iterations: int = 1
    inference_device_iterations: int = 1
    output_mode: str = "final"
    seed: int | None = None
    auto_loss_scaling: bool = False
    matmul_proportion: float | list[float] | None = None
    inference_matmul_proportion: float | list[float] | None = None
    projection_serialization_factor: int = 1
    inference_projection_serialization_factor: int | None = None
    embedding_serialization_factor: int = 1
    inference_embedding_serialization_factor: int | None = None
    enable_half_partials: bool = False
    executable_cache_dir: str = ""
    optimizer_state_offchip: bool = False
    replicated_tensor_sharding: bool = False
    recompute_checkpoint_every_layer: bool = False
    ipus_per_replica: int | None = None
    inference_ipus_per_replica: int | None = None
    profile_dir: str = ""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            for key in (name, f"inference_{name}"):
                value = getattr(self, key, 1)
                if value is None and key != name:
                    continue  # as in training
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise ValueError(f"IPUConfig: {key} must be a positive integer, not {value!r}")
        self._check_ipus(self.layers_per_ipu, self.ipus_per_replica, "layers_per_ipu")
        if self.inference_layers_per_ipu is not None:
            self._check_ipus(self.inference_layers_per_ipu, self.inference_ipus_per_replica, "inference_layers_per_ipu")

    @staticmethod
    def _check_ipus(layers: Any, ipus: int | None, name: str) -> None:
        fine = isinstance(layers, list) and layers and all(isinstance(count, int) and count >= -1 for count in layers)
        if not fine or layers.count(-1) > 1:
            raise ValueError(
                f"IPUConfig: {name} must be a list of layers for each IPU, such as [3, 4], with at most one -1 for "
                f"what is left, not {layers!r}"
            )
        if ipus is not None and layers != [-1] and ipus != len(layers):
            raise ValueError(f"IPUConfig: {name}={layers} is for {len(layers)} IPUs, but ipus_per_replica is {ipus}")

    # -- files -------------------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **changes: Any) -> IPUConfig:
        """From the keys of a file. Those without a meaning here are named in the log, unknown ones are refused."""
        known = {field.name for field in dataclasses.fields(cls)}
        taken: dict[str, Any] = {}
        for key, value in {**values, **changes}.items():
            if key in known:
                taken[key] = _default_of(key, value)
            elif key in _UNSUPPORTED:
                if value not in (_UNSUPPORTED[key], None):
                    raise createPoptorchError(
                        f"{FILE_NAME}: {key}={value!r} is not supported: an embedding is on one IPU. Leave it out; "
                        "projection_serialization_factor cuts the product that needs most memory."
                    )
            elif key in _EXPLAINED:
                logger.info("%s: %s has no effect: %s", FILE_NAME, key, _EXPLAINED[key])
            else:
                raise createPoptorchError(
                    f"{FILE_NAME}: unknown key {key!r}. Known are {', '.join(sorted({*known, *_EXPLAINED}))}."
                )
        return cls(**taken)

    @classmethod
    def from_pretrained(cls, path: str | Path, **changes: Any) -> IPUConfig:
        """From a file, or from the ``ipu_config.json`` in a folder. ``changes`` replace single values."""
        file = Path(path)
        if file.is_dir():
            file /= FILE_NAME
        if not file.exists():
            raise FileNotFoundError(
                f"There is no {file}. Write one with IPUConfig(...).save_pretrained(folder), or pass an IPUConfig."
            )
        return cls.from_dict(json.loads(file.read_text(encoding="utf-8")), **changes)

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults."""
        plain = type(self)()
        return {name: value for name, value in dataclasses.asdict(self).items() if value != getattr(plain, name)}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``ipu_config.json`` into a folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)
        (Path(folder) / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    # -- sizes -------------------------------------------------------------------------------------------------------

    def layers_for(self, training: bool) -> list[int]:
        """``layers_per_ipu`` for training or for inference."""
        if training or self.inference_layers_per_ipu is None:
            return self.layers_per_ipu
        return self.inference_layers_per_ipu

    def layers_of_each_ipu(self, layers: int, training: bool = True) -> list[int]:
        """How many of a model's ``layers`` each IPU runs."""
        wanted = self.layers_for(training)
        left = layers - sum(count for count in wanted if count >= 0)
        if left < 0 or (left and -1 not in wanted):
            raise createPoptorchError(
                f"layers_per_ipu={wanted} does not fit the model, which has {layers} layers. Give as many, or -1 for "
                "the IPU that takes what is left."
            )
        return [left if count == -1 else count for count in wanted]

    def pieces_of_head(self, training: bool) -> int:
        """In how many pieces the product of a language model's head is computed.

        >>> config = IPUConfig(embedding_serialization_factor=4, inference_projection_serialization_factor=2)
        >>> config.pieces_of_head(training=True), config.pieces_of_head(training=False)
        (4, 2)
        """
        for name in ("projection_serialization_factor", "embedding_serialization_factor"):
            of_inference: int | None = None if training else getattr(self, f"inference_{name}")
            pieces: int = getattr(self, name) if of_inference is None else of_inference
            if pieces > 1:
                return pieces
        return 1

    def rows_per_update(self, micro_batch: int) -> int:
        """Rows of the data set behind each update of the weights."""
        return micro_batch * self.replication_factor * self.gradient_accumulation_steps

    def micro_batches(self, training: bool) -> int:
        """Micro-batches in one call of the compiled program."""
        if training:
            return self.device_iterations * self.replication_factor * self.gradient_accumulation_steps
        return self.inference_device_iterations * self.inference_replication_factor

    # -- options -----------------------------------------------------------------------------------------------------

    def to_options(self, for_inference: bool = False, seed: int | None = None) -> Options:
        """The options that this means, with every loss or output of a call.

        >>> options = IPUConfig(replication_factor=2, device_iterations=3).to_options()
        >>> options.replication_factor, options.device_iterations
        (2, 3)
        """
        options = Options().outputMode(OutputMode.All)
        training = not for_inference
        options.replicationFactor(self.replication_factor if training else self.inference_replication_factor)
        options.deviceIterations(self.device_iterations if training else self.inference_device_iterations)
        options.autoRoundNumIPUs(True)
        options.showCompilationProgressBar(False)
        if (chosen := self.seed if self.seed is not None else seed) is not None:
            options.randomSeed(chosen)
        proportion = self.matmul_proportion
        if not training and self.inference_matmul_proportion is not None:
            proportion = self.inference_matmul_proportion
        if proportion is not None:
            ipus = len(self.layers_for(training))
            shares = proportion if isinstance(proportion, list) else [proportion] * ipus
            options.setAvailableMemoryProportion({f"IPU{ipu}": share for ipu, share in enumerate(shares)})
        if self.enable_half_partials:
            options.Precision.setPartialsType(torch.float16)
        if self.executable_cache_dir:
            options.enableExecutableCaching(self.executable_cache_dir)
        if self.profile_dir:
            options.enableProfiling(self.profile_dir)
        if training:
            self._set_training(options)
        return options

    def _set_training(self, options: Options) -> None:
        options.Training.gradientAccumulation(self.gradient_accumulation_steps)
        options.Training.accumulationAndReplicationReductionType(ReductionType.Mean)
        if self.auto_loss_scaling:
            options.Training.setAutomaticLossScaling(True)
        settings = TensorLocationSettings()
        if self.optimizer_state_offchip:
            settings.useOnChipStorage(False)
        if self.replicated_tensor_sharding:
            settings.useReplicatedTensorSharding(True)
        if self.optimizer_state_offchip or self.replicated_tensor_sharding:
            options.TensorLocations.setOptimizerLocation(settings)


def _default_of(key: str, value: Any) -> Any:
    """Old files give sizes for each system, as ``{"pod4": 4, "default": 1}``."""
    if isinstance(value, Mapping):
        if "default" not in value:
            raise createPoptorchError(
                f"{FILE_NAME}: {key}={dict(value)} gives a value for each system and no default. Give one value."
            )
        return value["default"]
    return value
