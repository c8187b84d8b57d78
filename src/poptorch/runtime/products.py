"""Gradients that are products of two factors, on their way into the accumulator."""

from __future__ import annotations

import threading
from collections import deque

import torch

from poptorch.executable.groups import MANY_REPLICAS
from poptorch.libraries.choice import MKL_ALONE, Libraries
from poptorch.runtime.values.factored import Product


class WaitingProducts:
    """Gradients of one parameter that are not multiplied yet.

    They wait until together they are half as large as the gradient: then the accumulator is read and written once for
    all of them, and one long product is faster than several short ones. With four replicas or more, whose memory is to
    be that of their activations, it is a quarter. Which products are multiplied together depends on sizes and on their
    number alone, and groups of them are added in order: the result does not depend on who computed what, and when.
    """

    def __init__(self, running: bool, replicas: int, libraries: Libraries = MKL_ALONE) -> None:
        self._running = running
        self._libraries = libraries
        self._share = 4 if replicas >= MANY_REPLICAS else 2
        self._waiting: list[Product] = []
        self._elements = 0
        self._closed: deque[list[Product]] = deque()
        self._added = 0
        self._busy = False
        self._lock = threading.Lock()

    @property
    def are_closed(self) -> bool:
        """Whether :meth:`multiply` has anything to do."""
        return bool(self._closed)

    def add(self, product: Product, total: torch.Tensor, at_once: bool = True) -> None:
        """Take one more; when there are enough of them, ``total`` gets them, or may get them by :meth:`multiply`."""
        self._waiting.append(product)
        self._elements += product.elements
        if self._share * (self._elements + product.elements) > total.numel():  # the next one would be too many
            self.close()
            if at_once:
                self.multiply(total)

    def close(self, least: int = 0) -> None:
        """Those that wait are a group, unless products are shorter than ``least``: then they wait for another one."""
        if self._waiting and self._waiting[-1].length >= least:
            with self._lock:
                self._closed.append(self._waiting)
            self._waiting = []
            self._elements = 0

    def multiply(self, total: torch.Tensor) -> None:
        """Add all groups to ``total``. Any thread may call it; while one is at it, others leave theirs to that one."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        while True:
            with self._lock:
                if not self._closed:
                    self._busy = False
                    return
                group = self._closed.popleft()
            self._add(group, total)

    def finish(self, total: torch.Tensor) -> None:
        """Add everything to ``total``; the next update starts afresh."""
        self.close()
        self.multiply(total)
        self._added = 0

    def reset(self) -> None:
        """Forget all of them."""
        self._waiting = []
        self._closed.clear()
        self._elements = self._added = 0
        self._busy = False

    def _add(self, group: list[Product], total: torch.Tensor) -> None:
        before, self._added = self._added, self._added + len(group)
        product = Product.sum(group)
        group.clear()  # the factors themselves are no longer needed
        if self._running:
            product.add_to(total, keep=before / self._added, share=1.0 / self._added, libraries=self._libraries)
        else:
            product.add_to(total, keep=1.0 if before else 0.0, libraries=self._libraries)
