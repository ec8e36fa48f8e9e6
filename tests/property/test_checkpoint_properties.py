"""Whatever a checkpoint holds, it is read or refused with a message; never a traceback."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import InputError
from blockscale.problem import QuantScheme, ceil_div
from blockscale.shapes.checkpoint import StoredTensor, family
from blockscale.shapes.safetensors import read_header
from blockscale.shapes.source import Model

QUANT = QuantScheme()

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F8_E4M3", "X9"]) | anything,
        "shape": st.lists(st.integers(-1, 2**64), max_size=3) | anything,
        "data_offsets": st.lists(st.integers(-1, 2**64), max_size=3) | anything,
    },
)
headers = (
    st.binary(max_size=64)
    | anything.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.text(max_size=8), entries, max_size=3).map(lambda value: json.dumps(value).encode())
)


def read(content: bytes) -> dict[str, StoredTensor] | None:
    """The tensors of a file with these bytes, None where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(content)
        try:
            return read_header(path)
        except InputError:
            return None


@given(headers, st.none() | st.integers(0, 2**64 - 1))
def test_garbage_is_read_or_refused(header: bytes, claimed: int | None) -> None:
    length = len(header) if claimed is None else claimed
    tensors = read(length.to_bytes(8, "little") + header)
    assert tensors is None or all(side >= 0 for tensor in tensors.values() for side in tensor.shape)


tensors = st.dictionaries(
    st.text(max_size=20),
    st.builds(
        StoredTensor, st.sampled_from(["F32", "F8_E4M3", "I8"]), st.lists(st.integers(0, 2**40), max_size=3).map(tuple)
    ),
    max_size=8,
)


@given(tensors)
def test_what_is_written_is_read(written: Mapping[str, StoredTensor]) -> None:
    written = {name: tensor for name, tensor in written.items() if name != "__metadata__"}
    header, end = {}, 0
    for name, tensor in written.items():
        size = 4 if tensor.dtype == "F32" else 1
        for side in tensor.shape:
            size *= side
        if end + size >= 2**63:
            return
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    assert read(len(text).to_bytes(8, "little") + text) == written


_PARTS = ["model", "layers", "0", "1", "7", "self_attn", "mlp", "experts", "indexer", "mtp", "visual"]
_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "w1", "w2", "w3", "wq_b", "blend", "0"]
names = st.lists(st.sampled_from(_PARTS), max_size=5).flatmap(
    lambda parts: st.sampled_from(_MODULES).map(lambda module: ".".join([*parts, module]))
)
sides = st.integers(1, 40).map(lambda blocks: 64 * blocks)
config = st.fixed_dictionaries(
    {},
    optional={
        "num_attention_heads": st.integers(1, 64),
        "num_key_value_heads": st.integers(1, 64),
        "num_hidden_layers": st.integers(1, 4),
        "architectures": st.just(["NewForCausalLM"]) | anything,
    },
)


@given(st.dictionaries(names, st.tuples(sides, sides, st.booleans()), min_size=1, max_size=12), config)
def test_every_weight_in_blocks_is_listed_or_a_note_says_why(
    modules: dict[str, tuple[int, int, bool]], config: dict[str, object]
) -> None:
    stored = {}
    for name, (n, k, in_blocks) in modules.items():
        stored[f"{name}.weight"] = StoredTensor("F8_E4M3" if in_blocks else "BF16", (n, k))
        if in_blocks:
            stored[f"{name}.weight_scale_inv"] = StoredTensor("F32", (ceil_div(n, 128), ceil_div(k, 128)))
    declared = {**config, "quantization_config": {"weight_block_size": [128, 128]}}
    try:
        found = family(Model("some", declared, stored), QUANT)
    except InputError:  # nothing is left
        return
    listed = sum(len(layer.outputs) * layer.count for layer in found.layers)
    in_blocks = sum(kept for _, _, kept in modules.values())
    told = found.experts is not None or any("left out" in note or "MoE" in note for note in found.notes)
    assert listed == in_blocks or (listed < in_blocks and told)
    for layer in found.layers:
        weight = layer.weight(1)
        assert sum(part.size for part in layer.outputs) == weight.N
        assert layer.inputs.size == weight.K
