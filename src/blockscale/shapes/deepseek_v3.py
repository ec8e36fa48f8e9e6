"""DeepSeek-V3 and its like: multi-head latent attention, dense first layers, shared experts, maybe a sparse indexer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockscale.shapes.blocks import ATTENTION_ROOT, LatentHeads, gated_mlp, latent_attention, replicated
from blockscale.shapes.fields import Fields
from blockscale.shapes.parallelism import EngineVersion, Role
from blockscale.shapes.rules import Experts, Family, Layer, Part, Site

ARCHITECTURES = (
    "DeepseekV3ForCausalLM",  # R1, V3.1 and Kimi-K2 too
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",  # GLM-5
    "DeepseekV2ForCausalLM",
    "KimiK25ForConditionalGeneration",
)
MODEL_TYPES = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "deepseek_v2", "kimi_k2", "kimi_k25")
SOURCES = {
    "vLLM 0.33.0": "model_executor/models/deepseek_v2.py, models/deepseek_v32/attention.py",
    "SGLang 0.5.23": "models/deepseek_v2.py, layers/attention/dsa/dsa_indexer.py",
}

# Published dimensions of DeepSeek-V3, R1 and V3.1, which are the same.
PRESET: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}

# First versions that run the indexer's wk in BF16: vLLM for all models, SGLang (on NVIDIA) where its rotary embedding
# is interleaved, as in GLM-5.
BF16_WK_SINCE = {"sglang": "0.5.15", "vllm": "0.20.0"}


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """All block-scaled GEMMs of the model."""
    hidden, layers = fields.size("hidden_size"), fields.layers()
    dense = min(fields.count("first_k_dense_replace", 0), len(layers))
    step = fields.size("moe_layer_freq", 1)
    sparse = tuple(i for i in layers if i >= dense and i % step == 0) if fields.has("n_routed_experts") else ()
    others = tuple(i for i in layers if i not in set(sparse))
    width = fields.size("moe_intermediate_size") if sparse else 0
    shared = fields.count("n_shared_experts", 0) * width
    heads = latent_heads(fields)
    where = f"first {dense} layers" if len(others) == dense else f"{len(others)} layers"
    dense_mlp = gated_mlp(f"dense mlp ({where})", Site(others, ("mlp.",)), hidden, _dense_width(fields, others))
    shared_site = Site(sparse if shared else (), ("mlp.shared_experts.",))
    return Family(
        layers=(
            *latent_attention(heads, Site(tuple(layers), (ATTENTION_ROOT,)), hidden, engine),
            *_indexer(fields, hidden, heads, layers, engine),
            *dense_mlp,
            *gated_mlp("shared_experts", shared_site, hidden, shared, Role.SHARED_EXPERT),
        ),
        heads=heads.heads,
        experts=Experts(width) if sparse else None,
    )


def latent_heads(fields: Fields) -> LatentHeads:
    """Heads and bottlenecks as DeepSeek's configs name them."""
    return LatentHeads(
        fields.size("num_attention_heads"),
        fields.size("qk_nope_head_dim"),
        fields.size("qk_rope_head_dim"),
        fields.size("v_head_dim"),
        fields.size("q_lora_rank") if fields.has("q_lora_rank") else None,
        fields.size("kv_lora_rank"),
    )


def _dense_width(fields: Fields, layers: tuple[int, ...]) -> int:
    return fields.size("intermediate_size") if layers else 0


def _indexer(
    fields: Fields, hidden: int, heads: LatentHeads, layers: range, engine: EngineVersion | None
) -> tuple[Layer, ...]:
    """The projections of the sparse-attention indexer; every GPU holds them whole."""
    if not fields.has("index_topk") or heads.query_rank is None:
        return ()
    site = Site(_indexed(fields, layers), (f"{ATTENTION_ROOT}indexer.",))
    width = fields.size("index_head_dim")
    queries = Part("q", fields.size("index_n_heads"), width)
    wq_b = replicated("indexer.wq_b", site, heads.query_rank, queries, modules=("wq_b",))
    if engine is None or _runs_wk_in_bf16(fields, engine):
        return (wq_b,)
    wk = replicated("indexer.wk", site, hidden, Part("k", width), modules=("wk",))
    since = BF16_WK_SINCE["vllm"]
    return wq_b, replace(
        wk, note=f"Run in BF16 by vLLM since {since}, and by SGLang for interleaved rotary embeddings."
    )


def _runs_wk_in_bf16(fields: Fields, engine: EngineVersion) -> bool:
    new = engine.since(BF16_WK_SINCE[engine.name])
    return new and (engine.name != "sglang" or fields.flag("indexer_rope_interleave", False))


def _indexed(fields: Fields, layers: range) -> tuple[int, ...]:
    """The layers that choose tokens themselves instead of reusing what a layer before has chosen."""
    if types := fields.strings("indexer_types"):
        return tuple(i for i in layers if i >= len(types) or types[i] != "shared")
    if pattern := fields.text("index_topk_pattern"):
        return tuple(i for i in layers if i >= len(pattern) or pattern[i] != "S")
    step, offset = fields.size("index_topk_freq", 1), fields.size("index_skip_topk_offset", 2)
    return tuple(i for i in layers if max(i - offset + 1, 0) % step == 0)
