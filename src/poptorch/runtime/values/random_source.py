"""Random numbers that depend on nothing but a key: the seed, the micro-batch, the replica and the operation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch.program.opinfo import STREAMS

_MASK = (1 << 64) - 1


def mix(*words: int) -> int:
    """A 63-bit hash of some integers (the finaliser of splitmix64, chained): neighbours give unrelated seeds."""
    state = 0x9E3779B97F4A7C15
    for word in words:
        state = (state ^ (word & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state & (_MASK >> 1)


class RandomSource:
    """The generators of one micro-batch on one replica: stream ``n`` gives the same numbers whenever it is asked."""

    __slots__ = ("_words",)

    def __init__(self, *words: int) -> None:
        self._words = words  # hashed when asked for: most programs draw nothing

    @property
    def key(self) -> int:
        """All that the numbers depend on, as one integer; ``RandomSource(key)`` draws the same."""
        return mix(*self._words) if len(self._words) > 1 else self._words[0]

    def as_tensor(self) -> torch.Tensor:
        """The same for native code, which takes nothing but tensors."""
        return torch.tensor(self.key)

    @staticmethod
    def of_tensor(key: torch.Tensor) -> RandomSource:
        """What :meth:`as_tensor` was made from."""
        return GroupedRandom(key.tolist()) if key.ndim else RandomSource(int(key.item()))

    def __call__(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(mix(self.key, stream))


class GroupedRandom(RandomSource):
    """The generators of several micro-batches that run as one: each draws what it would draw alone."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[int]) -> None:
        super().__init__(*keys)
        self._keys = keys

    def as_tensor(self) -> torch.Tensor:
        """The keys of all of them."""
        return torch.tensor(self._keys)

    def __call__(self, stream: int) -> torch.Generator:
        member, own = divmod(stream, STREAMS)
        return torch.Generator().manual_seed(mix(self._keys[member], own))
