"""Data loading, side by side with PyTorch's own loader: ratios measured in one run.

    python bench/data.py            # a minute or so
    python bench/data.py --quick    # a first impression

Two questions. With a light transform, does the loader deliver at least as many batches per second as
PyTorch's with the same workers, to a program that does not look at them and to one that reads each once?
With a heavy transform and a model that takes about as long, how much of the loading time does ``Async`` hide
compared with ``Sync``?
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import Dataset

import poptorch


class Images(Dataset[Any]):
    """Random images behind a transform of adjustable weight."""

    def __init__(self, length: int, rounds: int, size: int = 64) -> None:
        self._images = torch.randint(0, 256, (64, 3, size, size), dtype=torch.uint8)
        self._length, self._rounds = length, rounds

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._images[index % 64].to(torch.float32).div_(255)
        for _ in range(self._rounds):
            image = image.flip(-1).mul_(0.99).add_(0.005)
        return image, index % 10


def consume(batches: Iterable[Any], work: Callable[[Any], object] | None = None) -> float:
    """Seconds for one epoch."""
    started = time.perf_counter()
    for batch in batches:
        if work is not None:
            work(batch)
    return time.perf_counter() - started


def read(batch: Any) -> None:
    """Look at every value once, as any model does."""
    batch[0].sum()


def busy(seconds: float) -> Callable[[Any], None]:
    """A model that computes for a fixed time on one core."""
    left, right = torch.randn(128, 128), torch.randn(128, 128)

    def work(batch: Any) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            left @ right

    return work


def interleaved(contestants: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median of each, taking turns so that a busy machine slows all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            times[name].append(run())
    return {name: statistics.median(values) for name, values in times.items()}


def light_transform(workers: int, batches: int, repeats: int) -> None:
    """Batches per second without a consumer that works."""
    dataset, batch = Images(32 * batches, rounds=0), 32
    theirs = torch.utils.data.DataLoader(
        dataset, batch_size=batch, num_workers=workers, drop_last=True, persistent_workers=workers > 0
    )
    options = poptorch.Options()
    sync = poptorch.DataLoader(options, dataset, batch_size=batch, num_workers=workers)
    with poptorch.DataLoader(
        options, dataset, batch_size=batch, num_workers=workers, mode=poptorch.DataLoaderMode.Async
    ) as background:
        loaders = {"torch": theirs, "Sync": sync, "Async": background}
        for loader in loaders.values():
            consume(loader)  # workers are up
        for title, work in (("", None), (", each read once", read)):
            contestants = {
                name: lambda source=loader, work=work: consume(source, work) for name, loader in loaders.items()
            }
            times = interleaved(contestants, repeats)
            print(f"light transform, {workers} workers{title}: batches per second")
            for name, seconds in times.items():
                print(f"  {name:<6} {batches / seconds:8.0f}   {times['torch'] / seconds:5.2f}x torch")


def heavy_transform(batches: int, repeats: int) -> None:
    """How much of the loading time disappears behind a model that computes for a little longer."""
    dataset, batch = Images(8 * batches, rounds=100), 8
    options = poptorch.Options()
    sync = poptorch.DataLoader(options, dataset, batch_size=batch)
    load = min(consume(sync) for _ in range(2)) / batches
    work = busy(1.3 * load)
    with poptorch.DataLoader(options, dataset, batch_size=batch, mode=poptorch.DataLoaderMode.Async) as background:
        consume(background, work)
        contestants = {
            "model alone": lambda: consume(range(batches), work),
            "Sync": lambda: consume(sync, work),
            "Async": lambda: consume(background, work),
        }
        times = interleaved(contestants, repeats)
        report = background.waitReport()
    alone = times["model alone"]
    hidden = 1 - (times["Async"] - alone) / (times["Sync"] - alone)
    print(f"heavy transform ({1000 * load:.1f} ms per batch) and model: seconds per epoch of {batches} batches")
    for name, seconds in times.items():
        print(f"  {name:<12} {seconds:7.3f}")
    print(f"  Async hides {100 * hidden:.1f} % of the loading time; {times['Sync'] / times['Async']:.2f}x Sync")
    print(f"  {report}")


def warn_if_busy() -> None:
    """Ratios mean little while other programs take the cores that loading and model would share."""
    wall, cpu = time.perf_counter(), time.process_time()
    busy(0.5)(None)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if share < 0.9 or load > 0.7:
        print(f"NOTE: other programs are running (load {load:.1f} per core, this one got {100 * share:.0f} % of one)")


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer batches and repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    warn_if_busy()
    for workers in (1,) if quick else (0, 1, 2):
        light_transform(workers, batches=60 if quick else 100, repeats=3 if quick else 9)
    heavy_transform(batches=40 if quick else 100, repeats=3 if quick else 5)
    warn_if_busy()


if __name__ == "__main__":
    main()
