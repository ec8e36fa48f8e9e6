"""``blockscale check``: which files it takes, for which engine, what it prints and how it ends."""

import json
import os
from pathlib import Path

import pytest

from blockscale.cli.main import main
from blockscale.problem import TileConfig
from blockscale.tuning.request import STOCK_BATCH_SIZES

NAME = "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
SPACED = NAME.replace("128,128", "128, 128")
ENTRY = TileConfig(64, 64, 128, num_warps=4, num_stages=3).to_entry()
FULL = json.dumps({str(m): ENTRY for m in STOCK_BATCH_SIZES}, indent=4)


def checked(capsys, *arguments: str | Path) -> tuple[int, list[tuple[str, str]]]:
    """Exit code, and (file's name, code) of each finding."""
    code = main(["check", *map(str, arguments), "--json"])
    found = json.loads(capsys.readouterr().out)
    for each in found:
        assert list(each) == ["file", "code", "severity", "message", "fixable"]
    return code, [(Path(each["file"]).name, each["code"]) for each in found]


def put(folder: Path, name: str, text: str = FULL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_the_spelling_tells_the_engine(capsys, tmp_path: Path) -> None:
    put(tmp_path, NAME)
    put(tmp_path, SPACED)
    assert checked(capsys, tmp_path) == (0, [])
    assert checked(capsys, tmp_path, "--engine", "vllm") == (1, [(SPACED, "never-found")])
    assert checked(capsys, tmp_path, "--engine", "sglang") == (1, [(NAME, "never-found")])


def test_the_nearest_folder_of_an_engines_name_tells_before_the_spelling(capsys, tmp_path: Path) -> None:
    put(tmp_path / "configs" / "vllm", SPACED)
    assert checked(capsys, tmp_path) == (1, [(SPACED, "never-found")])
    put(tmp_path / "vllm" / "site" / "SGLang" / "configs", SPACED)
    assert checked(capsys, tmp_path / "vllm") == (0, [])


def test_a_file_that_tells_no_engine_is_given_the_one_that_takes_it_best(capsys, tmp_path: Path) -> None:
    swapped = json.dumps({str(m): {**ENTRY, "SWAP_AB": True} for m in STOCK_BATCH_SIZES})
    path = put(tmp_path, "config.json", swapped)
    assert checked(capsys, path) == (1, [("config.json", "never-found")])
    assert ("config.json", "field-unknown") in checked(capsys, path, "--engine", "vllm")[1]


def test_the_version_decides(capsys, tmp_path: Path) -> None:
    path = put(tmp_path, SPACED, json.dumps({str(m): {**ENTRY, "SPLIT_K": 4} for m in STOCK_BATCH_SIZES}))
    assert checked(capsys, path, "--engine", "sglang", "--engine-version", "0.5.21") == (0, [])
    code, found = checked(capsys, path, "--engine", "sglang", "--engine-version", "0.5.20")
    assert (code, found) == (1, [(SPACED, "field-unknown")])


def test_folders_are_searched_to_any_depth_and_files_of_others_passed_over(capsys, tmp_path: Path) -> None:
    put(tmp_path / "a" / "b", NAME, "{")
    put(tmp_path / "a", NAME.removesuffix(".json"))
    put(tmp_path, "E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json", "{")
    put(tmp_path, "N=1,K=1,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json", "{")
    put(tmp_path, NAME + ".unreadable-1", "{")
    put(tmp_path, "README.md", "{")
    put(tmp_path, "package.json", "{")
    put(tmp_path / ".blockscale", NAME, "{")
    (tmp_path / "loop").symlink_to(tmp_path)
    code, found = checked(capsys, tmp_path)
    assert (code, found) == (1, [(NAME.removesuffix(".json"), "never-found"), (NAME, "unreadable")])
    main(["check", str(tmp_path)])
    out = capsys.readouterr().out
    assert "2 files checked (2 for vllm" in out
    assert "passed over: 2 files of other kernels" in out
    assert "passed over: 1 file set aside" in out
    assert "passed over: 1 file of other kinds" in out


def test_a_file_that_is_named_is_checked_whatever_its_name(capsys, tmp_path: Path) -> None:
    assert checked(capsys, put(tmp_path, "tuned.txt")) == (1, [("tuned.txt", "never-found")])
    moe = put(tmp_path, "E=8,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8.json", "{")
    assert checked(capsys, moe) == (0, [])


def test_a_file_is_checked_once(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, NAME, "{")
    monkeypatch.chdir(tmp_path)
    assert len(checked(capsys, path, tmp_path, NAME, f"./{NAME}")[1]) == 1


def test_the_file_is_shown_as_it_was_given(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, NAME, "{")
    monkeypatch.chdir(tmp_path)
    main(["check", NAME, "--json"])
    assert json.loads(capsys.readouterr().out)[0]["file"] == NAME


def test_copies_are_told_with_the_name_of_the_other(capsys, tmp_path: Path) -> None:
    other_device, other_shape = NAME.replace("NVIDIA_H200", "NVIDIA_H20"), NAME.replace("N=512", "N=576")
    for name in (NAME, other_device):
        put(tmp_path, name)
    code, found = checked(capsys, tmp_path)
    assert (code, sorted(found)) == (0, sorted([(NAME, "copied"), (other_device, "copied")]))
    put(tmp_path, other_shape, json.dumps(dict(reversed(json.loads(FULL).items()))))
    assert (other_shape, "copied") in checked(capsys, tmp_path)[1]
    main(["check", str(tmp_path / NAME), str(tmp_path / other_shape)])
    assert f"it says what {other_shape} says" in capsys.readouterr().out


def test_of_many_copies_each_names_two_and_counts_the_rest(capsys, tmp_path: Path) -> None:
    for n in range(1, 301):  # in two folders, so that what lies beside a file is named first
        put(tmp_path / str(n % 2), NAME.replace("N=512", f"N={n}"))
    main(["check", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [each["code"] for each in found] == ["copied"] * 300
    assert all(" and 297 more say, " in each["message"] and "/N=" not in each["message"] for each in found)


def test_the_same_file_for_both_engines_is_no_copy(capsys, tmp_path: Path) -> None:
    put(tmp_path / "sglang", SPACED)
    put(tmp_path / "vllm", NAME)
    assert checked(capsys, tmp_path) == (0, [])


def test_what_tune_writes_has_no_findings(capsys, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for weight in (["--N", "2112", "--K", "7168"], ["--N", "4096", "--K", "512"]):
        arguments = [*weight, "--device", "recorded:h200", "--yes", "--engine", "sglang", "--engine", "vllm"]
        arguments += ["--save-path", str(out), "--store", str(tmp_path / "store.db"), "--trials", "20"]
        assert main(["tune", *arguments, "--batch-sizes", "1", "16", "64", "256", "4096"]) == 0
    capsys.readouterr()
    assert len(list(out.glob("*/N=*.json"))) == 4
    assert checked(capsys, out) == (0, [])


def test_text_for_people(capsys, tmp_path: Path) -> None:
    path = put(tmp_path, SPACED, json.dumps({"triton_version": "3.6.0", **json.loads(FULL)}))
    path.chmod(0o755)
    assert main(["check", str(path), "--engine", "vllm", "--engine-version", "0.33.0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(path)
    assert [line.split(":")[0] for line in lines[1:4]] == [
        "  error never-found",
        "  error key-not-integer",
        "  warning bytes",
    ]
    assert lines[4:] == [
        "1 file checked (1 for vllm 0.33.0): 2 errors, 1 warning, 0 without findings.",
        "3 findings can be put right with --fix.",
    ]


def test_no_file_at_all(capsys, tmp_path: Path) -> None:
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 files checked.\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "FILE"),
        (["/nowhere/config.json"], "there is no such file or folder"),
        ([os.devnull], "is a pipe, socket or device"),
        (["x" * 5000], "cannot be reached"),
        ([".", "--engine", "trtllm"], "--engine"),
        ([".", "--engine-version", "0.5.23"], "without --engine"),
        ([".", "--engine", "vllm", "--engine-version", "newest"], "is not a version"),
    ],
)
def test_wrong_input(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, said) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_pipes_and_dead_links_in_a_folder_end_nothing(capsys, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    (tmp_path / SPACED).symlink_to(tmp_path / "nowhere")
    code, found = checked(capsys, tmp_path)
    assert code == 1
    assert sorted(found) == sorted([(NAME, "unreadable"), (SPACED, "unreadable")])
