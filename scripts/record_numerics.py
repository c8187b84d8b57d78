"""Records what the package computes, bit by bit, and compares a later version of the code with the record.

    PYTHONPATH=src python scripts/record_numerics.py record before.json
    ... change the code ...
    PYTHONPATH=src python scripts/record_numerics.py compare before.json     # exit code 1 if any case differs

A record is a JSON file with one hash for each case: the architectures of the zoo, the tables of operations, models
divided among IPUs and replicas, and models that draw random numbers. All of them run interpreted, with one thread.
Hashes are comparable only on the same machine with the same version of PyTorch.

The script uses public names of poptorch and the models in ``tests``, so that it runs before and after modules move.
``--only zoo/bert`` takes the groups of cases whose names begin like this.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

BUNDLE = "POPTORCH_GROUP"
"""The variable for the number of micro-batches that are computed at once; 0 leaves the choice to the package."""

# Before poptorch and torch are imported: the shell that started this script must not decide about results.
_OF_THE_PACKAGE = ("POPTORCH_", "POPLAR_", "PVTI_", "OMPI_COMM_WORLD_", "POPDIST_")
for _name in [name for name in os.environ if name.startswith(_OF_THE_PACKAGE)]:
    del os.environ[_name]
os.environ |= {"POPTORCH_CODEGEN": "interpret", "POPTORCH_LOG_LEVEL": "OFF", "OMP_NUM_THREADS": "1"}

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("", "zoo", "parallel", "torch_ops")]

import argparse
import copy
import hashlib
import importlib
import json
import multiprocessing
import pkgutil
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any, TypeAlias

import op_samples
import op_tables
import parallel_models
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from tqdm import tqdm
from zoo_all import ARCHITECTURES
from zoo_architecture import Architecture

import poptorch

Hashes: TypeAlias = dict[str, str]
Group: TypeAlias = Callable[[], Hashes]
"""Some cases that are computed together: gives the end of each one's name, and its hash."""

WORKERS = 2
SEED = 42
STEPS = 5
CALLS = 3
TOGETHER = 8
"""How many rows of a table of operations are trained in one model, as in the tests."""


def digest(value: Any) -> str:
    """A hash of all tensors and numbers in a structure, with their places, types, shapes and bits.

    >>> digest([torch.zeros(2)]) == digest([torch.zeros(2)])
    True
    >>> digest([torch.zeros(2)]) == digest([-torch.zeros(2)])  # the sign of zero is a bit, too
    False
    """
    found = hashlib.sha256()
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        found.update(pytree.keystr(path).encode())
        if isinstance(leaf, Tensor):
            tensor = leaf.detach().as_subclass(Tensor).cpu().contiguous()
            found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(f"{type(leaf).__name__} {leaf!r}".encode())
    return found.hexdigest()


def failure(error: Exception) -> str:
    """What a record keeps of an exception: its type and its first line, without addresses and places in the code.

    >>> failure(ValueError("In poptorch/x.py:17: 'poptorch_cpp_error': <f at 0x7f00> is wrong"))
    "ValueError: 'poptorch_cpp_error': <f at 0x> is wrong"
    """
    first = (str(error).splitlines() or [""])[0]
    for pattern, replacement in ((r"In \S+\.py:\d+: ", ""), (r"0x[0-9a-f]+", "0x")):
        first = re.sub(pattern, replacement, first)
    return f"{type(error).__name__}: {first}"


def collect(executor: Any, batches: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The outputs of every call, as they were when it returned."""
    return [copy.deepcopy(executor(*batch)) for batch in batches]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[tuple[Any, ...]],
    options: poptorch.Options | None = None,
) -> Hashes:
    """Outputs of every step; weights, buffers and the optimizer's state after the last one."""
    executor = poptorch.trainingModel(model, options or poptorch.Options().randomSeed(SEED), optimizer)
    found = {"outputs": digest(collect(executor, batches)), "state": digest(dict(model.state_dict()))}
    found["optimizer"] = digest(optimizer.state_dict())
    executor.destroy()
    return found


def infer(model: nn.Module, batches: Sequence[tuple[Any, ...]], options: poptorch.Options | None = None) -> Hashes:
    """Outputs of every call; buffers after the last one."""
    executor = poptorch.inferenceModel(model, options or poptorch.Options().randomSeed(SEED))
    found = {"outputs": digest(collect(executor, batches)), "state": digest(dict(model.state_dict()))}
    executor.destroy()
    return found


def anchored_gradients(model: nn.Module, batch: tuple[Any, ...], names: Sequence[str]) -> dict[str, Tensor]:
    """The gradients of these parameters in the first step."""
    options = poptorch.Options().randomSeed(SEED)
    for name in names:
        options.anchorTensor(name, f"Gradient___{name}")
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.05))
    executor(*batch)
    found = {name: executor.getAnchoredTensor(name) for name in names}
    executor.destroy()
    return found


