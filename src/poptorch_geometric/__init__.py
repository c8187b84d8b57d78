"""PyTorch Geometric with poptorch: batches of graphs in fixed sizes, and PyG's functions with static shapes.

Importing the package lets wrapped models take and return graphs, and gives PyG, while a model is captured, those forms
of its functions whose shapes do not depend on values.
"""

from poptorch._version import __version__
from poptorch_geometric.collate import make_exclude_keys
from poptorch_geometric.common import call_once
from poptorch_geometric.dataloader import FixedSizeDataLoader
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.override import registerOptionalOverrides, registerOverrideManager
from poptorch_geometric.strategies import FixedSizeStrategy, OverSizeStrategy
from poptorch_geometric.types import PyGArgsParser, registerCustomArgParsers
from poptorch_geometric.utils import TrainingStepper, set_aggregation_dim_size

__all__ = [
    "FixedSizeDataLoader",
    "FixedSizeOptions",
    "FixedSizeStrategy",
    "OverSizeStrategy",
    "PyGArgsParser",
    "TrainingStepper",
    "__version__",
    "make_exclude_keys",
    "set_aggregation_dim_size",
]

registerOverrideManager()
registerOptionalOverrides()
