"""Find out whether loading holds the model up, and load while the model runs."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset

import poptorch


class SlowImages(Dataset):
    """Images that take a millisecond each to prepare."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return torch.full((3, 16, 16), index / 256), index % 10


def train(loader: poptorch.DataLoader) -> None:
    """One epoch with a stand-in for a model: it needs a little longer than loading does."""
    for _images, _labels in loader:
        time.sleep(0.045)


def main() -> None:
    """Load the same data in two modes."""
    options = poptorch.Options().deviceIterations(4)
    for mode in (poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async):
        with poptorch.DataLoader(options, SlowImages(), batch_size=8, mode=mode) as loader:
            train(loader)
            print(f"{mode.name}: {loader.waitReport()}")


if __name__ == "__main__":  # the background process imports this file
    main()
