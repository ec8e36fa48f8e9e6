"""Models of every family, with their published dimensions, against tables of what one GPU holds of each layer."""

import json
from pathlib import Path
from typing import Any

import pytest

from blockscale.shapes import Model, Parallelism, layer_shapes
from blockscale.shapes.model import FAMILIES

TP_SIZES = (1, 2, 4, 8, 16, 32)
REFUSED = "✗"
MODELS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "layer_tables.json").read_text(encoding="utf-8")
)
BLOCK_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def config_of(name: str) -> dict[str, Any]:
    return MODELS[name]["config"] | {"quantization_config": BLOCK_FP8}


@pytest.mark.parametrize(("column", "tp_size"), list(enumerate(TP_SIZES)), ids=[f"TP{tp_size}" for tp_size in TP_SIZES])
@pytest.mark.parametrize("name", MODELS)
def test_each_gpu_holds_what_the_table_says(name: str, column: int, tp_size: int) -> None:
    shapes = layer_shapes(Model(name, config_of(name)), Parallelism(tp_size))
    table = {layer: cells[column] for layer, _, _, cells in MODELS[name]["layers"]}
    assert {each.layer: f"{each.N}×{each.K}" for each in shapes.shapes} == {
        layer: cell for layer, cell in table.items() if cell != REFUSED
    }
    assert {each.layer for each in shapes.refused} == {layer for layer, cell in table.items() if cell == REFUSED}


@pytest.mark.parametrize("name", MODELS)
def test_splits_and_counts_are_those_of_the_table_in_the_order_of_the_forward_pass(name: str) -> None:
    shapes = layer_shapes(Model(name, config_of(name)), Parallelism(1))
    assert [[each.layer, each.split, each.count] for each in shapes.shapes] == [
        row[:3] for row in MODELS[name]["layers"]
    ]
    assert shapes.unverified is None


def test_every_family_has_a_table() -> None:
    named = {config_of(name)["architectures"][0] for name in MODELS}
    for module in FAMILIES:
        assert named.intersection(module.ARCHITECTURES)
