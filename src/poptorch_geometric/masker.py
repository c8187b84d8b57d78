"""Layers that work on the real entries of a padded batch."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch

Entries = torch.Tensor | tuple[torch.Tensor, ...]
Mask = torch.Tensor | None
Layer = Callable[..., Any]
DecoratedLayer = Callable[..., Any]


class Masker(abc.ABC):
    """Hides entries that a mask does not set."""

    @abc.abstractmethod
    def node_masker(self, entries: Entries, mask: Mask = None) -> Entries:
        """Hide nodes."""

    @abc.abstractmethod
    def edge_masker(self, entries: Entries, mask: Mask = None) -> Entries:
        """Hide edges."""

    @abc.abstractmethod
    def graph_masker(self, entries: Entries, mask: Mask = None) -> Entries:
        """Hide graphs."""


class NoMasker(Masker):
    """Hides nothing: returns what it gets."""

    def node_masker(self, entries: Entries, mask: Mask = None) -> Entries:
        """The very entries."""
        return entries

    def edge_masker(self, entries: Entries, mask: Mask = None) -> Entries:
        """The very entries."""
        return entries

    def graph_masker(self, entries: Entries, mask: Mask = None) -> Entries:
        """The very entries."""
        return entries


class LayerMasker(abc.ABC):
    """Makes layers that get entries through a masker."""

    def __init__(self, masker: Masker) -> None:
        self.masker = masker

    @abc.abstractmethod
    def node_masker(self, layer: Layer) -> DecoratedLayer:
        """For layers that take nodes."""

    @abc.abstractmethod
    def edge_masker(self, layer: Layer) -> DecoratedLayer:
        """For layers that take edges."""

    @abc.abstractmethod
    def graph_masker(self, layer: Layer) -> DecoratedLayer:
        """For layers that take graphs."""


class PreLayerMasker(LayerMasker):
    """Masks what a layer gets.

    >>> double = PreLayerMasker(NoMasker()).node_masker(lambda x: x * 2)
    >>> double(torch.ones(1), mask=None)
    tensor([2.])
    """

    def node_masker(self, layer: Layer) -> DecoratedLayer:
        """The layer, with masked nodes."""
        return _before(layer, self.masker.node_masker)

    def edge_masker(self, layer: Layer) -> DecoratedLayer:
        """The layer, with masked edges."""
        return _before(layer, self.masker.edge_masker)

    def graph_masker(self, layer: Layer) -> DecoratedLayer:
        """The layer, with masked graphs."""
        return _before(layer, self.masker.graph_masker)


def _before(layer: Layer, hide: Callable[..., Entries]) -> DecoratedLayer:
    def decorated(*args: torch.Tensor, mask: Mask = None) -> Any:
        entries = hide(args, mask)
        return layer(*(entries if isinstance(entries, tuple) else (entries,)))

    return decorated
