"""How products and convolutions are spread over the tiles of an IPU: the cheapest plan that fits."""

from poptorch.ipu_model.planner.plans import plan_convolution, plan_product
from poptorch.ipu_model.planner.shapes import ConvolutionShape, ProductPass

__all__ = ["ConvolutionShape", "ProductPass", "plan_convolution", "plan_product"]
