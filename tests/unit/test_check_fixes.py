"""What ``check --fix`` changes, what it keeps, and what it leaves alone."""

import json
import os
from pathlib import Path

import pytest

from blockscale.cli.main import main
from blockscale.engines import merge_into
from blockscale.engines.files import sidecar_path
from blockscale.problem import TileConfig
from blockscale.tuning.request import STOCK_BATCH_SIZES

NAME = "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
SPACED = NAME.replace("128,128", "128, 128")
ENTRY = TileConfig(64, 64, 128, num_warps=4, num_stages=3).to_entry()
FULL = {str(m): ENTRY for m in STOCK_BATCH_SIZES}


def findings(capsys, *arguments: str) -> tuple[int, list[dict]]:
    code = main(["check", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def tree(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """All files with content, mode and time of change; locks aside."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".lock":
            status = path.stat()
            found[str(path.relative_to(folder))] = (path.read_bytes(), status.st_mode, status.st_mtime_ns)
    return found


def fix(capsys, folder: Path, *more: str) -> list[dict]:
    """Fix a folder; what is left. A second run changes nothing."""
    _, left = findings(capsys, str(folder), "--engine", "vllm", "--fix", *more)
    after = tree(folder)
    assert findings(capsys, str(folder), "--engine", "vllm", "--fix", *more)[1] == left
    assert tree(folder) == after
    return left


def test_a_wrong_name_is_changed_and_nothing_else(capsys, tmp_path: Path) -> None:
    (tmp_path / SPACED).write_text(text := json.dumps(FULL, indent=2))
    assert fix(capsys, tmp_path) == []
    assert (tmp_path / NAME).read_text() == text
    assert not (tmp_path / SPACED).exists()


def test_the_sidecar_goes_with_the_name(capsys, tmp_path: Path) -> None:
    path = tmp_path / SPACED
    merge_into(path, dict.fromkeys(STOCK_BATCH_SIZES, ENTRY), {m: {"run": "a"} for m in STOCK_BATCH_SIZES})
    assert fix(capsys, tmp_path) == []
    assert json.loads(sidecar_path(tmp_path / NAME).read_text())["1"] == {"run": "a"}
    assert not sidecar_path(path).exists()


def test_a_file_that_is_there_is_never_replaced(capsys, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(FULL))
    (tmp_path / SPACED).write_text(json.dumps(dict(list(FULL.items())[:9])))
    before = tree(tmp_path)
    left = fix(capsys, tmp_path)
    assert [(each["code"], each["fixable"]) for each in left] == [("never-found", False)]
    assert tree(tmp_path) == before


def test_of_two_files_for_one_name_the_first_gets_it(capsys, tmp_path: Path) -> None:
    (tmp_path / SPACED).write_text(json.dumps(FULL))
    other = tmp_path / NAME.removesuffix(".json")
    other.write_text(json.dumps({**FULL, "1": {**ENTRY, "num_warps": 8}}))
    code = main(["check", str(tmp_path), "--engine", "vllm", "--fix"])
    assert code == 2
    assert f"is not fixed: {NAME} is there already: compare the two and delete one." in capsys.readouterr().err
    assert (tmp_path / NAME).exists()
    assert other.exists() != (tmp_path / SPACED).exists()


def test_notes_go_to_the_sidecar(capsys, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(json.dumps({"triton_version": "3.6.0", **FULL, "-1": ENTRY, "by": ["hand"]}, indent=4) + "\n")
    assert fix(capsys, tmp_path) == []
    assert path.read_text() == json.dumps(FULL, indent=4) + "\n"
    notes = json.loads(sidecar_path(path).read_text())["notes"]
    assert notes == {"triton_version": "3.6.0", "-1": ENTRY, "by": ["hand"]}


def test_notes_are_kept_by_later_merges_and_beside_other_notes(capsys, tmp_path: Path) -> None:
    path = tmp_path / NAME
    for version in ("3.6.0", "3.8.0", "3.6.0"):
        path.write_text(json.dumps({"triton_version": version, **FULL}))
        assert fix(capsys, tmp_path) == []
        merge_into(path, {16: ENTRY}, {16: {"run": version}})
    sidecar = json.loads(sidecar_path(path).read_text())
    assert sidecar["notes"] == {"triton_version": "3.6.0", "triton_version (2)": "3.8.0"}
    assert sidecar["16"] == {"run": "3.6.0"}


def test_a_file_of_notes_alone_is_left_without_keys(capsys, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text('{ "a": 1, "b": 2 }\n')
    assert [each["code"] for each in fix(capsys, tmp_path)] == ["ladder-truncated"]
    assert path.read_text() == "{}\n"


def test_keys_are_sorted_and_members_stay_as_they_are_written(capsys, tmp_path: Path) -> None:
    path = tmp_path / NAME
    inner = (
        '{"BLOCK_SIZE_M":64, "BLOCK_SIZE_N":64,\t"BLOCK_SIZE_K":128, "GROUP_SIZE_M":1,"num_warps":4,"num_stages" : 3}'
    )
    path.write_text(f'{{\n  "96": {inner},\n  "128": {inner} ,\n  "1":{inner},\n  " 16":{inner}\n }} \n\n')
    assert fix(capsys, tmp_path) == []
    assert path.read_text() == f'{{\n  "1":{inner},\n  " 16":{inner},\n  "96": {inner},\n  "128": {inner}\n }} \n\n'


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600])
def test_bytes_are_put_right(capsys, tmp_path: Path, mark: bytes, end: str, mode: int) -> None:
    path = tmp_path / NAME
    text = json.dumps(FULL, indent=4) + "\n"
    path.write_bytes(mark + text.replace("\n", end).encode())
    path.chmod(mode)
    assert fix(capsys, tmp_path) == []
    assert path.read_bytes() == text.encode()
    assert path.stat().st_mode & 0o777 == mode & ~0o111


def test_the_former_content_is_kept(capsys, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(former := json.dumps({"note": 1, **FULL}))
    fix(capsys, tmp_path)
    path.write_text(later := json.dumps(dict(reversed(FULL.items()))))
    fix(capsys, tmp_path)
    kept = sorted((tmp_path / ".blockscale").glob("*.before-fix-*"))
    assert [each.read_text() for each in kept] == [former, later]


def test_everything_at_once(capsys, tmp_path: Path) -> None:
    path = tmp_path / SPACED
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"note": 1, **dict(reversed(FULL.items()))}).encode())
    path.chmod(0o755)
    assert fix(capsys, tmp_path) == []
    assert json.loads((tmp_path / NAME).read_text()) == FULL
    assert json.loads(sidecar_path(tmp_path / NAME).read_text())["notes"] == {"note": 1}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(FULL)[:-1],
        "[]",
        json.dumps({**FULL, "1": None}),
        json.dumps({**FULL, "1": {**ENTRY, "BLOCK_SIZE_K": 256, "num_stages": 2}}),
        json.dumps({m: FULL[m] for m in ("2048", "3072")}),
    ],
)
def test_what_needs_a_person_stays(capsys, tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    before = tree(tmp_path)
    assert not any(each["fixable"] for each in fix(capsys, tmp_path))
    assert tree(tmp_path) == before


def test_errors_that_are_left_decide_the_exit_code(capsys, tmp_path: Path) -> None:
    (tmp_path / SPACED).write_text(json.dumps({**FULL, "1": None}))
    assert findings(capsys, str(tmp_path), "--engine", "vllm")[0] == 1
    code, left = findings(capsys, str(tmp_path / SPACED), "--engine", "vllm", "--fix")
    assert code == 1
    assert [(each["file"], each["code"]) for each in left] == [(str(tmp_path / NAME), "not-an-object")]
    (tmp_path / NAME).rename(tmp_path / SPACED)
    (tmp_path / SPACED).write_text(json.dumps(FULL))
    assert findings(capsys, str(tmp_path / SPACED), "--engine", "vllm", "--fix") == (0, [])


def test_a_linked_file_is_fixed_where_it_lies(capsys, tmp_path: Path) -> None:
    real, links = tmp_path / "real", tmp_path / "links"
    real.mkdir()
    links.mkdir()
    (real / "tuned").write_text(json.dumps({"note": 1, **FULL}))
    (links / NAME).symlink_to(real / "tuned")
    assert fix(capsys, links) == []
    assert (links / NAME).is_symlink()
    assert json.loads((real / "tuned").read_text()) == FULL


def test_without_hard_links_the_name_is_changed_too(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    (tmp_path / SPACED).write_text(json.dumps(FULL))
    assert fix(capsys, tmp_path) == []
    assert (tmp_path / NAME).is_file()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(capsys, tmp_path: Path) -> None:
    (tmp_path / SPACED).write_text(json.dumps(FULL))
    tmp_path.chmod(0o555)
    try:
        assert main(["check", str(tmp_path), "--engine", "vllm", "--fix"]) == 2
    finally:
        tmp_path.chmod(0o755)
    assert "is not fixed: " in capsys.readouterr().err


def test_a_place_where_nothing_can_be_written_says_so_once(capsys, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"note": 1, **FULL}))
    (tmp_path / ".blockscale").write_text("no folder")
    assert main(["check", str(tmp_path), "--engine", "vllm", "--fix"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot be written" in err
    assert "note" in json.loads((tmp_path / NAME).read_text())
