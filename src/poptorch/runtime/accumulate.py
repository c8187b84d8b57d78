"""Gradients of several micro-batches and replicas, combined for one update. The order of additions is fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch

from poptorch.executable.executable import Executable
from poptorch.runtime.products import WaitingProducts
from poptorch.runtime.values.factored import Gradient, Product


class GradientAccumulator:
    """Adds up the gradients of one update, or keeps their mean so far.

    A mean that is taken *after* the sum is not taken here: the division is part of the update's scalars.
    """

    def __init__(self, executable: Executable, names: Sequence[str] | None = None, count: int | None = None) -> None:
        self._names = executable.device.program.gradients if names is None else list(names)
        self._types = {} if executable.update is None else executable.update.accumulators
        self._count = executable.code.loop.groups_per_update if count is None else count
        self._running = executable.update is not None and executable.update.running_mean
        self._stays = self._count > 1 and (executable.update is None or not executable.update.held)
        """Whether its memory is used again; not where the update needs only a shard of it, and it is soon gone."""

        self._totals: list[torch.Tensor] | None = None
        code = executable.code
        self._products = [WaitingProducts(self._running, code.loop.replicas, code.libraries) for _ in self._names]
        self._seen = 0

    def add(self, gradients: Sequence[Gradient], replica: int = 0, at_once: bool = True) -> None:
        """Take the gradients of one micro-batch or group; from which replica they come makes no difference.

        Unless ``at_once``, products are left to :meth:`unfinished`.
        """
        gradients = [self._converted(n, g) for n, g in zip(self._names, gradients, strict=True)]
        if self._count == 1:
            self._totals = [g.value() if isinstance(g, Product) else g for g in gradients]
            return
        if self._totals is None:
            self._totals = [_room_for(g) for g in gradients]
        whole = [(t, g) for t, g in zip(self._totals, gradients, strict=True) if isinstance(g, torch.Tensor)]
        if whole:
            self._add_whole(*map(list, zip(*whole, strict=True)))
        for total, gradient, products in zip(self._totals, gradients, self._products, strict=True):
            if isinstance(gradient, Product):
                products.add(gradient, total, at_once)
        self._seen += 1

    def _add_whole(self, totals: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        if self._seen == 0:
            torch._foreach_copy_(totals, gradients)
        elif self._running:
            # The accumulator always holds the mean so far: it cannot overflow where the sum would.
            share = 1.0 / (self._seen + 1)
            torch._foreach_mul_(totals, 1.0 - share)
            torch._foreach_add_(totals, gradients, alpha=share)
        else:
            torch._foreach_add_(totals, gradients, alpha=1)

    def typed(self, gradients: Sequence[Gradient]) -> dict[str, torch.Tensor]:
        """Gradients by parameter name, multiplied, in the types of the accumulators; they are not added."""
        converted = {n: self._converted(n, g) for n, g in zip(self._names, gradients, strict=True)}
        return {n: g.value() if isinstance(g, Product) else g for n, g in converted.items()}

    def _converted(self, name: str, gradient: Gradient) -> Gradient:
        wanted = self._types.get(name)
        if wanted is None or wanted is gradient.dtype:
            return gradient
        whole = gradient.value() if isinstance(gradient, Product) else gradient
        return whole.to(wanted)

    def close(self, least: int = 0) -> None:
        """Whatever comes now is not to be multiplied together with what came before; see :class:`WaitingProducts`."""
        for products in self._products:
            products.close(least)

    def unfinished(self) -> list[Callable[[], None]]:
        """What :meth:`take` would have to do first, of all before :meth:`close`, in jobs for several threads."""
        return [
            partial(products.multiply, total)
            for total, products in zip(self._totals or (), self._products, strict=False)
            if products.are_closed
        ]

    def take(self) -> dict[str, torch.Tensor]:
        """The combined gradients by parameter name; the next update starts afresh."""
        totals = self._totals
        assert totals is not None
        for total, products in zip(totals, self._products, strict=True):
            products.finish(total)
        self._seen = 0
        if not self._stays:
            self._totals = None  # gone before the next micro-batch makes its own
        return dict(zip(self._names, totals, strict=True))

    def reset(self) -> None:
        """Forget what was added since the last update."""
        self._seen = 0
        for products in self._products:
            products.reset()


class GroupedAccumulator:
    """Like :class:`GradientAccumulator`, for parameters of which some differ between groups of replicas.

    Gradients of such a parameter are added within each group only. The divisor of a mean is that of all other
    parameters, the number of micro-batches on all replicas, so that the loss is the mean over all of them.
    """

    def __init__(self, executable: Executable, names: Sequence[str]) -> None:
        self._names = list(names)
        self._groups = executable.device.settings.groups
        self._loop = loop = executable.code.loop
        self._running = executable.update is not None and executable.update.running_mean
        self._common = GradientAccumulator(executable, [n for n in names if n not in self._groups])
        self._members = {
            name: Counter(self._group_of(name, replica) for replica in range(loop.replicas))
            for name in names
            if name in self._groups
        }
        """How many replicas of this process belong to each group."""

        self._rows = {
            (name, row): GradientAccumulator(executable, [name], loop.gradient_accumulation * members)
            for name, rows in self._members.items()
            for row, members in rows.items()
        }

    def _group_of(self, name: str, replica: int) -> int:
        return self._groups[name].group_of(self._loop.global_replica(replica))

    def add(self, gradients: Sequence[Gradient], replica: int, at_once: bool = True) -> None:
        """Take the gradients of one micro-batch on one replica."""
        common: list[Gradient] = []
        for name, gradient in zip(self._names, gradients, strict=True):
            if name in self._groups:
                self._rows[name, self._group_of(name, replica)].add([gradient], at_once=at_once)
            else:
                common.append(gradient)
        if common:
            self._common.add(common, at_once=at_once)

    def close(self, least: int = 0) -> None:
        """As in :class:`GradientAccumulator`."""
        for accumulator in (self._common, *self._rows.values()):
            accumulator.close(least)

    def unfinished(self) -> list[Callable[[], None]]:
        """As in :class:`GradientAccumulator`."""
        return [job for a in (self._common, *self._rows.values()) for job in a.unfinished()]

    def take(self) -> dict[str, torch.Tensor]:
        """The combined gradients by parameter name, with one row for each group where there are groups."""
        result = self._common.take() if len(self._names) > len(self._members) else {}
        for name, rows in self._members.items():
            taken = {row: self._rows[name, row].take()[name] for row in rows}
            if self._running:
                taken = {row: value * (rows[row] / self._loop.replicas) for row, value in taken.items()}
            # Groups of which no replica is in this process get their gradients from others.
            other = torch.zeros_like(next(iter(taken.values())))
            result[name] = torch.stack([taken.get(row, other) for row in range(self._groups[name].count)])
        return result

    def reset(self) -> None:
        """Forget what was added since the last update."""
        for accumulator in (self._common, *self._rows.values()):
            accumulator.reset()


def _room_for(gradient: Gradient) -> torch.Tensor:
    if isinstance(gradient, Product):
        return gradient.left.new_empty(gradient.shape)
    return torch.empty_like(gradient, memory_format=torch.contiguous_format)


def accumulator_for(executable: Executable, names: Sequence[str]) -> GradientAccumulator | GroupedAccumulator:
    """What adds the gradients of these parameters."""
    if any(name in executable.device.settings.groups for name in names):
        return GroupedAccumulator(executable, names)
    return GradientAccumulator(executable, names)
