"""On a real GPU: a file and the engine's default beside each other, and libraries timed or left out with a reason."""

import json
from pathlib import Path

import pytest
import torch

from blockscale.cli.main import main
from blockscale.engines import engine
from blockscale.problem import QuantScheme, TileConfig, WeightShape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no GPU with FP8 here"
    ),
]

BATCH_SIZES = [16, 17, 256]


@pytest.mark.parametrize("weight", [WeightShape(2112, 7168), WeightShape(7168, 2304)])
def test_a_file_is_compared_beside_all_that_is_here(weight, tmp_path: Path, capsys) -> None:
    name = engine("sglang", "0.5.23").file_name(weight, QuantScheme(), torch.cuda.get_device_name(0))
    path = tmp_path / name
    path.write_text(json.dumps({"16": TileConfig(16, 64, 128, num_stages=4).to_entry(), "256": None}))
    asked = ["--batch-sizes", *map(str, BATCH_SIZES)]
    code = main(["compare", str(path), "--engine", "sglang", "--engine-version", "0.5.23", *asked, "--json"])
    report = json.loads(capsys.readouterr().out)
    (file,) = report["files"]
    assert code == bool(report["losses"])
    assert [row["M"] for row in file["rows"]] == BATCH_SIZES
    reasons = {(each["baseline"], p["M"]) for each in report["left_out"] for p in each["problems"]}
    for row in file["rows"]:
        assert row["status"] == "ok", row["message"]
        assert row["baselines"]["default"]["ratio"] > 0
        for library in ("deepgemm", "cublas"):
            timed = row["baselines"].get(library, {}).get("time_us") is not None
            assert timed != ((library, row["M"]) in reasons), report["left_out"]
    assert file["rows"][-1]["baselines"]["default"]["ratio"] == 1.0, "null is the default"
