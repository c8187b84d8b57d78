"""Which gradients are multiplied together, and in which order they reach the accumulator."""

from __future__ import annotations

import threading

import torch

from closeness import assert_close_sums
from poptorch.runtime.products import WaitingProducts
from poptorch.runtime.values.factored import Product


def product(number: int, length: int = 2) -> Product:
    """``number`` in all 16 x 16 elements."""
    return Product(torch.full((length, 16), number / length), torch.ones(length, 16), (True, False))


class Record:
    """Stands for the accumulator's addition: remembers how long the products were."""

    def __init__(self, monkeypatch):
        self.lengths = []
        add_to = Product.add_to

        def watched(product, total, **scales):
            self.lengths.append(product.length)
            add_to(product, total, **scales)

        monkeypatch.setattr(Product, "add_to", watched)


def test_products_wait_until_they_are_half_as_large_as_the_gradient(monkeypatch):
    record, waiting, total = Record(monkeypatch), WaitingProducts(running=False, replicas=1), torch.empty(16, 16)
    for number in range(1, 4):
        waiting.add(product(number), total)  # 64 elements each, of 256
    assert record.lengths == [4]
    assert not waiting.are_closed
    waiting.finish(total)
    assert record.lengths == [4, 2]
    assert torch.equal(total, torch.full((16, 16), 6.0))


def test_a_closed_group_is_multiplied_without_what_comes_later(monkeypatch):
    record, waiting, total = Record(monkeypatch), WaitingProducts(running=False, replicas=1), torch.empty(64, 64)
    waiting.add(product(1), total)
    waiting.add(product(2), total)
    waiting.close(least=3)  # too short to be multiplied alone
    assert not waiting.are_closed
    waiting.close(least=2)
    assert waiting.are_closed
    waiting.add(product(3), total)
    waiting.multiply(total[:16, :16])
    assert record.lengths == [4]
    waiting.finish(total[:16, :16])
    assert record.lengths == [4, 2]


def test_a_running_mean_is_that_of_all(monkeypatch):
    waiting, total = WaitingProducts(running=True, replicas=1), torch.empty(16, 16)
    for number in (2, 4, 9):
        waiting.add(product(number), total)
    waiting.finish(total)
    assert_close_sums(total, torch.full((16, 16), 5.0), terms=3)


def test_groups_are_added_in_order_whoever_multiplies(monkeypatch):
    """A thread that comes while another one multiplies leaves its group to that one."""
    order, inside, go_on = [], threading.Event(), threading.Event()

    def slow(self, total, **scales):
        order.append(float(self.left.sum() * 16 / 16 / 16))
        inside.set()
        assert go_on.wait(10)

    monkeypatch.setattr(Product, "add_to", slow)
    waiting, total = WaitingProducts(running=False, replicas=1), torch.empty(64, 64)
    waiting.add(product(1), total)
    waiting.close()
    first = threading.Thread(target=waiting.multiply, args=(total,))
    first.start()
    assert inside.wait(10)
    waiting.add(product(2), total)
    waiting.close()
    waiting.multiply(total)  # returns at once
    assert order == [1.0]
    go_on.set()
    first.join(10)
    assert order == [1.0, 2.0]


def test_nothing_is_left_after_a_reset(monkeypatch):
    record, waiting, total = Record(monkeypatch), WaitingProducts(running=False, replicas=1), torch.zeros(16, 16)
    waiting.add(product(1), total)
    waiting.close()
    waiting.add(product(2), total)
    waiting.reset()
    waiting.finish(total)
    assert record.lengths == []
