"""Where a model's config may come from, and one message for each way of getting it wrong."""

import json
import os
import sys
from pathlib import Path

import pytest

from blockscale.errors import InputError
from blockscale.shapes.hub import HubRepository
from blockscale.shapes.source import Model, load_model, with_tensors

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024}


def test_folder_file_and_preset(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "other.json").write_text(json.dumps(CONFIG))
    assert load_model(str(folder)) == Model("my-model", CONFIG)
    assert load_model(str(folder / "config.json")) == Model("my-model", CONFIG)
    assert load_model(str(folder / "other.json")) == Model("other", CONFIG)
    preset = load_model("deepseek-v3")
    assert (preset.name, preset.config["hidden_size"]) == ("deepseek-v3", 7168)


def test_a_relative_folder_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    assert load_model("org/model") == Model("model", CONFIG)


@pytest.mark.parametrize("model", ["/nowhere/config.json", "/nowhere", "./nowhere", "nowhere.json", "~/nowhere-at-all"])
def test_a_path_that_does_not_exist(model: str) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_model(model)


@pytest.mark.parametrize("model", ["deepseek", "a/b/c", "", "two words/x"])
def test_what_is_neither_path_nor_hub_id(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"preset deepseek-v3"):
        load_model(model)


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    assert load_model(".").config == CONFIG
    with pytest.raises(InputError, match="name of the model is empty"):
        load_model("")


def test_a_file_that_is_too_long_for_a_config_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(10**12)  # takes no room
    with pytest.raises(InputError, match="no config: give a folder"):
        load_model(str(path))


@pytest.mark.parametrize("text", ["{", "[]", "", "[" * 100_000, "\udcff"])
def test_what_is_no_json_object(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="JSON"):
        load_model(str(path))


@pytest.mark.parametrize(
    "address",
    [
        "https://modelscope.cn/models/org/model",
        "s3://bucket/model",
        "https://huggingface.co/datasets/org",
        "https://huggingface.co/org/two words",
        "https://huggingface.co/org",
    ],
)
def test_an_address_that_is_no_model_of_the_hub(address: str) -> None:
    with pytest.raises(InputError, match=r"no address of .*preset deepseek-v3"):
        load_model(address)


def test_an_address_and_a_revision_that_disagree() -> None:
    with pytest.raises(InputError, match="names revision 'v1', and 'v2' is given"):
        load_model("https://huggingface.co/org/model/tree/v1", revision="v2")


@pytest.mark.parametrize("token", ["", "two words", "hf_secret\n", "hf_sécret"])
def test_what_cannot_be_a_token_is_not_repeated(token: str) -> None:
    with pytest.raises(InputError, match="token") as caught:
        load_model("org/model", token=token)
    assert "secret" not in str(caught.value)


def test_a_token_is_not_shown_with_the_model() -> None:
    assert "hf_secret" not in repr(Model("m", {}, checkpoint=HubRepository("org/model", None, "hf_secret")))


@pytest.mark.parametrize("model", ["deepseek-v3", "{folder}", "{folder}/config.json"])
def test_a_revision_is_for_the_hub_alone(model: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(InputError, match="revision 'v1' is for hub repositories"):
        load_model(model.format(folder=tmp_path), revision="v1")


@pytest.mark.parametrize("name", ["", "config.json"])
def test_tensors_are_read_when_asked_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    model = load_model(str(tmp_path / name))
    assert model.tensors is None
    assert with_tensors(model).tensors == {}


def test_a_config_alone_has_no_tensors(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(json.dumps(CONFIG))
    for model in ("deepseek-v3", str(tmp_path / "some.json")):
        with pytest.raises(InputError, match="a config alone, without a checkpoint"):
            with_tensors(load_model(model))


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(str(tmp_path))


def test_the_hub_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r'pip install "blockscale\[hub\]"'):
        load_model("org/model")


@pytest.mark.parametrize("name", ["pipe.json", "folder"])
def test_what_would_block_a_reader_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for pipe in ("pipe.json", "folder/config.json"):
        os.mkfifo(tmp_path / pipe)
    with pytest.raises(InputError, match="no file"):
        load_model(str(tmp_path / name))


@pytest.mark.parametrize("model", ["x" * 5000, "/" + "x" * 300, "~no-such-user/config.json", "loop"])
def test_what_cannot_be_reached(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=r"cannot be reached .*preset deepseek-v3"):
        load_model(model)
