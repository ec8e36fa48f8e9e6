"""From a model's config and a tensor-parallel size to named GEMM shapes, or refusals with the sizes that work."""

from blockscale.shapes.model import LayerShape, ModelShapes, RefusedLayer, known_architectures, layer_shapes
from blockscale.shapes.parallelism import EngineVersion, Parallelism
from blockscale.shapes.source import PRESETS, Model, load_model

__all__ = [
    "PRESETS",
    "EngineVersion",
    "LayerShape",
    "Model",
    "ModelShapes",
    "Parallelism",
    "RefusedLayer",
    "known_architectures",
    "layer_shapes",
    "load_model",
]
