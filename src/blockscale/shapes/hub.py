"""A repository of the Hugging Face hub: its small JSON files and the headers of its weights, never its code.

Everything goes through ``huggingface_hub``, so its settings hold: cache, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT``, and the
token that it finds where none is given. A file that is cached serves when the network fails.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockscale.errors import InputError
from blockscale.shapes.safetensors import NoTensorsError, StoredTensor, read_folder

_LOCAL = "give a local folder or config.json"
_TOKEN = "--token, HF_TOKEN or `hf auth login`"
_CHECK = "check the name, the network and your access"


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A model repository ``org/name`` at a branch, tag or commit (None: the main branch)."""

    id: str
    revision: str | None = None
    token: str | None = field(default=None, repr=False)

    def config(self) -> Path:
        """Its config.json in the hub's cache, fetched where it is not there or has changed.

        Raises:
            InputError: the client is not installed, the hub refuses, or it cannot be reached and nothing is cached.
        """
        client = _client()
        where = {"repo_id": self.id, "filename": "config.json", "revision": self.revision}
        try:
            if not isinstance(client.try_to_load_from_cache(**where), str):
                # Asked once: without a cached file the download goes on asking a hub that is away for half a minute.
                client.get_hf_file_metadata(client.hf_hub_url(**where), token=self.token)
            path = client.hf_hub_download(**where, token=self.token)
        except Exception as error:  # the client raises many kinds, those of its HTTP library among them
            raise InputError(self._refusal(error, "config.json")) from error
        return Path(path)

    def tensors(self) -> dict[str, StoredTensor]:
        """What its checkpoint stores: from the shards where they are cached, else by range requests for the headers.

        Raises:
            NoTensorsError: it has no ``model.safetensors`` and no index of shards.
            InputError: as ``config``; or a header is not what the format says.
        """
        try:
            return read_folder(self.config().parent)
        except NoTensorsError:
            client = _client()
        try:
            found = client.get_safetensors_metadata(self.id, revision=self.revision, token=self.token)
        except Exception as error:  # as above
            if "NotASafetensorsRepoError" in _kinds(error):
                raise NoTensorsError(
                    f"{self.id} has no safetensors checkpoint: give sizes with --N and --K."
                ) from error
            raise InputError(self._refusal(error, "the checkpoint's headers")) from error
        tensors = (each for file in found.files_metadata.values() for each in file.tensors.items())
        return {name: StoredTensor(str(info.dtype), tuple(info.shape)) for name, info in tensors}

    def _refusal(self, error: Exception, what: str) -> str:
        """One message for what the client raised. Its classes are told by name: they moved from version to version."""
        kinds = _kinds(error)
        if "GatedRepoError" in kinds:
            page = f"https://huggingface.co/{self.id}"
            return f"{self.id} is gated: accept its terms at {page} and give a token ({_TOKEN}), or {_LOCAL}."
        if "RepositoryNotFoundError" in kinds:
            return (
                f"the hub has no repository {self.id}, or it is private and the token may not read it: check the name, "
                f"give a token ({_TOKEN}), or {_LOCAL}."
            )
        if "RevisionNotFoundError" in kinds:
            return f"{self.id} has no revision {self.revision!r}: give one of its branches, tags or commits."
        if "LocalEntryNotFoundError" in kinds or "OfflineModeIsEnabled" in kinds:
            why = _unreachable(error)
            return f"the hub's cache lacks {what} of {self.id}, and {why}: fetch it once, or {_LOCAL}."
        if "EntryNotFoundError" in kinds:
            return (
                f"{self.id} has no {what}, so the sizes of its layers cannot be told (a repository of GGUF files or of "
                "an adapter?): give the model's own repository, or sizes with --N and --K."
            )
        why = _first_line(error)
        return f"{what} of {self.id} could not be fetched from the hub ({why}): {_CHECK}, or {_LOCAL}."


def _client() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars
        from huggingface_hub.utils import logging as its_logging
    except ImportError as error:
        raise InputError(
            'reading a model from the hub needs an extra: pip install "blockscale[hub]", or give a local config.json.'
        ) from error
    its_logging.set_verbosity(logging.CRITICAL)  # it logs each retry; one message follows here
    with warnings.catch_warnings(action="ignore"):  # it says so where the environment asks for its progress bars
        disable_progress_bars()
    return huggingface_hub


def _kinds(error: Exception) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in type(error).__mro__)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".:")


def _unreachable(error: Exception) -> str:
    cause: BaseException = error.__cause__ or error
    if any(kind.__name__ == "OfflineModeIsEnabled" for kind in type(cause).__mro__):
        return "HF_HUB_OFFLINE is set"
    return f"the hub cannot be reached ({_first_line(cause)})"
