"""What docs/models.md says of families and versions is what the code does."""

from pathlib import Path

import pytest

from blockscale.shapes.blocks import FUSED_A_SINCE
from blockscale.shapes.deepseek_v3 import BF16_WK_SINCE
from blockscale.shapes.model import FAMILIES, FamilyModule, known_architectures

DOCUMENT = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", FAMILIES, ids=lambda module: module.ARCHITECTURES[0])
def test_a_family_has_a_row_with_its_architectures_and_sources(module: FamilyModule) -> None:
    architectures = ", ".join(f"`{name}`" for name in module.ARCHITECTURES)
    sources = "; ".join(f"{engine}: {files}" for engine, files in module.SOURCES.items())
    rows = [line for line in DOCUMENT.splitlines() if line.startswith(f"| {architectures} | ")]
    assert len(rows) == 1
    assert rows[0].endswith(f" | {sources} |")


def test_an_architecture_is_of_one_family() -> None:
    assert len(set(known_architectures())) == len(known_architectures())


@pytest.mark.parametrize(
    ("row", "since"),
    [("| `q_a_proj` and `kv_a_proj_with_mqa`", FUSED_A_SINCE), ("| the indexer's `wk`", BF16_WK_SINCE)],
)
def test_versions_are_those_of_the_code(row: str, since: dict[str, str]) -> None:
    (line,) = (line for line in DOCUMENT.splitlines() if line.startswith(row))
    _, _, sglang, vllm, _ = line.split("|")
    assert f"since {since['sglang']}" in sglang
    assert f"since {since['vllm']}" in vllm
