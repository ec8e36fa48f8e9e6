"""From a model's config and the GPUs that share it to the GEMM shapes that its layers have on one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from blockscale.errors import InputError
from blockscale.problem import QuantScheme, WeightShape
from blockscale.shapes import (
    checkpoint,
    deepseek_v3,
    deepseek_v4,
    dense,
    glm4_moe,
    llama4,
    longcat,
    qwen3_moe,
    qwen3_next,
    sliding,
)
from blockscale.shapes.exclusions import keep_quantised
from blockscale.shapes.fields import Fields, architectures, own_name, text_part
from blockscale.shapes.parallelism import EngineVersion, Parallelism, Role
from blockscale.shapes.quantization import Quantisation, read_quantization
from blockscale.shapes.rules import Family, Layer, tp_sizes_that_work
from blockscale.shapes.source import Model


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


class FamilyModule(Protocol):
    """What a module of a family has; ``SOURCES`` names the files of each engine that its rules were checked against."""

    @property
    def ARCHITECTURES(self) -> tuple[str, ...]:
        """Names under ``architectures`` in a config."""

    @property
    def MODEL_TYPES(self) -> tuple[str, ...]:
        """Names under ``model_type``, which count where no architecture is named."""

    @property
    def SOURCES(self) -> dict[str, str]:
        """Files by engine and version."""

    def family(self, fields: Fields, engine: EngineVersion | None) -> Family:
        """The layers of a model."""


# A new family is a module with these four names, and its place here.
FAMILIES: tuple[FamilyModule, ...] = (
    deepseek_v3,
    deepseek_v4,
    dense,
    qwen3_moe,
    qwen3_next,
    glm4_moe,
    llama4,
    longcat,
    sliding,
)

_UNCHECKED = {
    "Step3p7FlashForCausalLM": "vLLM 0.33.0 and SGLang 0.5.23 have no such architecture; it is read as Step 3.7.",
}


def known_architectures() -> tuple[str, ...]:
    """Names of the architectures whose layers are known."""
    return tuple(name for module in FAMILIES for name in module.ARCHITECTURES)


def layer_shapes(
    model: Model,
    parallelism: Parallelism,
    engine: EngineVersion | None = None,
    *,
    assume_block_quantised: bool = False,
    shared_experts_in_moe: bool = False,
) -> ModelShapes:
    """The shapes of a model's layers on one of its GPUs.

    ``engine`` settles what engines and versions differ in; without it the listing is what the newest ones agree on.
    ``assume_block_quantised``: FP8 in blocks of 128×128 where the config declares no quantisation in blocks.
    ``shared_experts_in_moe``: shared experts run in the MoE kernel, which leaves no GEMM of theirs. A layer whose parts
    are refused is listed in ``refused``, the others nevertheless in ``shapes``.

    Raises:
        InputError: the architecture is unknown and there is no checkpoint to read, the model is not quantised in
            blocks, the config lacks a field, or the engine has no such parallelism.
    """
    if engine is not None and engine.name == "vllm" and parallelism.dp_attention:
        raise InputError("DP attention is SGLang's: for vLLM give the --tp-size of one data-parallel replica instead.")
    quantisation = read_quantization(
        model.config, engine=None if engine is None else engine.name, assume_block_quantised=assume_block_quantised
    )
    family, unverified = _family(model, quantisation, engine)
    folded = shared_experts_in_moe and any(layer.role is Role.SHARED_EXPERT for layer in family.layers)
    shapes: list[LayerShape] = []
    refused: list[RefusedLayer] = []
    notes = [*quantisation.notes, *family.notes]
    for layer in family.layers:
        kept = keep_quantised(layer, quantisation.named, unnamed=quantisation.unnamed)
        if kept.note:
            notes.append(kept.note)
        if kept.layer is None or (folded and layer.role is Role.SHARED_EXPERT):
            continue
        gpus = parallelism.gpus_for(layer.role, engine)
        reason = kept.mixed or layer.refusal(gpus, quantisation.scheme)
        if reason is None:
            shapes.append(_shape(kept.layer, gpus))
        else:
            work = tp_sizes_that_work(layer, family, quantisation.scheme, parallelism, engine)
            refused.append(RefusedLayer(layer.name, reason, () if kept.mixed else tuple(work)))
    notes += _notes(family, parallelism, quantisation.scheme, engine, folded)
    name = model.name or own_name(model.config)
    return ModelShapes(name, parallelism, quantisation.scheme, tuple(shapes), tuple(refused), tuple(notes), unverified)


def _shape(layer: Layer, gpus: int) -> LayerShape:
    weight = layer.weight(gpus)
    return LayerShape(layer.name, weight.N, weight.K, str(layer.split), layer.count, layer.note)


def _notes(
    family: Family, parallelism: Parallelism, quant: QuantScheme, engine: EngineVersion | None, folded: bool
) -> list[str]:
    """What holds of experts, routed and shared."""
    notes = [] if family.experts is None else [family.experts.note(parallelism, quant)]
    if not any(layer.role is Role.SHARED_EXPERT for layer in family.layers):
        return notes
    if folded:
        notes.append("Shared experts are left out: they are folded into the MoE kernel.")
        if parallelism.ep_size > 1:
            notes.append("With expert parallelism SGLang 0.5.23 folds them on AMD GPUs alone.")
    elif engine is None or engine.name == "sglang":
        notes.append("SGLang may fold the shared experts into its MoE kernel: their GEMMs are not run then.")
        if parallelism.ep_size > 1:
            notes.append("With an all-to-all backend such as DeepEP, SGLang holds shared experts whole on each GPU.")
    return notes


def _family(model: Model, quantisation: Quantisation, engine: EngineVersion | None) -> tuple[Family, str | None]:
    """The model's layers, and why they could not be checked against an engine, None where they were."""
    module, unverified = _module_for(model.config)
    if module is not None:
        return module.family(Fields(model.config), engine), unverified
    return checkpoint.family(model, quantisation.scheme), (
        f"architecture {own_name(model.config)} has no rules here: its layers are read from names, shapes "
        "and scales of its checkpoint."
    )


def _module_for(config: Mapping[str, Any]) -> tuple[FamilyModule | None, str | None]:
    """The family's module, None where there is none, and why it could not be checked.

    ``architectures`` decides before ``model_type``; those of a nested ``text_config`` where the wrapper is not known.
    """
    for name in architectures(config):
        for module in FAMILIES:
            if name in module.ARCHITECTURES:
                return module, _UNCHECKED.get(name)
    if not architectures(config):
        for module in FAMILIES:
            if config.get("model_type") in module.MODEL_TYPES:
                return module, None
    nested = text_part(config)
    if nested is not None:
        module_of_text, _ = _module_for({key: value for key, value in nested.items() if key != "text_config"})
        if module_of_text is not None:
            return (
                module_of_text,
                f"architecture {own_name(config)} is not known; its text part is read as {own_name(nested)}.",
            )
    return None, None
