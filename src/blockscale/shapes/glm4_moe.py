"""GLM-4.5 to 4.7, with and without vision, and Ernie 4.5: grouped-query attention, dense and sparse layers, shared
experts."""

from __future__ import annotations

from blockscale.shapes.blocks import gated_mlp
from blockscale.shapes.dense import attention
from blockscale.shapes.fields import Fields
from blockscale.shapes.parallelism import EngineVersion, Role
from blockscale.shapes.rules import Experts, Family, Site

ARCHITECTURES = ("Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration", "Ernie4_5_MoeForCausalLM")
MODEL_TYPES = ("glm4_moe", "glm4v_moe", "glm4v_moe_text", "ernie4_5_moe")
SOURCES = {
    "vLLM 0.33.0": "model_executor/models/glm4_moe.py, glm4_1v.py, ernie45_moe.py",
    "SGLang 0.5.23": "models/glm4_moe.py, glm4v_moe.py, ernie4.py",
}


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """The block-scaled GEMMs of the model that are no routed experts."""
    hidden, width = fields.size("hidden_size"), fields.size("moe_intermediate_size")
    shared_name = "n_shared_experts" if fields.has("n_shared_experts") else "moe_num_shared_experts"
    shared = fields.count(shared_name, 0) * width
    sparse = _sparse_layers(fields)
    dense = tuple(i for i in fields.layers() if i not in set(sparse))
    return Family(
        layers=(
            *attention(fields),
            *gated_mlp("mlp", Site(dense, ("mlp.",)), hidden, fields.size("intermediate_size") if dense else 0),
            *gated_mlp(
                "shared_experts",
                Site(sparse if shared else (), ("mlp.shared_experts.",)),
                hidden,
                shared,
                Role.SHARED_EXPERT,
            ),
        ),
        heads=fields.size("num_attention_heads"),
        experts=Experts(width),
    )


def _sparse_layers(fields: Fields) -> tuple[int, ...]:
    layers = fields.layers()
    if fields.has("first_k_dense_replace"):  # GLM
        return tuple(layers[fields.count("first_k_dense_replace") :])
    step = fields.size("moe_layer_interval", 1)  # Ernie
    first, last = fields.count("moe_layer_start_index", 0), fields.count("moe_layer_end_index", len(layers) - 1)
    return tuple(i for i in layers if first <= i <= last and (i + 1) % step == 0)
