"""Objects with tensors inside, as arguments and as results: taken apart, or refused; never full of stand-ins."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import poptorch

X = torch.tensor([1.0, 2.0])


class Layer:
    def __init__(self, keys=None):
        self.keys = keys
        self.is_filled = keys is not None

    def update(self, keys):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys])
        self.is_filled = True


class Cache:
    """As language models pass it on from token to token."""

    def __init__(self, *layers):
        self.layers = list(layers)
        self.kind = "dynamic"

    def update(self, index, keys):
        while len(self.layers) <= index:
            self.layers.append(Layer())
        self.layers[index].update(keys)


class Slotted:
    __slots__ = ("__hidden", "value")

    def __init__(self, value):
        self.value = value
        self.__hidden = value * 2

    @property
    def hidden(self):
        return self.__hidden


@dataclass
class WithOwnField:
    value: torch.Tensor
    double: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.double = self.value * 2


def wrap(forward):
    class Model(nn.Module):
        def forward(self, *args, **kwargs):
            return forward(*args, **kwargs)

    return poptorch.inferenceModel(Model())


class TestResults:
    def test_nested_objects_have_the_values_of_each_call(self):
        def forward(x):
            cache = Cache()
            cache.update(1, x * 2)
            return {"y": x + 1, "cache": cache}

        executor = wrap(forward)
        caches = []
        for x in (X, X + 3):
            result = executor(x)
            assert type(result["cache"]) is Cache
            assert result["cache"].kind == "dynamic"
            first, second = result["cache"].layers
            assert (first.keys, first.is_filled, second.is_filled) == (None, False, True)
            assert torch.equal(second.keys, x * 2)
            caches.append(result["cache"])
        assert torch.equal(caches[0].layers[1].keys, X * 2)

    def test_slots(self):
        result = wrap(lambda x: Slotted(x))(X)
        assert torch.equal(result.value, X)
        assert torch.equal(result.hidden, X * 2)

    def test_fields_that_the_constructor_does_not_take(self):
        result = wrap(lambda x: WithOwnField(x + 1))(X)
        assert torch.equal(result.double, X * 2 + 2)

    @pytest.mark.parametrize(
        "hide",
        [lambda x: functools.partial(print, x + 1), lambda x: {x + 1}, lambda x: lambda: x + 1],
        ids=["partial", "set", "closure"],
    )
    def test_what_cannot_be_taken_apart_is_refused(self, hide):
        with pytest.raises(poptorch.Error, match=r"contains tensors that cannot be found.*registerCustomArgParser"):
            wrap(lambda x: [x, hide(x)])(X)

    def test_an_object_inside_itself_is_refused(self):
        def forward(x):
            cache = Cache(Layer(x + 1))
            cache.parent = cache
            return cache

        with pytest.raises(poptorch.Error, match="Cache among the arguments or results of the model contains itself"):
            wrap(forward)(X)


class TestArguments:
    @staticmethod
    def extended(x, cache):
        cache.update(0, x)
        return cache.layers[0].keys.sum(), cache

    def test_tensors_inside_are_inputs(self):
        executor = wrap(self.extended)
        for value in (1.0, 5.0):
            given = Cache(Layer(torch.full((3,), value)))
            total, cache = executor(X, given)
            assert total.item() == 3 * value + 3
            assert cache.layers[0].keys.tolist() == [value] * 3 + [1, 2]
            assert given.layers[0].keys.tolist() == [value] * 3

    def test_an_empty_object_is_as_before(self):
        executor = wrap(self.extended)
        given = Cache()
        _, cache = executor(X, given)
        assert given.layers == []
        assert torch.equal(cache.layers[0].keys, X)
        assert torch.equal(executor(X + 1, Cache())[1].layers[0].keys, X + 1)

    def test_another_kind_of_content_is_another_call(self):
        executor = wrap(self.extended)
        executor(X, Cache(Layer(X)))
        with pytest.raises(poptorch.Error, match=r"Length mismatch for \*args\[1\]\[layers\]"):
            executor(X, Cache(Layer(X), Layer(X)))
        with pytest.raises(poptorch.Error, match=r"Type mismatch for \*args\[1\]\[layers\]"):
            executor(X, Cache(Slotted(X)))

    def test_tensors_that_come_later_are_not_ignored(self):
        executor = wrap(self.extended)
        cache = Cache()
        executor(X, cache)
        cache.update(0, X)
        with pytest.raises(poptorch.Error, match=r"holds tensors now, and held none"):
            executor(X, cache)

    def test_objects_without_tensors_are_compared_by_their_attributes(self):
        class Settings:
            def __init__(self, factor):
                self.factor = factor
                self.names = ["a"]

        executor = wrap(lambda x, settings: x * settings.factor)
        assert torch.equal(executor(X, Settings(2)), X * 2)
        assert torch.equal(executor(X, Settings(2)), X * 2)
        with pytest.raises(poptorch.Error, match=r"Value mismatch for \*args\[1\]"):
            executor(X, Settings(3))

    @pytest.mark.parametrize("fails", [False, True])
    def test_no_stand_in_stays_in_what_forward_fills(self, fails):
        class Log:
            def __init__(self):
                self.seen, self.by_name, self.count = [], {}, 0

        def forward(x, log):
            log.seen.append(x * 2)
            log.by_name["x"] = x
            log.last = x
            if fails:
                raise KeyError("stop")
            return x + 1

        log = Log()
        executor = wrap(forward)
        if fails:
            with pytest.raises(KeyError):
                executor(X, log)
        else:
            executor(X, log)
        assert vars(log) == {"seen": [], "by_name": {}, "count": 0}
        assert not any(isinstance(value, FakeTensor) for value in vars(log).values())
