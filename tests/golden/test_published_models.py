"""Published models against the expected tables, at every tensor-parallel size."""

import json
from pathlib import Path

import pytest

from blockscale.shapes import PRESETS, Model, Parallelism, layer_shapes, load_model

MODELS = (
    "deepseek-ai--DeepSeek-V3",
    "deepseek-ai--DeepSeek-V3.2",
    "deepseek-ai--DeepSeek-V4-Flash",
    "Qwen--Qwen3-32B-FP8",
    "Qwen--Qwen3-30B-A3B-FP8",
)


@pytest.mark.parametrize("model", MODELS)
def test_shapes_and_refusals_are_the_expected(published_data: Path, model: str) -> None:
    expected = json.loads((published_data / "models_expected.json").read_text())[model]
    published = load_model(str(published_data / "models" / f"{model}.json"))
    assert published.name == model
    for tp_size, want in expected.items():
        shapes = layer_shapes(published, Parallelism(int(tp_size)))
        assert sorted({(each.N, each.K) for each in shapes.shapes}) == [tuple(pair) for pair in want["shapes"]]
        assert sorted(each.layer for each in shapes.refused) == want["refused_layers"]


def test_the_preset_is_the_published_model(published_data: Path) -> None:
    published = load_model(str(published_data / "models" / "deepseek-ai--DeepSeek-V3.json"))
    preset = Model(published.name, PRESETS["deepseek-v3"])
    for spread in map(Parallelism, (1, 2, 4, 8, 16, 32)):
        assert layer_shapes(preset, spread) == layer_shapes(published, spread)
