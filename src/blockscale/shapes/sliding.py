"""Models whose sliding-window layers have other heads than the rest: MiMo-V2 and Step 3.5 to 3.7."""

from __future__ import annotations

import math
from dataclasses import replace

from blockscale.errors import InputError
from blockscale.shapes.blocks import ATTENTION_ROOT, Heads, gated_mlp, grouped_query_attention
from blockscale.shapes.fields import WAY_OUT, Fields
from blockscale.shapes.parallelism import EngineVersion, Role
from blockscale.shapes.rules import Experts, Family, Layer, Site

ARCHITECTURES = (
    "MiMoV2FlashForCausalLM",
    "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration",
    "Step3p7FlashForCausalLM",
)
MODEL_TYPES = ("mimo_v2_flash", "step3p5", "step3p7")
SOURCES = {
    "vLLM 0.33.0": "model_executor/models/mimo_v2.py, step3p5.py, step3p7.py",
    "SGLang 0.5.23": "models/mimo_v2.py, step3p5.py, step3p7.py",
}

_SLIDING = "sliding_attention"
_SKIPPED = "vLLM 0.33.0 and SGLang 0.5.23 do not check the blocks of qkv_proj: they may start where it is refused here."


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """The block-scaled GEMMs of the model that are no routed experts."""
    return _step(fields) if fields.has("num_attention_groups") else _mimo(fields)


def _attention(fields: Fields, full: Heads, sliding: Heads, is_sliding: tuple[bool, ...]) -> tuple[Layer, ...]:
    hidden = fields.size("hidden_size")
    sites = [
        Site(tuple(i for i in fields.layers() if is_sliding[i] == which), (ATTENTION_ROOT,)) for which in (False, True)
    ]
    return (
        *grouped_query_attention(full, sites[0], hidden, " full attn"),
        *grouped_query_attention(sliding, sites[1], hidden, " SWA"),
    )


def _whole(fields: Fields, name: str, entries: int) -> None:
    """Raise InputError where a list has no entry for each layer."""
    if entries < len(fields.layers()):
        raise InputError(f"config field {name} names {entries} of {len(fields.layers())} layers. {WAY_OUT}")


def _mimo(fields: Fields) -> Family:
    pattern, frequency = fields.integers("hybrid_layer_pattern"), fields.integers("moe_layer_freq")
    _whole(fields, "hybrid_layer_pattern", len(pattern))
    hidden, layers = fields.size("hidden_size"), fields.layers()
    full, sliding = _mimo_heads(fields, ""), _mimo_heads(fields, "swa_")
    dense = tuple(i for i in layers if i >= len(frequency) or not frequency[i])
    where = "layer 0" if dense == (0,) else f"{len(dense)} layers"
    width = fields.size("intermediate_size") if dense else 0
    attention = _attention(fields, full, sliding, tuple(kind == 1 for kind in pattern))
    # The checkpoint stores q, k and v in as many chunks as full attention has KV heads; on as many GPUs each takes one.
    as_stored = tuple(
        replace(
            each,
            unchecked_on=full.key_value,
            note=f"k's head is no whole block; engines make an exception on {full.key_value} GPUs.",
        )
        if each.name == "qkv_proj full attn"
        else each
        for each in attention
    )
    uneven = any(heads.width != heads.value_width for heads in (full, sliding))
    return Family(
        layers=(*as_stored, *gated_mlp(f"dense mlp ({where})", Site(dense, ("mlp.",)), hidden, width)),
        heads=math.gcd(full.query, sliding.query),
        notes=(_SKIPPED,) if uneven else (),
        experts=Experts(fields.size("moe_intermediate_size")) if len(dense) < len(layers) else None,
    )


def _mimo_heads(fields: Fields, prefix: str) -> Heads:
    query, width = fields.size(f"{prefix}num_attention_heads"), fields.size(f"{prefix}head_dim")
    return Heads(
        query, fields.size(f"{prefix}num_key_value_heads", query), width, fields.size(f"{prefix}v_head_dim", width)
    )


def _step(fields: Fields) -> Family:
    types = fields.strings("layer_types")
    _whole(fields, "layer_types", len(types))
    hidden, layers = fields.size("hidden_size"), fields.layers()
    query, groups = fields.size("num_attention_heads"), fields.size("num_attention_groups")
    width = fields.size("head_dim", max(hidden // query, 1))
    other = fields.nested("attention_other_setting")
    sliding = fields.size("num_sliding_attention_heads", other.size("num_attention_heads", query))
    sparse = _step_sparse(fields, layers)
    dense = tuple(i for i in layers if i not in set(sparse))
    is_sliding = tuple(kind == _SLIDING for kind in types)
    sliding_heads = Heads(sliding, other.size("num_attention_groups", groups), width)
    shared = fields.size("share_expert_dim") if sparse else 0
    return Family(
        layers=(
            *_attention(fields, Heads(query, groups, width), sliding_heads, is_sliding),
            *gated_mlp("mlp", Site(dense, ("mlp.",)), hidden, fields.size("intermediate_size") if dense else 0),
            *gated_mlp("share_expert", Site(sparse, ("share_expert.",)), hidden, shared, Role.SHARED_EXPERT),
        ),
        heads=math.gcd(query, sliding),
        notes=("self_attn.g_proj, the gate of whole heads, is left out: it is kept unquantised.",),
        experts=Experts(fields.size("moe_intermediate_size")) if sparse else None,
    )


def _step_sparse(fields: Fields, layers: range) -> tuple[int, ...]:
    if types := fields.strings("mlp_layer_types"):
        return tuple(i for i in layers if i < len(types) and types[i] == "sparse")
    if named := fields.text("moe_layers_enum"):
        words = named.strip().split(",")
        if not all(word.strip().isdecimal() for word in words):
            raise InputError(f"config field moe_layers_enum = {named!r} is no list of layer numbers. {WAY_OUT}")
        return tuple(i for i in layers if i in {int(word) for word in words})
    return tuple(layers[1:])
