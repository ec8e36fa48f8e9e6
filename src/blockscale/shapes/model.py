"""From a model's config and a tensor-parallel size to the GEMM shapes that its layers have on one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from blockscale.errors import InputError
from blockscale.problem import QuantScheme, WeightShape
from blockscale.shapes import deepseek_v3, dense, qwen3_moe
from blockscale.shapes.fields import WAY_OUT, Fields
from blockscale.shapes.quantization import read_quantization
from blockscale.shapes.rules import Family, Layer, tp_sizes_that_work
from blockscale.shapes.source import Model


class EngineVersion(Protocol):
    """One version of one engine, as far as listing layers needs it; ``blockscale.engines.Engine`` is one."""

    @property
    def name(self) -> str:
        """``sglang`` or ``vllm``."""

    def since(self, version: str | None) -> bool:
        """Whether it is ``version`` or newer."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How a model is spread over GPUs.

    ``tp_size`` GPUs share each layer; ``ep_size`` of them share out the routed experts whole; with ``dp_attention``
    each GPU holds the attention of all heads and serves its own requests (SGLang's ``--enable-dp-attention``).
    """

    tp_size: int
    ep_size: int = 1
    dp_attention: bool = False

    def __post_init__(self) -> None:
        for what, size, option in (("tensor", self.tp_size, "--tp-size"), ("expert", self.ep_size, "--ep-size")):
            if type(size) is not int or size < 1:
                raise InputError(
                    f"{what}-parallel size {size!r} is no whole number of at least 1: give one with {option}."
                )


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The weight of one kind of layer on one GPU. ``split`` is N, K or replicated; ``count`` layers have it."""

    layer: str
    N: int
    K: int
    split: str
    count: int
    note: str = ""

    @property
    def weight(self) -> WeightShape:
        """Its (N, K)."""
        return WeightShape(self.N, self.K)


@dataclass(frozen=True, slots=True)
class RefusedLayer:
    """A layer that engines refuse at this TP size, with the number and the rule, and TP sizes at which they do not."""

    layer: str
    reason: str
    tp_sizes_that_work: tuple[int, ...]

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.tp_sizes_that_work)) or "none up to 64"
        return f"{self.layer}: {self.reason}. TP sizes that work: {sizes}."


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """All block-scaled GEMMs of a model on one of its GPUs, in the order of the forward pass.

    ``unverified`` says why the rules behind it could not be checked against an engine's source; None: they were.
    """

    name: str
    parallelism: Parallelism
    quant: QuantScheme
    shapes: tuple[LayerShape, ...]
    refused: tuple[RefusedLayer, ...]
    notes: tuple[str, ...] = ()
    unverified: str | None = None

    @property
    def tp_size(self) -> int:
        """GPUs that share each layer."""
        return self.parallelism.tp_size

    @property
    def weights(self) -> tuple[WeightShape, ...]:
        """The distinct (N, K), in order of first use."""
        return tuple(dict.fromkeys(shape.weight for shape in self.shapes))


class _FamilyModule(Protocol):
    @property
    def ARCHITECTURES(self) -> tuple[str, ...]: ...
    @property
    def MODEL_TYPES(self) -> tuple[str, ...]: ...
    def family(self, fields: Fields, engine: str | None) -> Family: ...


# A new family is a module with these three names, and its place here.
_FAMILIES: tuple[_FamilyModule, ...] = (deepseek_v3, dense, qwen3_moe)


def known_architectures() -> tuple[str, ...]:
    """Names of the architectures whose layers are known."""
    return tuple(name for module in _FAMILIES for name in module.ARCHITECTURES)


def layer_shapes(
    model: Model | Mapping[str, Any],
    parallelism: Parallelism | int,
    engine: EngineVersion | str | None = None,
    name: str | None = None,
    *,
    assume_block_quantised: bool = False,
    shared_experts_in_moe: bool = False,
) -> ModelShapes:
    """The shapes of a model's layers on one of its GPUs; ``engine`` settles what engines and versions differ in.

    Raises:
        InputError: the architecture is unknown, the model is not quantised in blocks, or the config lacks a field.
    """
    if not isinstance(parallelism, Parallelism):
        parallelism = Parallelism(parallelism)
    if not isinstance(model, Model):
        model = Model(name or "", model)
    tp_size, model_config = parallelism.tp_size, model.config
    engine_name = engine if engine is None or isinstance(engine, str) else engine.name
    module, architecture = _module_for(model_config)
    quant, assumed = read_quantization(model_config)
    family = module.family(Fields(model_config), engine_name)
    shapes: list[LayerShape] = []
    refused: list[RefusedLayer] = []
    for layer in family.layers:
        reason = layer.refusal(tp_size, quant)
        if reason is None:
            shapes.append(_shape(layer, tp_size))
        else:
            refused.append(RefusedLayer(layer.name, reason, tuple(tp_sizes_that_work(layer, family.heads, quant))))
    return ModelShapes(
        model.name or architecture, parallelism, quant, tuple(shapes), tuple(refused), notes=(*assumed, *family.notes)
    )


def _shape(layer: Layer, tp_size: int) -> LayerShape:
    weight = layer.weight(tp_size)
    return LayerShape(layer.name, weight.N, weight.K, str(layer.split), layer.count)


def _module_for(config: Mapping[str, Any]) -> tuple[_FamilyModule, str]:
    """The family's module, and the architecture's name; ``architectures`` decides before ``model_type``."""
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise InputError(f"config field architectures = {architectures!r} is no list of names. {WAY_OUT}")
    for name in architectures:
        for module in _FAMILIES:
            if name in module.ARCHITECTURES:
                return module, name
    model_type = config.get("model_type")
    if not architectures:
        for module in _FAMILIES:
            if model_type in module.MODEL_TYPES:
                return module, str(model_type)
    named = ", ".join(architectures) or (f"model_type {model_type}" if model_type else "one without a name")
    raise InputError(f"architecture {named} is not known; known are {', '.join(known_architectures())}. {WAY_OUT}")
