"""Lightning learns the names ``accelerator="ipu"`` and ``strategy="ipu"``."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector

from poptorch.integrations.lightning.accelerator import IPUAccelerator
from poptorch.integrations.lightning.strategy import IPUStrategy


def register() -> None:
    """Add the accelerator and the strategy, once.

    The registries alone do not do: for several devices of an accelerator that it does not know, Lightning takes DDP.
    So the function that chooses a strategy is wrapped.
    """
    if "ipu" in AcceleratorRegistry:
        return
    AcceleratorRegistry.register("ipu", IPUAccelerator, description="Virtual IPUs")
    StrategyRegistry.register("ipu", IPUStrategy, description="Compiled steps on virtual IPUs")
    choose = _AcceleratorConnector._choose_strategy

    def choose_strategy(connector: Any) -> Any:
        return IPUStrategy() if isinstance(connector.accelerator, IPUAccelerator) else choose(connector)

    _AcceleratorConnector._choose_strategy = choose_strategy
