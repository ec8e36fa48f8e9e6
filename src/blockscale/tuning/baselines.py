"""What would run without this run's entry: the file's choice under the engine's lookup, else the engine's default.

``first_seen`` keeps what was read in the store, for a continued run to compare with the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockscale.engines import Engine, UnreadableConfigFile, read_config_file
from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Problem, TileConfig
from blockscale.space import canonical
from blockscale.tuning.target import FileTarget


@dataclass(frozen=True, slots=True)
class Baseline:
    """What would run for one problem. ``entry`` is that config as a file holds it, ``source`` says where it is from.

    ``default`` is what the engine runs without any file. It is tried and re-timed too: a file that is removed or never
    found falls back to it, so an entry should not be slower.
    """

    candidate: Candidate
    entry: dict[str, Any]
    source: str
    default: Candidate

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What is tried whatever the search asks for: the baseline and the default, each once."""
        return tuple(dict.fromkeys((self.candidate, self.default)))


def read_entries(target: FileTarget) -> dict[str, Any] | None:
    """Entries that the engine would find now, as ``{"source", "entries": [[key, entry], …]}`` in file order.

    The file of the output folder comes first, then the one that the installed engine ships; None where neither can be
    read (such a file breaks or misses the engine's lookup, so the default runs).
    """
    for source, file in (("file", target.path), ("shipped file", target.shipped)):
        if file is None or not file.is_file():
            continue
        try:
            entries = read_config_file(file).entries
        except UnreadableConfigFile:
            continue
        if entries:
            return {"source": source, "entries": [[key, entry] for key, entry in entries.items()]}
    return None


def looked_up(engine: Engine, found: Mapping[str, Any], m: int) -> tuple[int, dict[str, Any] | None]:
    """The key and entry of what ``read_entries`` found that ``engine`` takes for batch size ``m``; null is None."""
    entries: dict[int, dict[str, Any] | None] = dict(found["entries"])
    key = engine.lookup_key(list(entries), m)
    return key, entries[key]


def baseline_of(engine: Engine, problem: Problem, spec: DeviceSpec, found: Mapping[str, Any] | None) -> Baseline:
    """The baseline of ``problem``, given what ``read_entries`` found for its weight."""
    default_config = engine.clamped_default(problem, spec)
    default = launched(engine, problem, spec, default_config)
    if found:
        key, entry = looked_up(engine, found, problem.shape.M)
        if entry is not None:  # null stands for the default
            try:
                config = TileConfig.from_entry(entry, unstated_num_stages=spec.unstated_num_stages)
            except InputError:
                pass  # the engine's launch fails on it, so nothing runs that one could compare with
            else:
                source = f"{found['source']}, key {key}"
                return Baseline(launched(engine, problem, spec, config), dict(entry), source, default)
    return Baseline(default, engine.entry(default_config), "engine default", default)


def launched(engine: Engine, problem: Problem, spec: DeviceSpec, config: TileConfig) -> Candidate:
    """What ``engine`` launches on a device for a config of its file, in the one spelling that trials have."""
    effective = canonical(problem, engine.effective_config(problem, config, spec))
    return Candidate(engine.kernel_for(problem, effective, spec), effective)
