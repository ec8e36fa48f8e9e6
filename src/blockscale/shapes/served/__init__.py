"""What a server launched: shapes from its log or from a plain list, and the batch sizes worth tuning for them."""

from blockscale.shapes.served.launches import ServedShapes
from blockscale.shapes.served.reading import read_served
from blockscale.shapes.served.weighing import weighed_batch_sizes

__all__ = ["ServedShapes", "read_served", "weighed_batch_sizes"]
