"""Datasets with fewer rows than one batch."""

from __future__ import annotations

import pytest
import torch

import poptorch


def loader(rows: int, **settings):
    data = torch.utils.data.TensorDataset(torch.arange(rows, dtype=torch.float32))
    return poptorch.DataLoader(
        poptorch.Options(), data, batch_size=4, num_workers=1, mode=poptorch.DataLoaderMode.AsyncRebatched, **settings
    )


def test_a_rebatched_loader_yields_nothing():
    short = loader(3)
    assert len(short) == 0
    for _ in range(2):
        assert list(short) == []
    short.terminate()


def test_one_that_keeps_incomplete_batches_yields_them():
    short = loader(3, drop_last=False)
    assert [len(batch[0]) for batch in short] == [3]
    short.terminate()


class Nothing(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(())


def test_one_without_any_row_is_still_an_error(capfd):
    with pytest.raises(poptorch.Error, match="The Dataset is empty"):
        list(
            poptorch.DataLoader(
                poptorch.Options(), Nothing(), batch_size=4, num_workers=1,
                mode=poptorch.DataLoaderMode.AsyncRebatched,
            )
        )  # fmt: skip
