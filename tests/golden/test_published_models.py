"""Published models against the expected tables, at every tensor-parallel size."""

import json
from pathlib import Path

import pytest

from blockscale.shapes import PRESETS, layer_shapes, load_model_config

MODELS = ("deepseek-ai--DeepSeek-V3", "Qwen--Qwen3-32B-FP8", "Qwen--Qwen3-30B-A3B-FP8")


@pytest.mark.parametrize("model", MODELS)
def test_shapes_and_refusals_are_the_expected(published_data: Path, model: str) -> None:
    expected = json.loads((published_data / "models_expected.json").read_text())[model]
    name, config = load_model_config(str(published_data / "models" / f"{model}.json"))
    assert name == model
    for tp_size, want in expected.items():
        shapes = layer_shapes(config, int(tp_size))
        assert sorted({(each.N, each.K) for each in shapes.shapes}) == [tuple(pair) for pair in want["shapes"]]
        assert sorted(each.layer for each in shapes.refused) == want["refused_layers"]


def test_the_preset_is_the_published_model(published_data: Path) -> None:
    _, published = load_model_config(str(published_data / "models" / "deepseek-ai--DeepSeek-V3.json"))
    for tp_size in (1, 2, 4, 8, 16, 32):
        assert layer_shapes(PRESETS["deepseek-v3"], tp_size) == layer_shapes(published, tp_size)
