"""Looking inside compiled models: where values stop being finite, and where they differ from eager mode."""

from poptorch.debug.comparison import Comparison, ComparisonRow, compareWithEager
from poptorch.debug.non_finite import NonFinite, findNonFinite

__all__ = ["Comparison", "ComparisonRow", "NonFinite", "compareWithEager", "findNonFinite"]
