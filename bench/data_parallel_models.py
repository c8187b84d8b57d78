"""The models of ``bench/processes.py``: small ones that are trained here, large ones that are predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from data_parallel import Portion, Sharding, Workload
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from workloads import Trained, Transformer, classify, mlp, resnet18
from workloads import Workload as Trainable

from poptorch.distributed.portions import BUCKET_BYTES, make_buckets
from poptorch.ipu_model.validation.residual import ResNet50

MIN_SHARDED = 8192
"""Elements of the smallest tensor whose state is sharded: the default of ``minElementsForReplicatedTensorSharding``."""

SEQUENCE = 128


@dataclass(frozen=True)
class Large:
    """A model whose scaling is predicted."""

    name: str
    trainable: Callable[[int], Trainable]
    measured: tuple[int, int]
    """Samples in a step for which one process is timed."""


def bert_base(batch: int) -> Trainable:
    """Masked language modelling with BERT-base, as transformers has it: 12 layers of 768, tied embeddings."""

    def model() -> nn.Module:
        from transformers import BertConfig, BertForMaskedLM

        net = BertForMaskedLM(BertConfig(attn_implementation="sdpa"))
        return Trained(_Logits(net), lambda x, y: nn.functional.cross_entropy(x.flatten(0, 1), y.flatten()), 1)

    def ids() -> torch.Tensor:
        return torch.randint(0, 30522, (batch, SEQUENCE))

    return Trainable("bert-base", model, lambda: (ids(),), ids)


class _Logits(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.net(input_ids=ids).logits


def resnet50(batch: int) -> Trainable:
    """Images of 224 × 224 pixels."""
    return Trainable(
        "resnet-50", ResNet50, lambda: (torch.randn(batch, 3, 224, 224),), lambda: torch.randint(0, 1000, (batch,))
    )


LARGE = (Large("BERT-base", bert_base, (1, 4)), Large("ResNet-50", resnet50, (1, 4)))


def small_mlp(batch: int) -> Trainable:
    """Much to exchange and little to compute."""
    return Trainable(
        "mlp",
        lambda: classify(mlp([784, 1024, 1024, 10])),
        lambda: (torch.randn(batch, 784),),
        lambda: torch.randint(0, 10, (batch,)),
    )


def small_bert(batch: int) -> Trainable:
    """Four layers of 256."""
    return Trainable(
        "bert-small",
        lambda: classify(Transformer(8000, 256, 4, 128, False, 10)),
        lambda: (torch.randint(0, 8000, (batch, 128)),),
        lambda: torch.randint(0, 10, (batch,)),
    )


def small_resnet(batch: int) -> Trainable:
    """A ResNet-18 of 16 channels on 32 × 32 pixels: much to compute and little to exchange."""
    return Trainable(
        "resnet-18",
        lambda: classify(resnet18()),
        lambda: (torch.randn(batch, 3, 32, 32),),
        lambda: torch.randint(0, 10, (batch,)),
    )


SMALL = {"mlp": small_mlp, "bert-small": small_bert, "resnet-18": small_resnet}


# --- what they exchange ----------------------------------------------------------------------------------------------


def portions_of(gradients: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Which gradients travel together, as :class:`poptorch.distributed.connections.Connections` divides them.

    >>> portions_of({"a": torch.ones(4, device="meta"), "large": torch.ones(1 << 20, device="meta"),
    ...              "b": torch.ones(4, device="meta")})
    [['large'], ['a', 'b']]
    """
    alone = [name for name, gradient in gradients.items() if gradient.nbytes >= BUCKET_BYTES // 2]
    with torch.device("meta"):
        buckets = make_buckets({name: g for name, g in gradients.items() if name not in alone})
    return [*([name] for name in alone), *(bucket.names for bucket in buckets)]


def ready_shares(trainable: Trainable) -> dict[str, float]:
    """After which part of back-propagation each parameter's gradient is there.

    Back-propagation visits modules in reverse. Its progress is taken to be that of the matrix products and convolutions
    of the forward pass: a gradient is there when all that came after its module's first use has been visited, and the
    module itself. The model must be on the meta device: nothing is computed.
    """
    with torch.device("meta"):
        model, inputs, target = trainable.model(), trainable.inputs(), trainable.target()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    before: dict[str, float] = {}
    with FlopCounterMode(display=False) as counter:
        for module in model.modules():
            own = [names[id(parameter)] for parameter in module.parameters(recurse=False)]
            if own:
                module.register_forward_pre_hook(_noting(counter, own, before))
        model(*inputs, target)
    total = counter.get_total_flops()
    return {name: 1 - before[name] / total for name in names.values()}


def _noting(counter: FlopCounterMode, names: Sequence[str], before: dict[str, float]) -> Callable[..., None]:
    def note(*_: object) -> None:
        for name in names:
            before.setdefault(name, counter.get_total_flops())

    return note


def workload_of(trainable: Trainable, name: str) -> Workload:
    """What the processes of a job exchange for a model, from its parameters on the meta device."""
    with torch.device("meta"):
        gradients = {name: parameter.detach() for name, parameter in trainable.model().named_parameters()}
    ready = ready_shares(trainable)

    def portions(some: Mapping[str, torch.Tensor]) -> tuple[Portion, ...]:
        return tuple(
            Portion(sum(some[name].nbytes for name in names), max(ready[name] for name in names))
            for names in portions_of(some)
        )

    in_order = {name: gradients[name] for name in sorted(gradients, key=lambda it: ready[it])}
    small = {name: g for name, g in gradients.items() if g.numel() < MIN_SHARDED}
    large = tuple(g.numel() for g in gradients.values() if g.numel() >= MIN_SHARDED)
    as_ready = tuple(sorted(portions(in_order), key=lambda it: it.ready))
    return Workload(name, portions(gradients), as_ready, Sharding(large, portions(small), BUCKET_BYTES))
