"""Where a model's config may come from, and one message for each way of getting it wrong."""

import json
import os
import sys
import types
from pathlib import Path

import pytest

from blockscale.errors import InputError
from blockscale.shapes import load_model_config

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024}


def test_folder_file_and_preset(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "other.json").write_text(json.dumps(CONFIG))
    assert load_model_config(str(folder)) == ("my-model", CONFIG)
    assert load_model_config(str(folder / "config.json")) == ("my-model", CONFIG)
    assert load_model_config(str(folder / "other.json")) == ("other", CONFIG)
    name, config = load_model_config("deepseek-v3")
    assert (name, config["hidden_size"]) == ("deepseek-v3", 7168)


def test_a_relative_folder_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    assert load_model_config("org/model") == ("model", CONFIG)


@pytest.mark.parametrize("model", ["/nowhere/config.json", "/nowhere", "./nowhere", "nowhere.json", "~/nowhere-at-all"])
def test_a_path_that_does_not_exist(model: str) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_model_config(model)


@pytest.mark.parametrize("model", ["deepseek", "a/b/c", "", "two words/x"])
def test_what_is_neither_path_nor_hub_id(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"preset deepseek-v3"):
        load_model_config(model)


@pytest.mark.parametrize("text", ["{", "[]", "", "[" * 100_000, "\udcff"])
def test_what_is_no_json_object(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="JSON"):
        load_model_config(str(path))


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model_config(str(tmp_path))


def test_the_hub_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r'pip install "blockscale\[hub\]"'):
        load_model_config("org/model")


def test_the_hub_is_asked_for_the_config_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    asked = []

    def download(repo_id: str, filename: str, **_: object) -> str:
        asked.append((repo_id, filename))
        return str(path)

    hub = types.ModuleType("huggingface_hub")
    hub.__dict__["hf_hub_download"] = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert load_model_config("org/model") == ("org/model", CONFIG)
    assert asked == [("org/model", "config.json")]


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo_id: str, filename: str, **_: object) -> str:
        raise RuntimeError("401 Client Error\nand a page of details")

    hub = types.ModuleType("huggingface_hub")
    hub.__dict__["hf_hub_download"] = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(InputError, match="401 Client Error") as caught:
        load_model_config("org/model")
    assert "page of details" not in str(caught.value)


@pytest.mark.parametrize("name", ["pipe.json", "folder"])
def test_what_would_block_a_reader_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for pipe in ("pipe.json", "folder/config.json"):
        os.mkfifo(tmp_path / pipe)
    with pytest.raises(InputError, match="no file"):
        load_model_config(str(tmp_path / name))


@pytest.mark.parametrize("model", ["x" * 5000, "/" + "x" * 300, "~no-such-user/config.json", "loop"])
def test_what_cannot_be_reached(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=r"cannot be reached .*preset deepseek-v3"):
        load_model_config(model)
