"""Lightning on virtual IPUs. Importing this makes ``Trainer(accelerator="ipu", devices=...)`` known to Lightning.

>>> from lightning.pytorch import Trainer
>>> from poptorch.integrations.lightning import IPUStrategy
>>> isinstance(Trainer(accelerator="ipu", devices=4, logger=False).strategy, IPUStrategy)
True
"""

from poptorch.integrations.requirements import require

require("lightning", "lightning")

from poptorch.integrations.lightning.accelerator import IPUAccelerator  # noqa: E402
from poptorch.integrations.lightning.registration import register  # noqa: E402
from poptorch.integrations.lightning.strategy import IPUStrategy  # noqa: E402

register()

__all__ = ["IPUAccelerator", "IPUStrategy"]
