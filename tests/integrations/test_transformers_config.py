"""``IPUConfig``: files, sizes, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformer_tasks import TASKS, ipu_trainer
from transformers import default_data_collator

import poptorch
from poptorch.integrations.transformers import FixedShapes, IPUConfig
from poptorch.integrations.transformers.placing import layers_of


def test_a_configuration_with_the_keys_of_existing_files(tmp_path: Path) -> None:
    existing = {
        "embedding_serialization_factor": 2, "enable_half_partials": True, "executable_cache_dir": "",
        "execute_encoder_on_cpu_for_generation": False, "explicit_ir_inference": False,
        "gradient_accumulation_steps": {"default": 16, "pod4": 64}, "inference_device_iterations": 4,
        "ipus_per_replica": 4, "layers_per_ipu": [2, 4, 4, 2], "matmul_proportion": [0.08, 0.2, 0.25, 0.25],
        "optimizer_state_offchip": True, "optimum_version": "1.0.0", "output_mode": "final",
        "recompute_checkpoint_every_layer": True, "replicated_tensor_sharding": True, "replication_factor": 4,
        "transformers_version": "4.20.0", "device_iterations": 1, "seed": 7, "synthetic_data": False,
        "log_insertions": False, "sharded_execution_for_inference": False, "serialized_embedding_splits_per_ipu": None,
    }  # fmt: skip
    (tmp_path / "ipu_config.json").write_text(json.dumps(existing))
    config = IPUConfig.from_pretrained(tmp_path, replication_factor=2)
    assert (config.replication_factor, config.gradient_accumulation_steps) == (2, 16)
    options = config.to_options()
    assert options.replication_factor == 2
    assert options.Training.gradient_accumulation == 16
    assert options.random_seed == 7
    config.save_pretrained(tmp_path / "again")
    assert IPUConfig.from_pretrained(tmp_path / "again") == config


@pytest.mark.parametrize(("values", "expected"), [
    ({"layers_per_ipu": [1, 2], "ipus_per_replica": 3}, "is for 2 IPUs, but ipus_per_replica is 3"),
    ({"layers_per_ipu": [-1, -1]}, "at most one -1"),
    ({"replication_factor": 0}, "replication_factor must be a positive integer"),
    ({"replications": 2}, "unknown key 'replications'"),
    ({"serialized_embedding_splits_per_ipu": [2, 2]}, "an embedding is on one IPU"),
    ({"projection_serialization_factor": 0}, "must be a positive integer"),
    ({"device_iterations": {"pod4": 2}}, "no default"),
])  # fmt: skip
def test_a_wrong_configuration_is_refused(values: dict[str, Any], expected: str) -> None:
    with pytest.raises((ValueError, poptorch.Error), match=expected):
        IPUConfig.from_dict(values)


def test_the_head_of_a_language_model_in_pieces() -> None:
    task = TASKS["fill-mask"]
    model, inputs = task.build().eval(), default_data_collator(task.data(2))
    plain = model(**inputs)
    for config, pieces in (
        (IPUConfig(projection_serialization_factor=4), 4),
        (IPUConfig(embedding_serialization_factor=8, inference_embedding_serialization_factor=2), 2),
        (IPUConfig(embedding_serialization_factor=8, inference_embedding_serialization_factor=1), None),
    ):
        called = FixedShapes(model, config, batch_size=2)
        torch.testing.assert_close(called(**inputs).logits, plain.logits)
        (executor,) = called._executors.values()
        text = executor._debugGetPopartIR()
        assert ("serialized" in text) == (pieces is not None)
        executor.destroy()
    with pytest.raises(poptorch.Error, match="does not divide the 40 words of BertForMaskedLM"):
        FixedShapes(model, IPUConfig(projection_serialization_factor=7), batch_size=2)(**inputs)


def test_layers_that_do_not_fit_the_model(tmp_path: Path) -> None:
    config = IPUConfig(layers_per_ipu=[3, 4], gradient_accumulation_steps=8)
    with pytest.raises(poptorch.Error, match=r"layers_per_ipu=\[3, 4\] does not fit the model, which has 2 layers"):
        ipu_trainer(TASKS["fill-mask"], tmp_path, config, per_device_train_batch_size=1).train()


@pytest.mark.parametrize("name", TASKS)
def test_the_layers_of_a_model_are_found(name: str) -> None:
    assert len(layers_of(TASKS[name].build())) == 2
