"""Qwen3-Next and Qwen3.5: gated attention in some layers, gated delta nets in the others, maybe a shared expert."""

from __future__ import annotations

from dataclasses import replace

from blockscale.errors import InputError
from blockscale.shapes.blocks import ATTENTION_ROOT, column, gated_mlp, grouped_query_attention, row
from blockscale.shapes.dense import heads
from blockscale.shapes.fields import WAY_OUT, Fields
from blockscale.shapes.parallelism import EngineVersion, Role
from blockscale.shapes.qwen3_moe import dense_layers
from blockscale.shapes.rules import Experts, Family, Layer, Part, Site

ARCHITECTURES = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
)
MODEL_TYPES = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")
SOURCES = {
    "vLLM 0.33.0": "model_executor/models/qwen3_next.py, qwen3_5.py, layers/mamba/gdn/qwen_gdn_linear_attn.py",
    "SGLang 0.5.23": "models/qwen3_next.py, qwen3_5.py",
}

_ROOT = "linear_attn."
_FULL = "full_attention"
_SMALL = "linear_attn.in_proj_ba"
_SMALL_NOTE = "Fewer rows than a block: vLLM alone runs it so, and only where the config does not leave it unquantised."
_LEFT_OUT = f"{_SMALL} is left out: it has fewer rows than a block, and "


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """The block-scaled GEMMs of the model that are no routed experts."""
    hidden, layers = fields.size("hidden_size"), fields.layers()
    full, interval = _full_attention(fields, layers)
    linear = Site(tuple(i for i in layers if i not in set(full)), (_ROOT,))
    gated = replace(heads(fields), gated=fields.flag("attn_output_gate", True))
    suffix = f" (1 of {interval} layers)" if interval > 1 else ""
    attention = grouped_query_attention(gated, Site(full, (ATTENTION_ROOT,)), hidden, suffix)
    packed = _is_packed(fields)
    # vLLM's rule for stacked outputs lets those of Qwen3.5 pass; all else refuses a model with them in blocks.
    small = not packed and (engine is None or engine.name == "vllm")
    why = "Qwen3-Next keeps it unquantised." if packed else "SGLang refuses a model with such parts in blocks."
    experts = fields.count("num_experts", 0) > 0
    dense = dense_layers(fields) if experts else tuple(layers)
    shared = fields.count("shared_expert_intermediate_size", 0) if experts else 0
    sparse = tuple(i for i in layers if i not in set(dense)) if shared else ()
    width = fields.size("intermediate_size") if dense else 0
    return Family(
        layers=(
            *attention,
            *(_delta_net(fields, linear, hidden, packed, small) if linear.layers else ()),
            *gated_mlp("mlp", Site(dense, ("mlp.",)), hidden, width),
            *gated_mlp("shared_expert", Site(sparse, ("mlp.shared_expert.",)), hidden, shared, Role.SHARED_EXPERT),
        ),
        heads=gated.query,
        notes=() if small or not linear.layers else (_LEFT_OUT + why,),
        experts=Experts(fields.size("moe_intermediate_size")) if experts else None,
    )


def _full_attention(fields: Fields, layers: range) -> tuple[tuple[int, ...], int]:
    """The layers with full attention, and one in how many has it (0 where they are not spread evenly)."""
    types = fields.strings("layer_types")
    if types and len(types) < len(layers):
        raise InputError(f"config field layer_types names {len(types)} of {len(layers)} layers. {WAY_OUT}")
    interval = fields.size("full_attention_interval", 4)
    full = tuple(i for i in layers if (types[i] == _FULL if types else (i + 1) % interval == 0))
    even = bool(full) and len(layers) % len(full) == 0
    return full, len(layers) // len(full) if even else 0


def _is_packed(fields: Fields) -> bool:
    """Whether the checkpoint stores q, k, v and z of delta nets interleaved, as one part: Qwen3-Next's does."""
    return "Qwen3NextForCausalLM" in fields.strings("architectures") or fields.text("model_type") == "qwen3_next"


def _delta_net(fields: Fields, site: Site, hidden: int, packed: bool, small: bool) -> tuple[Layer, ...]:
    """The projections of gated delta nets, with or without the small one of their gates."""
    values = fields.size("linear_num_value_heads")
    key = fields.size("linear_num_key_heads") * fields.size("linear_key_head_dim")
    value = values * fields.size("linear_value_head_dim")
    role = Role.ATTENTION
    parts: tuple[Part, ...] = (Part("qkvz", 2 * (key + value)),)
    modules: tuple[str, ...] = ("in_proj_qkvz",)
    if not packed:
        parts = Part("q", key), Part("k", key), Part("v", value), Part("z", value)
        modules = "in_proj_qkv", "in_proj_z"
    in_proj = column("linear_attn.in_proj_qkvz", site, hidden, *parts, modules=modules, role=role)
    out = row("linear_attn.out_proj", site, hidden, Part("value", value), modules=("out_proj",), role=role)
    if not small:
        return in_proj, out
    gates = column(_SMALL, site, hidden, Part("ba", 2 * values), modules=("in_proj_b", "in_proj_a"), role=role)
    return in_proj, replace(gates, aligned=False, note=_SMALL_NOTE), out
