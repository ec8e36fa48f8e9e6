"""Further keys in files: exported from a store, beside what is there, with their provenance."""

import json
from pathlib import Path

import pytest

from blockscale.cli.main import main
from blockscale.engines import engine, sidecar_path
from blockscale.tuning.fitted import STATUS

NAME = "N=7168,K=2304,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
SIZES = (16, 24, 64, 96, 128, 256)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run on the recorded H200."""
    folder = tmp_path_factory.mktemp("tuned")
    arguments = ["--N", "7168", "--K", "2304", "--device", "recorded:h200", "--engine", "sglang", "--json"]
    sizes = map(str, SIZES)
    code = main(
        ["tune", *arguments, "--batch-sizes", *sizes, "--store", str(folder / "s.db"), "--save-path", str(folder / "c")]
    )
    assert code == 0
    return folder / "s.db"


def export(store: Path, folder: Path, *options: str) -> dict[int, dict]:
    arguments = ["export", "configs", "--store", str(store), "--save-path", str(folder), "--engine", "sglang"]
    assert main([*arguments, *options]) == 0
    return {int(m): entry for m, entry in json.loads((folder / NAME).read_text()).items()}


def test_keys_are_those_asked_for_unless_a_fit_is_wanted(store: Path, tmp_path: Path) -> None:
    assert tuple(export(store, tmp_path / "a")) == SIZES
    assert tuple(export(store, tmp_path / "b", "--keys", "asked")) == SIZES


def test_a_fit_adds_keys_above_whole_tiles_and_leaves_the_tuned_ones(store: Path, tmp_path: Path, capsys) -> None:
    asked, fitted = export(store, tmp_path / "a"), export(store, tmp_path / "b", "--keys", "fit")
    assert {m: fitted[m] for m in SIZES} == asked
    further = [m for m in fitted if m not in asked]
    assert {65, 129} <= set(further)
    assert list(fitted) == sorted(fitted)
    assert "hold configs of their neighbours" in capsys.readouterr().out
    # Above one tile of 64 rows the lookup takes what is faster for two.
    keys = list(fitted)
    assert engine("sglang", "0.5.23").lookup_key(keys, 66) == 65
    assert fitted[65] != asked[64]


def test_the_sidecar_says_where_a_further_key_comes_from(store: Path, tmp_path: Path) -> None:
    fitted = export(store, tmp_path, "--keys", "fit")
    records = json.loads(sidecar_path(tmp_path / NAME).read_text())
    record = records["65"]
    assert record["status"] == STATUS
    assert record["entry"] == fitted[65]
    assert record["serves"][0] == 65
    assert min(record["tried_us"].values()) <= record["expected_us"] <= max(record["tried_us"].values())
    assert records["64"]["status"] != STATUS


def test_a_repeated_fit_changes_neither_the_file_nor_the_records_of_further_keys(store: Path, tmp_path: Path) -> None:
    def written() -> tuple[bytes, dict[str, dict]]:
        export(store, tmp_path, "--keys", "fit")
        records = json.loads(sidecar_path(tmp_path / NAME).read_text())
        return (tmp_path / NAME).read_bytes(), {m: r for m, r in records.items() if r["status"] == STATUS}

    assert written() == written()


def test_entries_that_somebody_else_put_there_are_kept(store: Path, tmp_path: Path) -> None:
    foreign = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4}
    unreadable = {"BLOCK_SIZE_M": 16}
    (tmp_path / NAME).write_text(json.dumps({"65": foreign, "200": unreadable, "300": None}))
    fitted = export(store, tmp_path, "--keys", "fit", "--overwrite")
    assert fitted[65] == foreign
    assert fitted[200] == unreadable
    assert fitted[300] is None
    # Beside a key that the engine cannot launch nothing is known, so nothing is changed.
    assert not [m for m in fitted if 128 < m < 256 and m != 200]


def test_a_further_key_that_a_person_changed_is_theirs(store: Path, tmp_path: Path) -> None:
    fitted = export(store, tmp_path, "--keys", "fit")
    changed = {**fitted[129], "num_stages": 2}
    (tmp_path / NAME).write_text(json.dumps({**{str(m): e for m, e in fitted.items()}, "129": changed}))
    assert export(store, tmp_path, "--keys", "fit")[129] == changed


def test_keys_belong_to_configs_alone(store: Path, tmp_path: Path, capsys) -> None:
    code = main(["export", "recording", "--store", str(store), "-o", str(tmp_path / "r.jsonl"), "--keys", "fit"])
    assert code == 2
    assert "--keys: belongs to `export configs`" in capsys.readouterr().err
