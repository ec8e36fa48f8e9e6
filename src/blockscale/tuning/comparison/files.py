"""Config files that a person names, told by their names: whose they are, for which weight and which GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from blockscale.engines import PRIVATE_FOLDER, Engine, UnreadableConfigFile, read_config_file
from blockscale.engines.files import Entry
from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.paths import PathKind, kind_at
from blockscale.problem import Candidate, GemmShape, Problem, QuantFormat, QuantScheme, TileConfig, WeightShape
from blockscale.tuning.baselines import launched

# Both spellings of the block shape: which one an engine looks for, it says itself.
_NAME = re.compile(
    r"N=(?P<n>[1-9]\d{0,8}),K=(?P<k>[1-9]\d{0,8}),device_name=(?P<device>[^,]+),dtype=(?P<format>fp8|int8)_w8a8,"
    r"block_shape=\[(?P<block_n>[1-9]\d{0,4}), ?(?P<block_k>[1-9]\d{0,4})\]\.json"
)
_WAY_OUT = "give a config file or a folder of them"


class PassedOver(StrEnum):
    """Why a file of a folder is not compared, in words that follow a number of files."""

    NAME = "whose names are no engine's for a block-scaled GEMM"
    ENGINE = "of other engines"
    DEVICE = "for other GPUs"
    USELESS = "that their engine makes no use of on this GPU"


@dataclass(frozen=True, slots=True)
class EngineFile:
    """A config file as ``engine`` finds it; ``entries`` by batch size in file order."""

    path: Path
    engine: Engine
    weight: WeightShape
    quant: QuantScheme
    entries: dict[int, Entry]

    def problem(self, m: int) -> Problem:
        """The problem that the file has an answer for at batch size ``m``."""
        return Problem(GemmShape(m, self.weight.N, self.weight.K), self.quant)

    def candidate(self, m: int, key: int, spec: DeviceSpec) -> Candidate:
        """What the engine launches at batch size ``m`` for the entry under ``key``.

        Raises:
            InputError: the entry is no config; the message names the command that says more.
        """
        problem, entry = self.problem(m), self.entries[key]
        if entry is None:
            raise _damaged(self.path, f"key {key}: null, which means a default to other kernels only")
        try:
            config = TileConfig.from_entry(entry, unstated_num_stages=spec.unstated_num_stages)
        except InputError as error:
            raise _damaged(self.path, f"key {key}: {str(error).rstrip('.')}") from None
        return launched(self.engine, problem, spec, config)


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files to compare, in the order given, and how many of folders are not, by why."""

    files: tuple[EngineFile, ...]
    passed_over: dict[PassedOver, int]


def find_files(paths: Sequence[Path], engines: Sequence[Engine], spec: DeviceSpec) -> FoundFiles:
    """Read the config files named and those in the folders named, for ``engines`` on a device.

    Of a folder what is for others is passed over, at whatever depth the rest lies.

    Raises:
        InputError: a path that is not there; a file named that is none of these engines' for this device; one of theirs
            that cannot be read; or nothing is left to compare.
    """
    files: dict[Path, EngineFile] = {}
    passed_over: Counter[PassedOver] = Counter()
    for path in paths:
        match kind_at(path, _WAY_OUT):
            case PathKind.FILE:
                found = _identified(path, engines, spec)
                if isinstance(found, _NotOurs):
                    raise InputError(f"{path} {found.reason}")
                files.setdefault(path.resolve(), found)
            case PathKind.FOLDER:
                for each in _inside(path):
                    found = _identified(each, engines, spec)
                    if isinstance(found, _NotOurs):
                        passed_over[found.kind] += 1
                    else:
                        files.setdefault(each.resolve(), found)
            case None:
                raise InputError(f"{path}: there is no such file or folder: {_WAY_OUT}.")
            case other:
                raise InputError(f"{path} is a {other}: {_WAY_OUT}.")
    if not files:
        raise InputError(_nothing(paths, passed_over, spec))
    return FoundFiles(tuple(files.values()), dict(passed_over))


def read_engine_file(path: Path, engine: Engine, weight: WeightShape, quant: QuantScheme) -> EngineFile:
    """Read a config file of which the name says no more than is known.

    Raises:
        InputError: it cannot be read, or the engine would stumble over it; the message names `blockscale check`.
    """
    try:
        entries = read_config_file(path).entries
    except UnreadableConfigFile as error:
        raise _damaged(path, error.reason) from None
    if not entries:
        raise _damaged(path, "it has no entry, so the engine runs its default")
    if min(entries) < 1:
        raise _damaged(path, f"key {min(entries)} is no batch size")
    return EngineFile(path, engine, weight, quant, entries)


@dataclass(frozen=True, slots=True)
class _NotOurs:
    """Why a file is not compared; ``reason`` follows its path and ends the sentence."""

    kind: PassedOver
    reason: str


def _identified(path: Path, engines: Sequence[Engine], spec: DeviceSpec) -> EngineFile | _NotOurs:
    """The file, if one of the engines would find it on this device."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return _NotOurs(
            PassedOver.NAME,
            "has no name that says N, K, GPU and block of a block-scaled GEMM as an engine's file does: `blockscale "
            "check` says what is wrong with it.",
        )
    weight = WeightShape(int(match["n"]), int(match["k"]))
    quant = QuantScheme(QuantFormat(match["format"]), int(match["block_n"]), int(match["block_k"]))
    spelled = [e for e in engines if e.file_name(weight, quant, match["device"]) == path.name]
    if not spelled:
        names = " and ".join(f"{e} looks for {e.file_name(weight, quant, match['device'])}" for e in engines)
        return _NotOurs(PassedOver.ENGINE, f"is never found: {names}. `blockscale check --fix` renames files.")
    engine = spelled[0]
    if engine.file_name(weight, quant, spec.name) != path.name:
        return _NotOurs(
            PassedOver.DEVICE,
            f"is for {match['device']}, and this device is {spec.name}: compare it on such a GPU, or on a recording of "
            "one with --device recorded:FILE.",
        )
    if (refusal := engine.refusal(quant, spec)) is not None:
        return _NotOurs(PassedOver.USELESS, f"is of no use to {engine}: {refusal}.")
    return read_engine_file(path, engine, weight, quant)


def _inside(folder: Path) -> list[Path]:
    """The .json files of a folder and its subfolders; provenance lies in folders that no engine reads."""
    found = (p for p in folder.rglob("*.json") if PRIVATE_FOLDER not in p.relative_to(folder).parts)
    return sorted(p for p in found if p.is_file())


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: {reason}. `blockscale check` says what the engine does with it, and how to mend it.")


def _nothing(paths: Sequence[Path], passed_over: Counter[PassedOver], spec: DeviceSpec) -> str:
    folders = ", ".join(map(str, paths))
    seen = "; ".join(f"{n} {'file' if n == 1 else 'files'} {kind}" for kind, n in passed_over.items())
    return (
        f"{folders}: no config file for {spec.name} lies there ({seen or 'no .json file at all'}): give files that "
        "were tuned for it, or another --device."
    )
