"""The building blocks that families share: grouped-query attention, latent attention, gated MLPs.

Layer names are those of the engines; ``modules`` those of transformers' checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blockscale.shapes.parallelism import EngineVersion, Role
from blockscale.shapes.rules import Layer, Part, Site, Split

ATTENTION_ROOT = "self_attn."


def column(name: str, site: Site, inputs: int, *outputs: Part, modules: tuple[str, ...], role: Role) -> Layer:
    """A column-parallel layer: each output is cut."""
    return _layer(name, Split.N, site, outputs, Part("input", inputs), modules, role)


def row(name: str, site: Site, outputs: int, inputs: Part, *, modules: tuple[str, ...], role: Role) -> Layer:
    """A row-parallel layer: its input is cut."""
    return _layer(name, Split.K, site, (Part("output", outputs),), inputs, modules, role)


def replicated(name: str, site: Site, inputs: int, *outputs: Part, modules: tuple[str, ...]) -> Layer:
    """A layer of attention that every GPU holds whole."""
    return _layer(name, Split.REPLICATED, site, outputs, Part("input", inputs), modules, Role.ATTENTION)


def _layer(
    name: str, split: Split, site: Site, outputs: tuple[Part, ...], inputs: Part, modules: tuple[str, ...], role: Role
) -> Layer:
    count = len(site.layers) * len(site.roots)
    return Layer(name, split, outputs, inputs, count, role=role, site=site, modules=modules)


def gated_mlp(prefix: str, site: Site, hidden: int, intermediate: int, role: Role = Role.MLP) -> tuple[Layer, ...]:
    """The two GEMMs of a gated MLP: gate and up stacked, then down. No layer where there is none."""
    if not site.layers:
        return ()
    gate, up = Part("gate", intermediate), Part("up", intermediate)
    inputs = Part("input", intermediate)
    return (
        column(f"{prefix}.gate_up_proj", site, hidden, gate, up, modules=("gate_proj", "up_proj"), role=role),
        row(f"{prefix}.down_proj", site, hidden, inputs, modules=("down_proj",), role=role),
    )


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of grouped-query attention; ``value_width`` None: as wide as the others. ``gated``: each query head is
    followed by its output gate, which doubles its width."""

    query: int
    key_value: int
    width: int
    value_width: int | None = None
    gated: bool = False


def grouped_query_attention(heads: Heads, site: Site, hidden: int, suffix: str = "") -> tuple[Layer, ...]:
    """Its two projections; KV heads are repeated where there are more GPUs than heads. No layer where there is none."""
    if not site.layers:
        return ()
    value_width = heads.value_width or heads.width
    query = Part("q", heads.query, heads.width * (2 if heads.gated else 1))
    key = Part("k", heads.key_value, heads.width, repeat=True)
    value = Part("v", heads.key_value, value_width, repeat=True)
    attended = Part("attention", heads.query, value_width)
    names, role = ("q_proj", "k_proj", "v_proj"), Role.ATTENTION
    return (
        column(f"qkv_proj{suffix}", site, hidden, query, key, value, modules=names, role=role),
        row(f"o_proj{suffix}", site, hidden, attended, modules=("o_proj",), role=role),
    )


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """Heads of multi-head latent attention, and the widths of its bottlenecks; ``query_rank`` None: there is none."""

    heads: int
    nope: int
    rope: int
    value: int
    query_rank: int | None
    latent_rank: int


# First versions that run the two projections of the hidden state as one GEMM (models/deepseek_v2.py).
FUSED_A_SINCE = {"sglang": "0.4.6", "vllm": "0.10.0"}
_KV_B_NOTE = "A GEMM of its own only while prefilling without absorbed weights."


def latent_attention(heads: LatentHeads, site: Site, hidden: int, engine: EngineVersion | None) -> tuple[Layer, ...]:
    """The projections of multi-head latent attention, as an engine's version fuses them."""
    role = Role.ATTENTION
    query = Part("q", heads.heads, heads.nope + heads.rope)
    compressed = Part("kv_a", heads.latent_rank + heads.rope)
    kv = Part("kv", heads.heads, heads.nope + heads.value)
    kv_a = replicated("kv_a_proj_with_mqa", site, hidden, compressed, modules=("kv_a_proj_with_mqa",))
    first: tuple[Layer, ...]
    if heads.query_rank is None:
        first = column("q_proj", site, hidden, query, modules=("q_proj",), role=role), kv_a
    else:
        q_a = Part("q_a", heads.query_rank)
        q_b = column("q_b_proj", site, heads.query_rank, query, modules=("q_b_proj",), role=role)
        if engine is not None and not engine.since(FUSED_A_SINCE[engine.name]):
            first = replicated("q_a_proj", site, hidden, q_a, modules=("q_a_proj",)), q_b, kv_a
        else:
            # Both projections read the hidden state: engines run them as one GEMM that no GPU cuts. SGLang's name
            # ends in _with_mqa.
            fused = "fused_qkv_a_proj" + ("_with_mqa" if engine is not None and engine.name == "sglang" else "")
            first = replicated(fused, site, hidden, q_a, compressed, modules=("q_a_proj", "kv_a_proj_with_mqa")), q_b
    kv_b = column("kv_b_proj", site, heads.latent_rank, kv, modules=("kv_b_proj",), role=role)
    attended = Part("attention", heads.heads, heads.value)
    o = row("o_proj", site, hidden, attended, modules=("o_proj",), role=role)
    return *first, replace(kv_b, note=_KV_B_NOTE), o
