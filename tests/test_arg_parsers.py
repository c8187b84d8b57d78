"""The registry of parsers for the user's own argument types."""

from __future__ import annotations

import pytest

import poptorch
from poptorch.arg_parsers import parser_for


class Base:
    pass


class Middle(Base):
    pass


class Leaf(Middle):
    pass


class Parser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield from ()

    def reconstruct(self, original_structure, tensor_iterator):
        return original_structure


@pytest.fixture(autouse=True)
def _clean_registry():
    yield
    for kind in (Base, Middle, Leaf):
        poptorch.registerCustomArgParser(kind, None)


def test_exact_type_first_then_the_first_registered_base() -> None:
    base, middle, leaf = Parser(), Parser(), Parser()
    poptorch.registerCustomArgParser(Base, base)
    poptorch.registerCustomArgParser(Middle, middle)
    assert parser_for(Middle) is middle
    assert parser_for(Leaf) is base  # registered before Middle, though Middle is nearer
    poptorch.registerCustomArgParser(Leaf, leaf)
    assert parser_for(Leaf) is leaf
    assert parser_for(int) is None


def test_replacing_and_removing() -> None:
    first, second = Parser(), Parser()
    poptorch.registerCustomArgParser(Base, first)
    poptorch.registerCustomArgParser(Base, second)
    assert parser_for(Base) is second
    poptorch.registerCustomArgParser(Base, None)
    poptorch.registerCustomArgParser(Base, None)
    assert parser_for(Base) is None


@pytest.mark.parametrize("parser", [object(), Parser, "text"])
def test_only_parsers_are_accepted(parser) -> None:
    with pytest.raises(poptorch.Error, match="arg_parser must inherit from ICustomArgParser"):
        poptorch.registerCustomArgParser(Base, parser)
    assert parser_for(Base) is None


def test_the_interface_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        poptorch.ICustomArgParser()
