"""Which stored modules an engine runs as one GEMM, and how it cuts them, told by the names that checkpoints use.

For architectures without rules of their own. The names are those of transformers' modules, and of DeepSeek's and
Meta's own checkpoints; fusing and cutting is what vLLM 0.33 and SGLang 0.5.23 do with modules of these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blockscale.shapes.parallelism import Role
from blockscale.shapes.rules import Layer, Part, Split

Sizes = tuple[int, int]  # N and K of a stored weight


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads of the model; None where the config does not say, or the module is of another part."""

    query: int | None = None
    key_value: int | None = None

    def part(self, name: str, size: int, heads: int | None) -> Part:
        """An output or input of whole heads; of single columns where the heads do not divide it."""
        if heads is None or size % heads:
            return Part(name, size)
        return Part(name, heads, size // heads, repeat=name in ("k", "v"))


@dataclass(frozen=True, slots=True)
class Fusion:
    """Modules beside each other that read the same input and are run as one GEMM."""

    name: str
    modules: tuple[str, ...]
    split: Split


FUSIONS = (
    Fusion("fused_qkv_a_proj_with_mqa", ("q_a_proj", "kv_a_proj_with_mqa"), Split.REPLICATED),
    Fusion("fused_wqa_wkv", ("wq_a", "wkv"), Split.REPLICATED),
    Fusion("qkv_proj", ("q_proj", "k_proj", "v_proj"), Split.N),
    Fusion("wqkv", ("wq", "wk", "wv"), Split.N),
    Fusion("in_proj_qkvz", ("in_proj_qkv", "in_proj_z"), Split.N),
    Fusion("in_proj_ba", ("in_proj_b", "in_proj_a"), Split.N),
    Fusion("gate_up_proj", ("gate_proj", "up_proj"), Split.N),
    Fusion("w13", ("w1", "w3"), Split.N),
)

_QUERY = ("q_proj", "wq", "q_b_proj", "wq_b", "kv_b_proj")
_KEYS_VALUES = {"k_proj": "k", "wk": "k", "v_proj": "v", "wv": "v"}
_STACKED_ATTENTION = ("qkv_proj", "wqkv", "Wqkv", "qkv", "query_key_value", "c_attn")
_LINEAR_ATTENTION = ("in_proj", "in_proj_qkv", "in_proj_z", "in_proj_qkvz", "in_proj_b", "in_proj_a", "in_proj_ba")
_ATTENTION_OUTPUT = ("o_proj", "wo")
_STACKED_MLP = ("gate_up_proj", "w13")

# Names by what is cut, each in the order of the forward pass.
_WHOLE = ("fused_qkv_a_proj_with_mqa", "q_a_proj", "kv_a_proj_with_mqa", "fused_wqa_wkv", "wq_a", "wkv")
_ATTENTION_N = (*_QUERY, *_KEYS_VALUES, *_STACKED_ATTENTION, *_LINEAR_ATTENTION)
_ATTENTION_K = (*_ATTENTION_OUTPUT, "wo_b", "out_proj")
_MLP_N = (*_STACKED_MLP, "gate_proj", "up_proj", "w1", "w3", "fc1", "linear_fc1", "c_fc", "dense_h_to_4h")
_MLP_K = ("down_proj", "w2", "fc2", "linear_fc2", "c_proj", "dense_4h_to_h")
_FORWARD = (*_WHOLE, *_ATTENTION_N, *_ATTENTION_K, *_MLP_N, *_MLP_K)

_UNTOLD = "its name does not tell how engines cut it: listed as held whole by each GPU"

# The sparse-attention indexer of DeepSeek-V3.2 and after is held whole by each GPU.
_INDEXER = "indexer"

_SHARED_EXPERT = frozenset(("shared_expert", "shared_experts", "share_expert"))

# Stored in blocks, but not run by the block-scaled linear layer: why.
_RUN_OTHERWISE = {
    (_INDEXER, "wk"): "engines run it in BF16",
    (None, "wo_a"): "it is run as a grouped batched matmul",
    (None, "eh_proj"): "engines run it in BF16",
    (None, "lm_head"): "engines run the output head otherwise",
}


def run_otherwise(parent: str, module: str) -> str | None:
    """Why a module that is stored in blocks is no block-scaled GEMM, None where it is one."""
    return _RUN_OTHERWISE.get((parent.rpartition(".")[2], module)) or _RUN_OTHERWISE.get((None, module))


def split_of(parent: str, module: str) -> Split | None:
    """How engines cut a module of this name, None where the name does not tell."""
    if _INDEXER in parent.split(".") or module in _WHOLE:
        return Split.REPLICATED
    if module in _ATTENTION_N or module in _MLP_N:
        return Split.N
    return Split.K if module in _ATTENTION_K or module in _MLP_K else None


def place_in_forward_pass(name: str) -> tuple[int, str]:
    """Sort key of layer names: attention before MLP, inputs before outputs; names that tell nothing come last."""
    module = name.rpartition(".")[2]
    return (_FORWARD.index(module) if module in _FORWARD else len(_FORWARD), name)


def fused(fusion: Fusion, name: str, sizes: Mapping[str, Sizes], heads: Heads) -> Layer:
    """The GEMM of modules that are run as one; they have one input size."""
    outputs = tuple(_output(module, sizes[module][0], heads) for module in fusion.modules)
    role = _role_of(name, fusion.modules[0])
    return Layer(name, fusion.split, outputs, Part("input", sizes[fusion.modules[0]][1]), 1, role=role)


def single(name: str, split: Split | None, module: str, size: Sizes, heads: Heads) -> Layer:
    """The GEMM of a module that is run as it is stored; one of unknown split is held whole."""
    outputs: tuple[Part, ...] = (_output(module, size[0], heads),)
    inputs = Part("input", size[1])
    if module in _STACKED_ATTENTION:
        outputs = _stacked_heads(size[0], heads)
    elif module in _STACKED_MLP and size[0] % 2 == 0:
        outputs = Part("gate", size[0] // 2), Part("up", size[0] // 2)
    elif module in _ATTENTION_OUTPUT:
        inputs = heads.part("attention", size[1], heads.query)
    note = _UNTOLD if split is None else ""
    return Layer(name, split or Split.REPLICATED, outputs, inputs, 1, role=_role_of(name, module), note=note)


def _role_of(name: str, module: str) -> Role:
    """What a module is part of, told by its own name and the path before it."""
    if module in _WHOLE or module in _ATTENTION_N or module in _ATTENTION_K:
        return Role.ATTENTION
    return Role.SHARED_EXPERT if _SHARED_EXPERT.intersection(name.split(".")) else Role.MLP


def _output(module: str, size: int, heads: Heads) -> Part:
    if module in _QUERY:
        return heads.part("kv" if module == "kv_b_proj" else "q", size, heads.query)
    if module in _KEYS_VALUES:
        return heads.part(_KEYS_VALUES[module], size, heads.key_value)
    return Part(module.removesuffix("_proj"), size)


def _stacked_heads(size: int, heads: Heads) -> tuple[Part, ...]:
    if heads.query is None or heads.key_value is None or size % (heads.query + 2 * heads.key_value):
        return (Part("qkv", size),)
    width = size // (heads.query + 2 * heads.key_value)
    return (
        heads.part("q", heads.query * width, heads.query),
        heads.part("k", heads.key_value * width, heads.key_value),
        heads.part("v", heads.key_value * width, heads.key_value),
    )
