"""Cutting layers over GPUs: shares add up, what is said to work does, and no config ends in anything but a message."""

from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from blockscale.engines import engine
from blockscale.errors import InputError
from blockscale.shapes import Model, ModelShapes, Parallelism, known_architectures, layer_shapes

WIDTHS = st.integers(1, 96).map(lambda n: 64 * n)
HEADS = st.sampled_from([4, 8, 12, 16, 24, 32, 64])
FEW_HEADS = st.sampled_from([1, 2, 4, 8])
HEAD_WIDTHS = st.sampled_from([64, 128, 192, 256])
COUNTS = st.integers(1, 12)

# Fields of all families together: each reads what it knows.
SIZES = {
    "hidden_size": WIDTHS,
    "intermediate_size": WIDTHS,
    "intermediate_size_mlp": WIDTHS,
    "moe_intermediate_size": WIDTHS,
    "shared_expert_intermediate_size": WIDTHS,
    "share_expert_dim": WIDTHS,
    "num_attention_heads": HEADS,
    "swa_num_attention_heads": HEADS,
    "num_key_value_heads": FEW_HEADS,
    "swa_num_key_value_heads": FEW_HEADS,
    "head_dim": HEAD_WIDTHS,
    "swa_head_dim": HEAD_WIDTHS,
    "v_head_dim": HEAD_WIDTHS,
    "qk_nope_head_dim": HEAD_WIDTHS,
    "qk_rope_head_dim": st.just(64),
    "q_lora_rank": st.none() | WIDTHS,
    "kv_lora_rank": WIDTHS,
    "o_lora_rank": WIDTHS,
    "o_groups": FEW_HEADS,
    "index_topk": st.none() | st.just(2048),
    "index_n_heads": FEW_HEADS,
    "index_head_dim": st.just(128),
    "index_topk_freq": COUNTS,
    "num_hidden_layers": COUNTS,
    "first_k_dense_replace": st.integers(0, 3),
    "n_routed_experts": st.just(64),
    "num_experts": st.none() | st.just(64),
    "n_shared_experts": st.integers(0, 2),
    "decoder_sparse_step": st.integers(1, 3),
    "interleave_moe_layer_step": st.integers(0, 3),
    "linear_num_key_heads": FEW_HEADS,
    "linear_num_value_heads": HEADS,
    "linear_key_head_dim": HEAD_WIDTHS,
    "linear_value_head_dim": HEAD_WIDTHS,
    "compress_ratios": st.lists(st.sampled_from([0, 4, 128]), max_size=12),
    "hybrid_layer_pattern": st.lists(st.integers(0, 1), min_size=12, max_size=12),
    "moe_layer_freq": st.just(1),
}
QUANT = {"quant_method": "fp8", "weight_block_size": [128, 128]}

architectures = st.sampled_from(known_architectures())
tp_sizes = st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 32, 64])
spreads = st.builds(lambda tp, dp: Parallelism(tp, 1, dp), tp_sizes, st.booleans())
engines = st.sampled_from([None, engine("sglang"), engine("vllm", "0.9.2")])


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    architecture = draw(architectures)
    config = draw(st.fixed_dictionaries(SIZES)) | {"architectures": [architecture], "quantization_config": QUANT}
    if architecture.startswith("MiMo"):
        config["moe_layer_freq"] = draw(st.lists(st.integers(0, 1), min_size=12, max_size=12))
    if architecture == "DeepseekV4ForCausalLM":
        config["q_lora_rank"] = draw(WIDTHS)
    if architecture.startswith("Step"):
        kinds = st.sampled_from(["full_attention", "sliding_attention"])
        config |= {"num_attention_groups": 8, "layer_types": draw(st.lists(kinds, min_size=12, max_size=12))}
    return config


def listed(config: dict[str, Any], spread: Parallelism, at: Any = None, block: int = 128) -> ModelShapes:
    quant = {**config["quantization_config"], "weight_block_size": [block, block]}
    return layer_shapes(Model("m", {**config, "quantization_config": quant}), spread, at)


