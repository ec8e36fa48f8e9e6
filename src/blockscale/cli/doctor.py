"""``blockscale doctor``: what this machine can tune, what is missing and what to do about it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from contextlib import closing
from pathlib import Path

import blockscale
from blockscale.cli.live import terminal_width
from blockscale.cli.parsing import Parser, add_store
from blockscale.engines import installed_engines
from blockscale.errors import BlockscaleError
from blockscale.measure.compile_cache import default_cache_dir
from blockscale.recording import embedded
from blockscale.report.doctor import (
    GpuFacts,
    MachineFacts,
    PlaceFacts,
    anything_works,
    doctor_json,
    doctor_text,
)

_PACKAGES = ("torch", "triton", "nvidia-ml-py", "huggingface_hub", "ray")
_NOTHING_WORKS = 1


def build_parser() -> Parser:
    """The parser of ``doctor``."""
    parser = Parser("blockscale doctor", "Say what this machine can tune, what is missing and what to do.")
    add_store(parser, "store to look at")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the findings; nothing is changed. No GPU is no error."""
    facts = gather(args.store)
    print(json.dumps(doctor_json(facts), ensure_ascii=False) if args.json else doctor_text(facts, terminal_width()))
    return 0 if anything_works(facts) else _NOTHING_WORKS


def gather(store: Path) -> MachineFacts:
    """Look at the machine. torch is asked in a child process only."""
    gpus, problem = _gpus()
    return MachineFacts(
        packages=(
            ("blockscale", blockscale.__version__),
            ("python", platform.python_version()),
            *((name, _version(name)) for name in _PACKAGES),
        ),
        gpus=gpus,
        gpu_problem=problem,
        engines=installed_engines(),
        places=(_store(store), _cache()),
        recordings=_recordings(),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> tuple[tuple[GpuFacts, ...], str | None]:
    from blockscale.executor.gpus import visible_gpus
    from blockscale.executor.local import LocalDevice, LocalSettings

    found = []
    try:
        for gpu in visible_gpus():
            with closing(LocalDevice(LocalSettings(gpu_indices=(gpu.index,)))) as device:
                found.append(GpuFacts(gpu.index, device.spec, device.environment))
    except BlockscaleError as error:
        return tuple(found), str(error)
    return tuple(found), None


def _recordings() -> tuple[str, ...]:
    try:
        embedded("h200")
    except BlockscaleError:
        return ()
    return ("h200",)


def _store(path: Path) -> PlaceFacts:
    from blockscale.store.filesystem import check_location, locate

    problem = None
    used = 0
    try:
        path = locate(path)
        check_location(path)
        used = sum(p.stat().st_size for p in (path, Path(f"{path}-wal")) if p.is_file())
    except BlockscaleError as error:
        problem = str(error)
    return PlaceFacts("store", path, used, problem)


def _cache() -> PlaceFacts:
    folder = default_cache_dir()
    way_out = "set XDG_CACHE_HOME to a folder that can be"
    problem = None
    used = 0
    try:
        existing = next(p for p in (folder, *folder.parents) if p.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            problem = f"{existing} cannot be written; {way_out}"
        used = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    except PermissionError:
        problem = f"{folder} cannot be reached (permission denied); {way_out}"
    return PlaceFacts("compiler cache", folder, used, problem)