def with_gradient(model: nn.Module, batch: tuple[Any, ...]) -> list[str]:
    """The names of the parameters that PyTorch computes a gradient for."""
    twin = copy.deepcopy(model)
    pytree.tree_leaves(twin(*batch))[-1].backward()
    return [name for name, parameter in twin.named_parameters() if parameter.grad is not None]


# -- the zoo -------------------------------------------------------------------------------------------------------


def zoo_optimizer(kind: str, architecture: Architecture, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "SGD":
        return torch.optim.SGD(model.parameters(), lr=architecture.learning_rate, momentum=0.9)
    return poptorch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def zoo_training(architecture: Architecture, kind: str) -> Hashes:
    model = architecture.trainable()
    batches = [(*inputs, *targets) for inputs, targets in (architecture.batch(seed=seed) for seed in range(STEPS))]
    return train(model, zoo_optimizer(kind, architecture, model), batches)


def zoo_inference(architecture: Architecture) -> Hashes:
    inputs, _ = architecture.batch()
    return infer(architecture.network().eval(), [inputs] * 2)


def zoo_gradients(architecture: Architecture) -> Hashes:
    model = architecture.trainable()
    inputs, targets = architecture.batch()
    batch = (*inputs, *targets)
    return {"gradients": digest(anchored_gradients(model, batch, with_gradient(model, batch)))}


def zoo_groups() -> Iterator[tuple[str, Group]]:
    for name, architecture in ARCHITECTURES.items():
        yield f"zoo/{name}/inference", partial(zoo_inference, architecture)
        yield f"zoo/{name}/gradients", partial(zoo_gradients, architecture)
        for kind in ("SGD", "AdamW"):
            yield f"zoo/{name}/{kind}", partial(zoo_training, architecture, kind)


# -- the tables of operations --------------------------------------------------------------------------------------


def clones(sample: op_samples.Sample) -> tuple[Tensor, ...]:
    return tuple(tensor.clone() for tensor in sample.inputs)


def operation_inference(sample: op_samples.Sample) -> Hashes:
    """Two calls: their results, what became of their inputs, and of the buffers."""
    batches = [clones(sample) for _ in range(2)]
    return infer(op_samples.Alone(sample.make()), batches) | {"inputs": digest(batches)}


def operation_training(samples: Sequence[op_samples.Sample]) -> Hashes:
    """Results, gradients of inputs and parameters, and weights after a step, for each row.

    Rows that fail together run alone, so that the record says which one fails.
    """
    try:
        return _operation_training(samples)
    except Exception as error:  # noqa: BLE001  the record says what happened
        if len(samples) == 1:
            return {samples[0].name: failure(error)}
        found: Hashes = {}
        for sample in samples:
            found |= operation_training([sample])
        return found


def _operation_training(samples: Sequence[op_samples.Sample]) -> Hashes:
    torch.manual_seed(SEED)
    model = op_samples.Together(samples)
    twin = op_samples.Together(samples)
    twin(*(clones(sample) for sample in samples))[1].backward()  # this run also makes the weights of the outputs
    for part, other in zip(model.parts, twin.parts, strict=True):
        part.weights = other.weights
    names = [name for name, parameter in twin.named_parameters() if parameter.grad is not None]
    options = poptorch.Options().randomSeed(SEED)
    for name in names:
        options.anchorTensor(name, f"Gradient___{name}")
    optimizer = torch.optim.SGD(model.parameters(), lr=op_samples.LEARNING_RATE)
    executor = poptorch.trainingModel(model, options, optimizer)
    results, _ = executor(*(clones(sample) for sample in samples))
    found: Hashes = {}
    for index, (sample, result, part) in enumerate(zip(samples, results, model.parts, strict=True)):
        gradients = {name: executor.getAnchoredTensor(name) for name in names if name.startswith(f"parts.{index}.")}
        found[f"{sample.name}/outputs"] = digest(result)
        found[f"{sample.name}/gradients"] = digest(list(gradients.values()))
        found[f"{sample.name}/state"] = digest(dict(part.state_dict()))
    executor.destroy()
    return found


def operation_groups() -> Iterator[tuple[str, Group]]:
    for table in sorted(module.name for module in pkgutil.iter_modules(op_tables.__path__)):
        rows: list[op_samples.Sample] = importlib.import_module(f"op_tables.{table}").ROWS
        for sample in rows:
            yield f"operations/{table}/inference/{sample.name}", partial(operation_inference, sample)
        differentiable = [row for row in rows if row.grad]
        for start in range(0, len(differentiable), TOGETHER):
            group = differentiable[start : start + TOGETHER]
            yield f"operations/{table}/training/{start // TOGETHER}", partial(operation_training, group)


# -- models divided among IPUs and replicas ------------------------------------------------------------------------

FOUR_STAGES = ("pipelined", "pipelined, back to the first IPU")
"""Training has seven stages then, and needs at least as many micro-batches."""


def in_groups(bundle: str, group: Group) -> Hashes:
    """The group with this setting for the number of micro-batches at once."""
    os.environ[BUNDLE] = bundle
    try:
        return group()
    finally:
        del os.environ[BUNDLE]


def parallel_training(kind: Any, strategy: str | None, replicas: int) -> Hashes:
    ipus, make = parallel_models.STRATEGIES[strategy] if strategy else (None, lambda: None)
    accumulation = 8 if strategy in FOUR_STAGES else 4
    options = parallel_models.make_options(make(), iterations=2, accumulation=accumulation, replicas=replicas)
    outputs, state, executor = parallel_models.train(kind, ipus, options, calls=2)
    executor.destroy()
    return {"outputs": digest(outputs), "state": digest(state)}


def parallel_inference(kind: Any, strategy: str | None, replicas: int) -> Hashes:
    ipus, make = parallel_models.STRATEGIES[strategy] if strategy else (None, lambda: None)
    options = parallel_models.make_options(make(), iterations=8, accumulation=1, replicas=replicas)
    outputs, executor = parallel_models.infer(kind, ipus, options)
    executor.destroy()
    return {"outputs": digest(outputs)}


def parallel_groups() -> Iterator[tuple[str, Group]]:
    for kind in (*parallel_models.MODELS, parallel_models.Feedback):
        for strategy in (None, *parallel_models.STRATEGIES):
            for replicas in (1, 2):
                for bundle in ("1", "0"):
                    name = f"parallel/{kind.__name__}/{strategy or 'one piece'}/replicas {replicas}/bundle {bundle}"
                    for mode, run in (("training", parallel_training), ("inference", parallel_inference)):
                        yield f"{name}/{mode}", partial(in_groups, bundle, partial(run, kind, strategy, replicas))


# -- random numbers and float16 ------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Dropout before a weight, and samplers of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.linear = nn.Linear(16, 16)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        y = self.linear(self.dropout(x))
        draws = {
            "rand": torch.rand(3, 5),
            "rand_like": torch.rand_like(x),
            "randn": torch.randn(3, 5),
            "randn_like": torch.randn_like(x),
            "randint": torch.randint(0, 100, (7,)),
            "randperm": torch.randperm(9),
            "bernoulli": torch.bernoulli(torch.sigmoid(y)),
            "normal": torch.normal(y.detach(), 2.0),
            "normal_": torch.empty_like(x).normal_(1.0, 2.0),
            "uniform_": torch.empty_like(x).uniform_(-1.0, 3.0),
            "bernoulli_": torch.empty_like(x).bernoulli_(0.3),
            "exponential_": torch.empty_like(x).exponential_(2.0),
            "multinomial": torch.multinomial(torch.softmax(y.detach(), -1), 3),
            "half": torch.rand(8, dtype=torch.float16),
        }
        noise = nn.functional.dropout(y, 0.25) * draws["randn_like"]
        return draws, y, poptorch.identity_loss((y + noise).square().mean(), reduction="mean")


class HalfLinear(nn.Module):
    """A small model in float16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)
        self.half()

    def forward(self, x: Tensor, target: Tensor) -> Any:
        y = self.second(torch.relu(self.first(x)))
        return y, nn.functional.mse_loss(y, target)


def settings(iterations: int, replicas: int, accumulation: int) -> poptorch.Options:
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas).randomSeed(SEED)
    options.autoRoundNumIPUs(True).outputMode(poptorch.OutputMode.All).broadcastBuffers(False)
    options.Training.gradientAccumulation(accumulation)
    return options


def normal_batches(rows: int, *sizes: int, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, ...]]:
    """One batch for each call, with one tensor for each size."""
    generator = torch.Generator().manual_seed(SEED)
    return [tuple(torch.randn(rows, size, generator=generator).to(dtype) for size in sizes) for _ in range(CALLS)]


def random_training(iterations: int, replicas: int, accumulation: int) -> Hashes:
    model = Noisy()
    batches = normal_batches(2 * iterations * replicas * accumulation, 16)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, use_combined_accum=False)
    return train(model, optimizer, batches, settings(iterations, replicas, accumulation))


def random_inference(iterations: int, replicas: int) -> Hashes:
    return infer(Noisy(), normal_batches(2 * iterations * replicas, 16), settings(iterations, replicas, 1))


def half_training(kind: str, replicas: int, *, rounding: bool, scaling: bool) -> Hashes:
    model = HalfLinear()
    options = settings(2, replicas, 2)
    options.Precision.enableStochasticRounding(rounding)
    options.Training.setAutomaticLossScaling(scaling)
    if kind == "SGD":
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, use_combined_accum=False)
    else:
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    return train(model, optimizer, normal_batches(8 * replicas, 16, 4, dtype=torch.float16), options)


def half_inference(replicas: int) -> Hashes:
    options = settings(3, replicas, 1)
    options.Precision.enableStochasticRounding(True)
    return infer(HalfLinear(), normal_batches(6 * replicas, 16, 4, dtype=torch.float16), options)


def random_groups() -> Iterator[tuple[str, Group]]:
    for bundle in ("1", "0"):
        for replicas in (1, 2):
            name = f"replicas {replicas}/bundle {bundle}"
            groups: dict[str, Group] = {"random/inference": partial(random_inference, 3, replicas)}
            for iterations, accumulation in ((1, 1), (3, 1), (1, 2), (3, 2)):
                key = f"random/training/iterations {iterations}, accumulation {accumulation}"
                groups[key] = partial(random_training, iterations, replicas, accumulation)
            groups["float16/stochastic rounding/inference"] = partial(half_inference, replicas)
            for kind in ("SGD", "AdamW"):
                for case, rounding, scaling in (
                    ("plain", False, False),
                    ("stochastic rounding", True, False),
                    ("automatic loss scaling", False, True),
                    ("both", True, True),
                ):
                    groups[f"float16/{case}/{kind}"] = partial(
                        half_training, kind, replicas, rounding=rounding, scaling=scaling
                    )
            for key, group in groups.items():
                yield f"{key}/{name}", partial(in_groups, bundle, group)


# -- running, recording, comparing ---------------------------------------------------------------------------------


def all_groups() -> dict[str, Group]:
    return dict([*zoo_groups(), *operation_groups(), *parallel_groups(), *random_groups()])


_groups: dict[str, Group] = {}
"""In a worker process: what it may be asked to run."""


def start_worker() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _groups.update(all_groups())


def run_group(name: str) -> Hashes:
    """The hashes of one group, by full name; of one that fails, the failure."""
    torch.manual_seed(SEED)
    try:
        return {f"{name}/{end}": value for end, value in _groups[name]().items()}
    except Exception as error:  # noqa: BLE001  the record says what happened
        return {name: failure(error)}


def measure(only: str) -> Hashes:
    """All cases of the groups whose names begin like this."""
    names = [name for name in all_groups() if name.startswith(only)]
    if not names:
        sys.exit(f"No group of cases begins with {only!r}.")
    found: Hashes = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=context, initializer=start_worker) as pool:
        running = [pool.submit(run_group, name) for name in names]
        for done in tqdm(as_completed(running), total=len(names), unit="group", disable=not sys.stderr.isatty()):
            found |= done.result()
    return dict(sorted(found.items()))


def metadata() -> dict[str, Any]:
    """What hashes depend on besides the code."""
    return {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def differences(before: Hashes, after: Hashes) -> dict[str, list[str]]:
    """The cases that differ, are missing or are new.

    >>> differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "0", "d": "4"})
    {'differs': ['b'], 'missing': ['c'], 'new': ['d']}
    """
    return {
        "differs": [name for name in before if name in after and before[name] != after[name]],
        "missing": [name for name in before if name not in after],
        "new": [name for name in after if name not in before],
    }


def describe(name: str, before: Hashes, after: Hashes) -> str:
    """A case, with both texts if one of them is an exception."""
    old, new = before.get(name, ""), after.get(name, "")
    return f"{name}: {old[:100]!r} -> {new[:100]!r}" if ":" in old + new else name


def compare(path: Path, only: str) -> int:
    """Prints what has changed; 1 if a case differs or is missing."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["metadata"] != metadata():
        print(f"Recorded with {record['metadata']}, but this is {metadata()}: hashes may differ for that reason.")
    after = measure(only)
    before = {name: value for name, value in record["cases"].items() if name.startswith(only)}
    found = differences(before, after)
    for kind, names in found.items():
        for name in names:
            print(f"{kind:8} {describe(name, before, after)}")
    print(f"{len(after)} cases:", ", ".join(f"{len(names)} {kind}" for kind, names in found.items()))
    return int(bool(found["differs"] or found["missing"]))


def record(path: Path, only: str) -> int:
    """Writes the file."""
    cases = measure(only)
    content = {"metadata": metadata(), "cases": cases}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    failed = sum(":" in value for value in cases.values())
    print(f"{len(cases)} cases, {failed} of them exceptions, in {path}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="only groups of cases whose names begin like this")
    arguments = parser.parse_args()
    start = time.perf_counter()
    code = {"record": record, "compare": compare}[arguments.action](arguments.file, arguments.only)
    print(f"{time.perf_counter() - start:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
