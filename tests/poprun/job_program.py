"""A program for several instances that tries everything, and writes what it found to ``<folder>/<instance>.pt``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import horovod.torch as hvd  # before popdist, as programs with sorted imports have it
import torch
from training import train

import popdist
import popdist.poptorch
import poptorch
from popdist import collectives

TYPES = (torch.float16, torch.float32, torch.int8, torch.int16, torch.int32, torch.int64)


def named(index: int) -> dict[str, int]:
    """Operations with names, begun in another order on each instance."""
    found: dict[str, int] = {}

    def run(name: str) -> None:
        found[name] = int(collectives.allReduceSum(torch.tensor([index + len(name)]), name=name))

    names = ["a", "bb", "ccc"]
    threads = [threading.Thread(target=run, args=(name,)) for name in names[index % 3 :] + names[: index % 3]]
    for thread in threads:
        thread.start()
        thread.join(0.2)  # so that the order is not left to chance
    for thread in threads:
        thread.join()
    return found


def on_some_instances(trained: Any, folder: Path) -> dict[str, Any]:
    """What happens inside and after ``execute_on_instances``."""
    index, calls = popdist.getInstanceIndex(), []

    def save(state: dict[str, Any]) -> str:
        calls.append(index)
        popdist.synchronize()  # of the members
        inner = collectives.allReduceSum(torch.tensor([1]))
        trained.copyWeightsToHost()
        torch.save(state, folder / "checkpoint.pt")
        return f"saved by {int(inner)}"

    def fail() -> None:
        raise KeyError("inside")

    result = popdist.execute_on_instances({0}, save, trained.state_dict())
    failed = False
    try:
        popdist.execute_on_instances({0}, fail)
    except KeyError:
        failed = True
    popdist.synchronize()
    total = collectives.allReduceSum(torch.tensor([1]))
    return {"result": result, "calls": calls, "failed": failed, "total after": int(total)}


def with_horovod(index: int) -> dict[str, Any]:
    """What programs do with Horovod."""
    hvd.init()
    torch.manual_seed(100 + index)
    model = torch.nn.Linear(2, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    value = torch.tensor([float(index), 1.0])
    return {
        "layout": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()),
        "mean": hvd.allreduce(value),
        "average": hvd.allreduce(value, average=True),
        "sum": hvd.allreduce(value.half(), op=hvd.Sum),
        "grouped": hvd.grouped_allreduce([value, value.long()], op=hvd.Max),
        "seed": hvd.broadcast(torch.tensor([index + 7]), root_rank=0),
        "timings": hvd.allgather(torch.tensor([float(index)])),
        "rows": hvd.allgather(torch.full((index + 1,), index)),
        "object": hvd.broadcast_object({"name": index}, root_rank=1),
        "weights": model.weight.detach().clone(),
    }


def main(folder: Path) -> None:
    popdist.init()
    popdist.init()
    index, count = popdist.getInstanceIndex(), popdist.getNumInstances()
    options = popdist.poptorch.Options(ipus_per_replica=1)
    trained = train(options, index, count)
    found = {
        "layout": (
            popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(), popdist.getReplicaIndexOffset(), count, index,
            popdist.getLocalInstanceIndex(),
        ),
        "backend": popdist.isBackendInitialized(),
        "device": popdist.getDeviceId(),
        "process": (options.Distributed.processId, options.Distributed.numProcesses),
        "plain process": poptorch.Options().Distributed.numProcesses,
        "weights": {name: value.clone() for name, value in trained.state_dict().items()},
        "sums": [collectives.allReduceSum(torch.full((2,), index + 1, dtype=dtype)) for dtype in TYPES],
        "gathered": [collectives.allGather(torch.full((1,), index, dtype=dtype)) for dtype in TYPES],
        "told": [collectives.broadcast(torch.full((1,), index, dtype=dtype), 1) for dtype in (*TYPES, torch.bool)],
        "named": named(index),
        "some": on_some_instances(trained, folder),
        "horovod": with_horovod(index),
        "cache": any("cache" in str(value) for value in options._Popart.options.values()),
    }  # fmt: skip
    trained.destroy()
    # Weights that only instance 0 has set, and then gave to all.
    inference = poptorch.inferenceModel(torch.nn.Linear(2, 2), popdist.poptorch.Options())
    if index == 0:
        torch.nn.init.constant_(inference.weight, 3.0)
    hvd.broadcast_parameters(inference.state_dict(), root_rank=0)
    rows = torch.ones(popdist.getNumLocalReplicas(), 2)
    found["outputs"] = inference(rows)[0]
    popdist.finalizeBackend()
    popdist.finalizeBackend()
    found["backend afterwards"] = popdist.isBackendInitialized()
    torch.save(found, folder / f"{index}.pt")
    print(f"instance {index} of {count} is done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