def names(shapes: ModelShapes) -> list[str]:
    return sorted([each.layer for each in shapes.shapes] + [each.layer for each in shapes.refused])


@given(config=configs(), spread=spreads, at=engines)
def test_every_layer_is_listed_or_refused_and_shares_add_up(config, spread, at) -> None:
    assume(not (spread.dp_attention and at is not None and at.name == "vllm"))
    shapes, whole = listed(config, spread, at), listed(config, Parallelism(1), at, block=1)
    assert not whole.refused
    assert names(shapes) == names(whole)
    of = {each.layer: each for each in whole.shapes}
    for each in shapes.shapes:
        all_of_it = of[each.layer]
        assert each.count == all_of_it.count
        cut, uncut = (each.K, all_of_it.K) if each.split == "K" else (each.N, all_of_it.N)
        assert (each.N if each.split == "K" else each.K) == (all_of_it.N if each.split == "K" else all_of_it.K)
        if each.split == "replicated" or cut == uncut:
            assert cut == uncut
        elif each.layer.startswith("qkv_proj"):  # KV heads may be held by several GPUs
            assert uncut <= cut * spread.tp_size <= uncut * spread.tp_size
        else:
            assert cut * spread.tp_size == uncut


@given(config=configs(), spread=spreads)
def test_tp_sizes_that_are_said_to_work_do_and_others_do_not(config, spread) -> None:
    for refused in listed(config, spread).refused:
        assert spread.tp_size not in refused.tp_sizes_that_work
        for working in refused.tp_sizes_that_work:
            other = listed(config, Parallelism(working, 1, spread.dp_attention))
            assert refused.layer in {shape.layer for shape in other.shapes}


@given(config=configs(), tp_size=tp_sizes, data=st.data())
def test_what_the_config_keeps_unquantised_is_left_out_layer_by_layer(config, tp_size, data) -> None:
    kept = data.draw(st.sets(st.integers(0, 11)))
    kept_in = [f"model.layers.{index}." for index in sorted(kept)]
    before = listed(config, Parallelism(tp_size), block=1)
    quant = {**QUANT, "modules_to_not_convert": kept_in}
    after = listed({**config, "quantization_config": quant}, Parallelism(tp_size), block=1)
    counts = {each.layer: each.count for each in after.shapes}
    assert counts.keys() <= {each.layer for each in before.shapes}
    layers = config["num_hidden_layers"]
    every = [each for each in before.shapes if each.count == layers]
    for each in every:
        assert counts.get(each.layer, 0) == layers - len([index for index in kept if index < layers])


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**20),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.one_of(st.integers(-2, 200), st.text(max_size=3), st.none()), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
QUANT_FIELDS = (
    "quant_method",
    "weight_block_size",
    "activation_scheme",
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "quant_algo",
    "config_groups",
    "bits",
)
OTHER_FIELDS = (*SIZES, "layer_types", "architectures", "model_type", "text_config", "quantization_config")


def shapes_or_message(config: dict[str, Any], spread: Parallelism, at: Any) -> tuple[ModelShapes | None, str]:
    try:
        return layer_shapes(Model("m", config), spread, at), ""
    except InputError as refusal:
        return None, str(refusal)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(config=configs(), data=st.data())
def test_no_config_ends_in_anything_but_shapes_or_one_message(config, data) -> None:
    for name in data.draw(st.lists(st.sampled_from(OTHER_FIELDS), max_size=4)):
        config[name] = data.draw(JUNK)
    if isinstance(config.get("quantization_config"), dict):
        quant = dict(config["quantization_config"])
        for name in data.draw(st.lists(st.sampled_from(QUANT_FIELDS), max_size=3)):
            quant[name] = data.draw(JUNK)
        config["quantization_config"] = quant
    shapes, message = shapes_or_message(config, Parallelism(data.draw(tp_sizes)), data.draw(engines))
    assert (shapes is None) == bool(message)
    assert "\n" not in message
    for each in shapes.shapes if shapes else ():
        assert min(each.N, each.K, each.count) > 0
