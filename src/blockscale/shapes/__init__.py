"""From a model's config and a tensor-parallel size to named GEMM shapes, or refusals with the sizes that work."""

from blockscale.shapes.model import LayerShape, ModelShapes, RefusedLayer, known_architectures, layer_shapes
from blockscale.shapes.source import PRESETS, load_model_config

__all__ = [
    "PRESETS",
    "LayerShape",
    "ModelShapes",
    "RefusedLayer",
    "known_architectures",
    "layer_shapes",
    "load_model_config",
]
