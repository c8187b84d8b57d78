"""``IPUTrainingArguments``: the arguments of the trainer, and what training on IPUs adds to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import TrainingArguments

from poptorch.errors import createPoptorchError

_REFUSED = {
    "fp16": "half precision is a property of the model here: call model.half(), and set loss_scaling",
    "bf16": "IPUs have no bfloat16",
    "fp16_full_eval": "call model.half() before",
    "bf16_full_eval": "IPUs have no bfloat16",
    "deepspeed": "replicas come from IPUConfig(replication_factor=...)",
    "fsdp": "slices of the optimizer's state come from IPUConfig(replicated_tensor_sharding=True)",
    "torch_compile": "the whole training step is compiled already",
    "use_liger_kernel": "its kernels are for other devices",
    "auto_find_batch_size": "the sizes of a compiled program are fixed",
    "gradient_checkpointing": "use IPUConfig(recompute_checkpoint_every_layer=True)",
}


@dataclass
class IPUTrainingArguments(TrainingArguments):
    """``TrainingArguments`` for :class:`IPUTrainer`.

    ``per_device_train_batch_size`` is the micro-batch of one replica; ``gradient_accumulation_steps`` replaces that of
    the :class:`IPUConfig`, unless it is 1.

    Args:
        loss_scaling: The factor of the loss for half precision.
        lamb: Train with LAMB.
        lamb_no_bias: Train with LAMB without bias correction.
    """

    loss_scaling: float | None = field(default=None, metadata={"help": "Factor of the loss for half precision."})
    lamb: bool = field(default=False, metadata={"help": "Train with LAMB."})
    lamb_no_bias: bool = field(default=False, metadata={"help": "Train with LAMB without bias correction."})

    def __post_init__(self) -> None:
        for name, why in _REFUSED.items():
            if getattr(self, name, None):
                raise createPoptorchError(f"IPUTrainingArguments: {name} cannot be used on IPUs: {why}.")
        self.use_cpu = True  # data and the model's own weights stay on the host
        super().__post_init__()
