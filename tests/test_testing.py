"""poptorch.testing.allclose."""

from __future__ import annotations

import pytest
import torch

from poptorch.testing import allclose

ONES, TWOS = torch.ones(2), torch.full((2,), 2.0)


@pytest.mark.parametrize(
    ("ref", "other", "expected"),
    [
        (ONES, ONES.clone(), True),
        (ONES, ONES + 1e-7, True),
        (ONES, TWOS, False),
        (ONES, torch.ones(3), False),
        (ONES, [ONES], False),
        ((ONES, [TWOS]), (ONES, [TWOS]), True),
        ((ONES, [TWOS]), (ONES, [ONES]), False),
        ((ONES,), [ONES], False),
        ((ONES,), (ONES, ONES), False),
    ],
)
def test_allclose(ref, other, expected) -> None:
    assert allclose(ref, other) is expected


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="dict"):
        allclose({"a": ONES}, {"a": ONES})
