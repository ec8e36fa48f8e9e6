"""Serving engines that read tuned files: names, key schema, legality by version, lookup, and writing the files."""

# Importing the modules registers their engines.
from blockscale.engines import sglang, vllm
from blockscale.engines.atomic import PRIVATE_FOLDER, require_writable
from blockscale.engines.base import Engine, InstalledEngine, engine, engine_names, installed_engines
from blockscale.engines.files import (
    ConfigFile,
    MergeReport,
    UnreadableConfigFile,
    merge_into,
    read_config_file,
    sidecar_path,
    verify_written,
)

__all__ = [
    "PRIVATE_FOLDER",
    "ConfigFile",
    "Engine",
    "InstalledEngine",
    "MergeReport",
    "UnreadableConfigFile",
    "engine",
    "engine_names",
    "installed_engines",
    "merge_into",
    "read_config_file",
    "require_writable",
    "sglang",
    "sidecar_path",
    "verify_written",
    "vllm",
]
