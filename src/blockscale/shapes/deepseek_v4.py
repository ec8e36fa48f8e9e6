"""DeepSeek-V4: compressed latent attention with grouped output projections, shared experts in every layer."""

from __future__ import annotations

from blockscale.shapes.blocks import column, gated_mlp, replicated, row
from blockscale.shapes.fields import Fields
from blockscale.shapes.parallelism import EngineVersion, Role
from blockscale.shapes.rules import Experts, Family, Part, Site

ARCHITECTURES = ("DeepseekV4ForCausalLM",)
MODEL_TYPES = ("deepseek_v4",)
SOURCES = {
    "vLLM 0.33.0": "models/deepseek_v4/attention.py, models/deepseek_v4/nvidia/model.py",
    "SGLang 0.5.23": "models/deepseek_v4.py, layers/attention/dsv4/indexer.py",
}

_ROOT = "attn."
_INDEXED_RATIO = 4  # layers whose keys are compressed by 4 have an indexer, those compressed by 128 or not have none


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """All block-scaled GEMMs of the model."""
    hidden, layers = fields.size("hidden_size"), fields.layers()
    heads, width, rank = (fields.size(name) for name in ("num_attention_heads", "head_dim", "q_lora_rank"))
    grouped = fields.size("o_groups") * fields.size("o_lora_rank")
    expert = fields.size("moe_intermediate_size")
    shared = fields.count("n_shared_experts", 0) * expert
    attention, indexer = Site(tuple(layers), (_ROOT,)), Site(_indexed(fields, layers), (f"{_ROOT}indexer.",))
    index_heads = Part("q", fields.size("index_n_heads"), fields.size("index_head_dim"))
    first = "wqkv_a" if engine is not None and engine.name == "sglang" else "fused_wqa_wkv"
    role = Role.ATTENTION
    return Family(
        layers=(
            replicated(first, attention, hidden, Part("q_a", rank), Part("kv", width), modules=("wq_a", "wkv")),
            column("wq_b", attention, rank, Part("q", heads, width), modules=("wq_b",), role=role),
            row("wo_b", attention, hidden, Part("groups", grouped), modules=("wo_b",), role=role),
            *((replicated("indexer.wq_b", indexer, rank, index_heads, modules=("wq_b",)),) if indexer.layers else ()),
            *gated_mlp(
                "shared_experts",
                Site(tuple(layers) if shared else (), ("ffn.shared_experts.",)),
                hidden,
                shared,
                Role.SHARED_EXPERT,
            ),
        ),
        heads=heads,
        notes=("wo_a is left out: it is run as a grouped batched matmul, not by the block-scaled linear layer.",),
        experts=Experts(expert),
    )


def _indexed(fields: Fields, layers: range) -> tuple[int, ...]:
    ratios = fields.integers("compress_ratios")
    if not ratios:
        types, rates = fields.strings("layer_types"), fields.nested("compress_rates")
        ratios = tuple(rates.count(kind, 0) for kind in types)
    return tuple(i for i in layers if i < len(ratios) and ratios[i] == _INDEXED_RATIO)
