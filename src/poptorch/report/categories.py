"""Poplar's kinds of memory, and what the IPU Model knows of them."""

from __future__ import annotations

from dataclasses import dataclass

GAPS = "gaps"
COMING = "activations and temporaries"
"""What is not always live."""

TEMPORARY = "temporary"
"""Of variables: what an operation needs beside its operands and results, for as long as it runs."""


@dataclass(frozen=True)
class DataType:
    """One kind of memory."""

    title: str
    """In the summary."""

    attribute: str
    """Of the categories of a tile."""

    columns: tuple[str, ...] = ()
    """The categories of the IPU Model that it is made of; nothing: it is not modelled."""


DATA_TYPES = (
    DataType("Variables", "variables", ("weights", "accumulators", "optimizer state", "buffers", "stashes", COMING)),
    DataType("Constants", "constants", ("constants",)),
    DataType("Host Exchange Packet Headers", "hostExchangePacketHeader"),
    DataType("Global Exchange Packet Headers", "globalExchangePacketHeader"),
    DataType("Stack", "stack", ("stack",)),
    DataType("Vertex Instances", "vertexInstanceState", ("vertex state",)),
    DataType("Copy Descriptors", "copyDescriptor"),
    DataType("VectorList Descriptors", "vectorListDescriptor"),
    DataType("Vertex Field Data", "vertexFieldData"),
    DataType("Control Table", "controlTable"),
    DataType("Control Code", "controlCode", ("control code",)),
    DataType("Vertex Code", "vertexCode", ("vertex code",)),
    DataType("Internal Exchange Code", "internalExchangeCode", ("exchange code",)),
    DataType("Host Exchange Code", "hostExchangeCode", ("host exchange code",)),
    DataType("Global Exchange Code", "globalExchangeCode"),
    DataType("Instrumentation Results", "instrumentationResults"),
    DataType("Shared Code Storage", "sharedCodeStorage"),
    DataType("Shared Data Storage", "sharedDataStorage"),
)
"""In the order of Poplar's text profile."""

__all__ = ["COMING", "DATA_TYPES", "GAPS", "TEMPORARY", "DataType"]
