"""Cutting layers over GPUs: shares add up, and what is said to work does."""

from hypothesis import given
from hypothesis import strategies as st

from blockscale.shapes import layer_shapes

dense_models = st.fixed_dictionaries(
    {
        "architectures": st.just(["Qwen3ForCausalLM"]),
        "hidden_size": st.sampled_from([1024, 2048, 2560, 5120]),
        "intermediate_size": st.integers(1, 200).map(lambda n: 64 * n),
        "num_hidden_layers": st.integers(1, 80),
        "num_attention_heads": st.sampled_from([8, 12, 16, 24, 32, 64]),
        "num_key_value_heads": st.sampled_from([1, 2, 4, 8]),
        "head_dim": st.sampled_from([64, 128, 256]),
        "quantization_config": st.just({"quant_method": "fp8", "weight_block_size": [128, 128]}),
    }
)
tp_sizes = st.integers(1, 64)


@given(config=dense_models, tp_size=tp_sizes)
def test_shares_are_whole_blocks_and_add_up(config, tp_size) -> None:
    shapes = layer_shapes(config, tp_size)
    assert len(shapes.shapes) + len(shapes.refused) == 4
    for shape in shapes.shapes:
        if tp_size > 1:
            assert (shape.N if shape.split == "N" else shape.K) % 128 == 0
        if shape.layer == "mlp.gate_up_proj":
            assert shape.N * tp_size == 2 * config["intermediate_size"]
        if shape.layer == "mlp.down_proj":
            assert shape.K * tp_size == config["intermediate_size"]
        if shape.layer == "o_proj":
            assert shape.K * tp_size == config["num_attention_heads"] * config["head_dim"]


@given(config=dense_models, tp_size=tp_sizes)
def test_tp_sizes_that_are_said_to_work_do(config, tp_size) -> None:
    for refused in layer_shapes(config, tp_size).refused:
        assert tp_size not in refused.tp_sizes_that_work
        for working in refused.tp_sizes_that_work:
            assert refused.layer in {shape.layer for shape in layer_shapes(config, working).shapes}
