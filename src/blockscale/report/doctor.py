"""What a machine can tune: facts in, verdicts with a way out and their text and JSON out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockscale.engines import InstalledEngine, engine
from blockscale.hardware import DeviceSpec
from blockscale.problem import Environment
from blockscale.report.table import Column, Table, render_table, wrap


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU that answered."""

    index: int
    spec: DeviceSpec
    environment: Environment


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """A place that blockscale writes to: bytes it takes now, and why it cannot be used, if so."""

    name: str
    path: Path
    used_bytes: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """All that was found. ``packages`` holds versions, None for what is not installed."""

    packages: tuple[tuple[str, str | None], ...]
    gpus: tuple[GpuFacts, ...]
    gpu_problem: str | None
    engines: tuple[InstalledEngine, ...]
    places: tuple[PlaceFacts, ...]
    recordings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that works or does not, why, and what to do."""

    what: str
    works: bool
    text: str


def verdicts(facts: MachineFacts) -> list[Verdict]:
    """What will work here and what will not, most important first."""
    found = [verdict for gpu in facts.gpus for verdict in _of_gpu(gpu)]
    if not facts.gpus:
        found.append(Verdict("tuning on a GPU", False, facts.gpu_problem or "no GPU was found"))
    for name in facts.recordings:
        found.append(Verdict("tuning on a recorded GPU", True, f"blockscale tune … --device recorded:{name}"))
    for place in facts.places:
        if place.problem is not None:
            found.append(Verdict(place.name, False, place.problem))
    for each in facts.engines:
        if each.config_folder is None:
            text = f"{each.name} {each.version} has its config loader at no known place: copy the files by hand"
            found.append(Verdict(f"{each.name}'s config folder", False, text))
    return found


def anything_works(facts: MachineFacts) -> bool:
    """Whether some device can be tuned on: a GPU or a recorded one."""
    return bool(facts.gpus or facts.recordings)


def doctor_text(facts: MachineFacts, width: int | None = None) -> str:
    """The report for a person, fitted to a terminal of ``width`` columns if that is given."""
    blocks = ["\n".join(["Installed", *(f"  {name:<16} {version or '–'}" for name, version in facts.packages)])]
    if facts.gpus:
        blocks.append(render_table(_gpu_table(facts), width))
    engines = [f"  {e.name} {e.version}: {e.config_folder or 'folder unknown'}" for e in facts.engines]
    blocks.append("\n".join(["Engines", *(engines or ["  none in this Python; files are written for sglang"])]))
    places = [f"  {p.name:<16} {p.path} ({p.used_bytes / 1e6:.1f} MB)" for p in facts.places]
    blocks.append("\n".join(["Places", *places]))
    lines = [wrap(f"  {'yes' if v.works else 'no':<4} {v.what}: {v.text}", width, " " * 7) for v in verdicts(facts)]
    blocks.append("\n".join(["What works", *lines]))
    return "\n\n".join(blocks)


def doctor_json(facts: MachineFacts) -> dict[str, Any]:
    """The object that ``doctor --json`` prints."""
    return {
        "packages": dict(facts.packages),
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.spec.name,
                "arch": gpu.spec.arch,
                "memory_bytes": gpu.spec.memory_bytes,
                "shared_memory_bytes": gpu.spec.shared_memory_bytes,
                "compute_units": gpu.spec.compute_units,
                "l2_bytes": gpu.spec.l2_bytes,
                "driver": gpu.environment.driver,
                "fp8": gpu.spec.supports_fp8,
                "roofline": gpu.spec.peaks is not None,
            }
            for gpu in facts.gpus
        ],
        "engines": [
            {"name": e.name, "version": e.version, "config_folder": str(e.config_folder) if e.config_folder else None}
            for e in facts.engines
        ],
        "places": [
            {"name": p.name, "path": str(p.path), "used_bytes": p.used_bytes, "problem": p.problem}
            for p in facts.places
        ],
        "verdicts": [{"what": v.what, "works": v.works, "text": v.text} for v in verdicts(facts)],
    }


def _of_gpu(gpu: GpuFacts) -> Iterator[Verdict]:
    spec, place = gpu.spec, f"GPU {gpu.index}"
    if spec.supports_fp8:
        yield Verdict(f"FP8 on {place}", True, f"{spec.fp8_format} on {spec.arch}")
    else:
        yield Verdict(f"FP8 on {place}", False, f"{spec.arch} has no FP8 that Triton compiles; use --input-type int8")
    has_int8 = spec.supports_int8
    yield Verdict(
        f"INT8 on {place}", has_int8, "SGLang reads such files" if has_int8 else f"needs SM80, this is {spec.arch}"
    )
    sglang = engine("sglang")
    takes = sglang.takes_swap_split(spec)
    reason = f"{sglang} takes them" if takes else f"{sglang} takes them on SM90 only; other configs are tuned"
    yield Verdict(f"SWAP_AB and SPLIT_K on {place}", takes, reason)
    known = spec.peaks is not None
    text = "the table shows % of roofline" if known else f"no peaks of {spec.name} are known; all else works"
    yield Verdict(f"roofline of {place}", known, text)


def _gpu_table(facts: MachineFacts) -> Table:
    columns = (
        Column("GPU", figures=True),
        Column("name"),
        Column("arch"),
        Column("memory GB", figures=True),
        Column("shared KiB", figures=True),
        Column("units", figures=True, optional=True),
        Column("L2 MiB", figures=True),
        Column("driver", optional=True),
    )
    rows = tuple(
        (
            str(gpu.index),
            gpu.spec.name,
            gpu.spec.arch,
            f"{gpu.spec.memory_bytes / 1e9:.0f}",
            f"{gpu.spec.shared_memory_bytes / 1024:.0f}",
            str(gpu.spec.compute_units),
            f"{gpu.spec.l2_bytes / 2**20:.0f}",
            gpu.environment.driver,
        )
        for gpu in facts.gpus
    )
    return Table(columns, rows)
