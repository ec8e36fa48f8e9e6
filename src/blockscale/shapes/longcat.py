"""LongCat-Flash: two latent attentions and two dense MLPs in every layer, experts beside them."""

from __future__ import annotations

from blockscale.shapes.blocks import gated_mlp, latent_attention
from blockscale.shapes.deepseek_v3 import latent_heads
from blockscale.shapes.fields import Fields
from blockscale.shapes.parallelism import EngineVersion
from blockscale.shapes.rules import Experts, Family, Site

ARCHITECTURES = ("LongcatFlashForCausalLM",)
MODEL_TYPES = ("longcat_flash",)
SOURCES = {
    "vLLM 0.33.0": "model_executor/models/longcat_flash.py",
    "SGLang 0.5.23": "models/longcat_flash.py",
}


def family(fields: Fields, engine: EngineVersion | None) -> Family:
    """The block-scaled GEMMs of the model that are no routed experts."""
    hidden = fields.size("hidden_size")
    layers = tuple(fields.layers("num_layers" if fields.has("num_layers") else "num_hidden_layers"))
    width = fields.size("ffn_hidden_size" if fields.has("ffn_hidden_size") else "intermediate_size")
    of_experts = "expert_ffn_hidden_size" if fields.has("expert_ffn_hidden_size") else "moe_intermediate_size"
    unquantised = fields.strings("disable_quant_module")
    heads = latent_heads(fields)
    attention, mlps = Site(layers, ("self_attn.0.", "self_attn.1.")), Site(layers, ("mlps.0.", "mlps.1."))
    return Family(
        layers=(
            *(() if "self_attn" in unquantised else latent_attention(heads, attention, hidden, engine)),
            *(() if "mlps" in unquantised else gated_mlp("mlps", mlps, hidden, width)),
        ),
        heads=heads.heads,
        notes=tuple(f"{name} is left out: disable_quant_module keeps it unquantised." for name in unquantised),
        experts=Experts(fields.size(of_experts)),
    )
