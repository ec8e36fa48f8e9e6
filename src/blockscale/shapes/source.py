"""Where a model comes from: a folder, a file, a preset, or the Hugging Face hub.

Only JSON and headers are read: config.json, and of a checkpoint its index and the headers of its shards where somebody
asks for them. No code of a model is ever executed or even fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from blockscale.errors import InputError
from blockscale.paths import PathKind, at_home, first_bytes, kind_at
from blockscale.shapes import deepseek_v3
from blockscale.shapes.hub import HubRepository
from blockscale.shapes.safetensors import NoTensorsError, StoredTensor, read_folder

PRESETS: dict[str, dict[str, Any]] = {"deepseek-v3": deepseek_v3.PRESET}

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_HUB_URL = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<id>[^/?#]+/[^/?#]+)"
    r"(?:/(?:tree|blob|resolve|raw)/(?P<revision>refs/[^/?#]+/[^/?#]+|[^/?#]+))?(?:[/?#].*)?",
    re.IGNORECASE,
)
_PRINTABLE = re.compile(r"[!-~]+")
_LARGEST_CONFIG_BYTES = 10_000_000  # the longest, with long lists of modules, have some hundred thousand
_WAY_OUT = "give a folder with config.json, a .json file, a hub id like org/name, or the preset deepseek-v3"


@dataclass(frozen=True, slots=True)
class Model:
    """A model's name for people, its config, and what its checkpoint stores.

    ``tensors`` is None until ``with_tensors`` has looked: an architecture that is known needs no checkpoint.
    ``checkpoint`` is where it would look, None where there is no such place.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor] | None = None
    checkpoint: Path | HubRepository | None = field(default=None, compare=False)


def load_model(model: str, *, revision: str | None = None, token: str | None = None) -> Model:
    """The model at a folder, a ``.json`` file, or a hub id or address like org/name, or the preset of that name.

    What exists as a path is taken as one. ``revision`` is a branch, tag or commit of a hub repository, ``token`` what
    it is asked with; None: what ``huggingface_hub`` itself finds.

    Raises:
        InputError: there is no such path, preset or hub id, the hub refuses or cannot be reached, what is there is no
            JSON object, or ``revision`` is given for what is not on the hub.
    """
    repository = None if _is_local(model) else _repository(model, revision, token)
    if repository is not None:
        return Model(repository.id, _read(repository.config()), checkpoint=repository)
    if revision is not None:
        raise InputError(f"revision {revision!r} is for hub repositories, and {model} is none: leave it out.")
    if model in PRESETS:
        return Model(model, dict(PRESETS[model]))
    path = at_home(Path(model), _WAY_OUT)
    if kind_at(path, _WAY_OUT) is PathKind.FOLDER:
        if kind_at(path / "config.json", _WAY_OUT) is None:
            raise InputError(f"folder {model} has no config.json: {_WAY_OUT}.")
        return Model(path.resolve().name, _read(path / "config.json"), checkpoint=path)
    if path.name == "config.json":
        return Model(path.resolve().parent.name, _read(path), checkpoint=path.parent)
    return Model(path.stem, _read(path))


def with_tensors(model: Model) -> Model:
    """The same model with its ``tensors``, read now where they are not there yet.

    Raises:
        NoTensorsError: it has no safetensors checkpoint, or not all of it is there.
        InputError: an index or a header is broken, or the hub refuses or cannot be reached.
    """
    if model.tensors is not None:
        return model
    if model.checkpoint is None:
        raise NoTensorsError(
            f"{model.name} is a config alone, without a checkpoint: give the folder or hub id of one, or sizes with "
            "--N and --K."
        )
    tensors = read_folder(model.checkpoint) if isinstance(model.checkpoint, Path) else model.checkpoint.tensors()
    return replace(model, tensors=tensors)


def _is_local(model: str) -> bool:
    """Whether a preset is meant or something stands at the path.

    Raises:
        InputError: nothing is there, and it cannot be a hub id either.
    """
    if not model:  # an empty variable of a script: as a path it would be the current folder
        raise InputError(f"the name of the model is empty: {_WAY_OUT}.")
    if model in PRESETS or kind_at(at_home(Path(model), _WAY_OUT), _WAY_OUT) is not None:
        return True
    if _HUB_URL.fullmatch(model):
        return False
    if "://" in model:
        raise InputError(f"{model} is no address of the Hugging Face hub, the only site that is asked: {_WAY_OUT}.")
    if model.startswith(("/", ".", "~")) or model.endswith(".json"):
        raise InputError(f"{model} does not exist: {_WAY_OUT}.")
    if not _HUB_ID.fullmatch(model):
        raise InputError(f"model {model!r} is neither a path nor a hub id: {_WAY_OUT}.")
    return False


def _repository(model: str, revision: str | None, token: str | None) -> HubRepository:
    """The repository that a hub id or address names.

    Raises:
        InputError: the address is none of a model, names another revision, or the token cannot be one.
    """
    if token is not None and not _PRINTABLE.fullmatch(token):
        raise InputError(
            "the hub token is empty or has blanks or signs that no token has: give it as the hub shows it."
        )
    address = _HUB_URL.fullmatch(model)
    if address is None:
        return HubRepository(model, revision, token)
    if not _HUB_ID.fullmatch(address["id"]) or address["id"].startswith(("datasets/", "spaces/")):
        raise InputError(f"{model} is no address of a model: {_WAY_OUT}.")
    named = unquote(address["revision"]) if address["revision"] else None
    if revision is not None and named is not None and revision != named:
        raise InputError(f"{model} names revision {named!r}, and {revision!r} is given besides: leave one out.")
    return HubRepository(address["id"], revision or named, token)


def _read(path: Path) -> dict[str, Any]:
    text = first_bytes(path, _LARGEST_CONFIG_BYTES, _WAY_OUT)
    if len(text) > _LARGEST_CONFIG_BYTES:
        raise InputError(f"{path} is longer than {_LARGEST_CONFIG_BYTES:,} bytes, so it is no config: {_WAY_OUT}.")
    try:
        value = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}): {_WAY_OUT}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no JSON object: {_WAY_OUT}.")
    return value
