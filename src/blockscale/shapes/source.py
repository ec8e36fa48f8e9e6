"""Where a model's config comes from: a folder, a file, a preset, or the Hugging Face hub."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockscale.errors import InputError
from blockscale.paths import PathKind, at_home, kind_at
from blockscale.shapes import deepseek_v3
from blockscale.shapes.safetensors import StoredTensor

PRESETS: dict[str, dict[str, Any]] = {"deepseek-v3": deepseek_v3.PRESET}

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WAY_OUT = "give a folder with config.json, a .json file, a hub id like org/name, or the preset deepseek-v3"


@dataclass(frozen=True, slots=True)
class Model:
    """A model's name for people, its config, and what its checkpoint stores, None where nobody asked or looked."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor] | None = None


def load_model(model: str, *, revision: str | None = None, token: str | None = None) -> Model:
    """The model at a folder, a ``.json`` file, or a hub id like org/name, or the preset of that name.

    Raises:
        InputError: as ``load_model_config``.
    """
    return Model(*load_model_config(model, revision=revision, token=token))


def load_model_config(
    model: str, *, revision: str | None = None, token: str | None = None
) -> tuple[str, dict[str, Any]]:
    """The model's name for people, and its config.

    Raises:
        InputError: there is no such path, preset or hub id, the hub cannot be reached or read, or what is there is no
            JSON object.
    """
    if model in PRESETS:
        return model, dict(PRESETS[model])
    path = at_home(Path(model), _WAY_OUT)
    kind = kind_at(path, _WAY_OUT)
    if kind is PathKind.FOLDER:
        if kind_at(path / "config.json", _WAY_OUT) is None:
            raise InputError(f"folder {model} has no config.json: {_WAY_OUT}.")
        return path.resolve().name, _read(path / "config.json")
    if kind is not None:
        return (path.resolve().parent.name if path.name == "config.json" else path.stem), _read(path)
    if model.startswith(("/", ".", "~")) or model.endswith(".json"):
        raise InputError(f"{model} does not exist: {_WAY_OUT}.")
    if not _HUB_ID.fullmatch(model):
        raise InputError(f"model {model!r} is neither a path nor a hub id: {_WAY_OUT}.")
    return model, _read(_from_hub(model, revision, token))


def _read(path: Path) -> dict[str, Any]:
    if kind_at(path, _WAY_OUT) is not PathKind.FILE:
        raise InputError(f"{path} is no file: {_WAY_OUT}.")
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}): give a readable file.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}): {_WAY_OUT}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no JSON object: {_WAY_OUT}.")
    return value


def _from_hub(model: str, revision: str | None, token: str | None) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise InputError(
            f"{model} is no local path, and reading it from the hub needs an extra: "
            'pip install "blockscale[hub]", or give a local config.json.'
        ) from error
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it logs each retry; one message follows here
    try:
        return Path(hf_hub_download(repo_id=model, filename="config.json", revision=revision, token=token))
    except Exception as error:  # the hub client raises many kinds, those of its HTTP library among them
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"config.json of {model} could not be fetched from the hub ({first_line}): check the name, the network and "
            "your access, or give a local config.json."
        ) from error
