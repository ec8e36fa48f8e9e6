"""Compared files as tables and sentences for people, and as one object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blockscale.executor.base import APPROXIMATE
from blockscale.hardware import DeviceSpec
from blockscale.measure.libraries import LibraryGemm
from blockscale.problem import Environment, Problem, Trial
from blockscale.report.results import count, format_us, geometric_mean
from blockscale.report.table import Column, Table
from blockscale.tuning.comparison.contest import REPLACED, Outcome, Rival, Standing, Verdict
from blockscale.tuning.comparison.run import Compared, FileOutcome

_NONE = "–"
_SAME = "same"
_MOST_NAMED = 6  # batch sizes in a sentence

_NAMES = {
    Rival.DEFAULT: "default",
    Rival.SHIPPED: "shipped",
    Rival.BEST: "best known",
    Rival.DEEPGEMM: "DeepGEMM",
    Rival.CUBLAS: "cuBLAS",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """A batch size at which a file is slower than what it replaces, or does not run. ``rival`` None: it fails."""

    file: FileOutcome
    outcome: Outcome
    rival: Rival | None


def losses(compared: Compared) -> list[Loss]:
    """Where files lose beyond noise or fail, file by file in ascending batch size."""
    found = []
    for file in compared.files:
        for each in file.outcomes:
            if each.verdict is Verdict.FAILS:
                found.append(Loss(file, each, None))
            found += [Loss(file, each, rival) for rival in each.loses_to]
    return found


def file_table(file: FileOutcome) -> Table:
    """A row for each batch size: the key that serves it, its config and time, times of rivals over it, the verdict.

    A ratio above 1 says how many times faster the file is. A library that ran nowhere has no column: `closing_lines`
    say why.
    """
    rivals = [rival for rival in Rival if any(_has_place(each.standings.get(rival)) for each in file.outcomes)]
    columns = (
        Column("M", figures=True),
        Column("key", figures=True),
        Column("config", optional=True),
        Column("µs", figures=True),
        *(Column(f"× {_NAMES[rival]}", figures=True) for rival in rivals),
        Column("verdict"),
    )
    return Table(columns, tuple(_row(each, rivals) for each in file.outcomes))


def file_lines(file: FileOutcome) -> list[str]:
    """The table in words: means and worst of each rival, and what was left out."""
    lines = [line for rival in Rival if (line := _mean_line([file], rival)) is not None]
    unrecorded = [each.m for each in file.outcomes if each.verdict is Verdict.UNRECORDED]
    if unrecorded:
        lines.append(f"The config is not recorded at {_sizes(unrecorded)}: no time, no verdict there.")
    if file.unrecorded:
        lines.append(f"Left out, not recorded on this device: {_sizes(file.unrecorded)}.")
    return lines


def closing_lines(compared: Compared) -> list[str]:
    """What holds for all files: means over them, what was left out and why, and last where they lose."""
    lines = []
    if len(compared.files) > 1:
        lines += [f"All files, {line}" for r in Rival if (line := _mean_line(compared.files, r)) is not None]
    if compared.unrecorded:
        weights = ", ".join(dict.fromkeys(str(file.weight) for file in compared.unrecorded))
        lines.append(f"Left out, nothing of them is recorded: {count(len(compared.unrecorded), 'file')} for {weights}.")
    lines += _left_out_lines(compared)
    if any(APPROXIMATE in each.own.labels for file in compared.files for each in file.outcomes):
        lines.append("≈ approximate: times of a kernel akin to the engine's, which was not recorded there.")
    lost = losses(compared)
    lines += [_loss_line(each) for each in lost]
    if not lost:
        lines.append("No loss beyond noise against what the files replace.")
    return lines


def title(file: FileOutcome) -> str:
    """Which file, for whom, and what it is held against."""
    against = f", against {file.against}" if file.against else ""
    return f"{file.file.path} ({file.file.engine}{against})"


def compare_json(
    compared: Compared, spec: DeviceSpec, environment: Environment, notes: Sequence[str], warnings: Sequence[str]
) -> dict[str, Any]:
    """Everything as one object; ratios are times of the rival over those of the file."""
    return {
        "device": spec.name,
        "recorded": compared.recorded,
        "environment": {
            name: getattr(environment, name) for name in ("driver", "torch", "triton", "kernel_hash", "blockscale")
        },
        "files": [_file_json(file) for file in compared.files],
        "left_out": [
            {"baseline": str(each.rival), "reason": each.reason, "problems": [_sizes_json(p) for p in each.problems]}
            for each in compared.left_out
        ],
        "unrecorded_files": [str(file.path) for file in compared.unrecorded],
        "losses": [
            {"file": str(each.file.file.path), "M": each.outcome.m, "to": str(each.rival) if each.rival else None}
            for each in losses(compared)
        ],
        "geometric_means": {
            str(rival): mean for rival in Rival if (mean := geometric_mean(_ratios(compared.files, rival))) is not None
        },
        "notes": list(notes),
        "warnings": list(warnings),
    }


def _row(each: Outcome, rivals: Sequence[Rival]) -> tuple[str, ...]:
    return (
        str(each.m),
        str(each.key),
        str(each.own.candidate.config),
        format_us(each.own.time_us, _mark(each.own)),
        *(_ratio_cell(each.standings.get(rival), each) for rival in rivals),
        _verdict(each),
    )


def _has_place(standing: Standing | None) -> bool:
    if standing is None:
        return False
    return standing.ratio is not None or not isinstance(standing.trial.candidate, LibraryGemm)


def _ratio_cell(standing: Standing | None, each: Outcome) -> str:
    if standing is None:
        return _NONE
    if standing.ratio is None:
        return _NONE if each.own.time_us is None else str(standing.trial.status)
    return _SAME if standing.same else f"{_mark(standing.trial, each.own)}{standing.ratio.value:.2f}×"


def _mark(*trials: Trial) -> str:
    return "≈" if any(APPROXIMATE in trial.labels for trial in trials) else ""


def _verdict(each: Outcome) -> str:
    match each.verdict:
        case Verdict.LOSES:
            return f"loses to {' and '.join(_NAMES[rival] for rival in each.loses_to)}"
        case Verdict.FAILS:
            return f"fails: {each.own.status}"
        case verdict:
            return str(verdict)


def _ratios(files: Sequence[FileOutcome], rival: Rival) -> list[float]:
    return [ratio for _, _, ratio in _rated(files, rival)]


def _rated(files: Sequence[FileOutcome], rival: Rival) -> list[tuple[FileOutcome, Outcome, float]]:
    return [
        (file, each, standing.ratio.value)
        for file in files
        for each in file.outcomes
        if (standing := each.standings.get(rival)) is not None and standing.ratio is not None
    ]


def _mean_line(files: Sequence[FileOutcome], rival: Rival) -> str | None:
    rated = _rated(files, rival)
    mean = geometric_mean([ratio for _, _, ratio in rated])
    if mean is None:
        return None
    file, worst, ratio = min(rated, key=lambda each: each[2])
    where = f"M={worst.m}" + (f" of {file.file.weight}" if len(files) > 1 else "")
    over = count(len(rated), "batch size" if len(files) == 1 else "problem")
    return f"× {_NAMES[rival]}: {mean:.2f}, geometric mean over {over}; least {ratio:.2f} at {where}."


def _left_out_lines(compared: Compared) -> list[str]:
    """Which libraries were not timed and why, those with one reason on one line; batch sizes where it was not all."""
    everywhere = {each.own.problem for file in compared.files for each in file.outcomes}
    names: dict[tuple[str, str], list[str]] = {}
    for each in compared.left_out:
        sizes = sorted({problem.shape.M for problem in each.problems})
        where = "" if set(each.problems) == everywhere else f" at {_sizes(sizes)}"
        names.setdefault((where, each.reason), []).append(_NAMES[each.rival])
    return [f"{' and '.join(n)} left out{where}: {reason.rstrip('.')}." for (where, reason), n in names.items()]


def _loss_line(loss: Loss) -> str:
    each, weight = loss.outcome, loss.file.file.weight
    place = f"M={each.m} of {weight} for {loss.file.file.engine.name} (key {each.key})"
    if loss.rival is None:
        return f"Fails at {place}: {each.own.status}: {each.own.message or 'no message'}"
    rival = loss.rival
    standing = each.standings[rival]
    config = standing.trial.candidate.config
    return (
        f"Loses at {place}: {format_us(each.own.time_us)} µs, and the {_NAMES[rival]} config {config} "
        f"{format_us(standing.trial.time_us)} µs"
    )


def _sizes(sizes: Sequence[int]) -> str:
    named = " ".join(map(str, sizes[:_MOST_NAMED]))
    more = f" and {len(sizes) - _MOST_NAMED} more" if len(sizes) > _MOST_NAMED else ""
    return f"M = {named}{more}"


def _sizes_json(problem: Problem) -> dict[str, int]:
    return {"M": problem.shape.M, "N": problem.shape.N, "K": problem.shape.K}


def _file_json(file: FileOutcome) -> dict[str, Any]:
    quant = file.file.quant
    return {
        "file": str(file.file.path),
        "engine": file.file.engine.name,
        "engine_version": file.file.engine.version,
        "N": file.file.weight.N,
        "K": file.file.weight.K,
        "format": str(quant.format),
        "block_n": quant.block_n,
        "block_k": quant.block_k,
        "against": str(file.against) if file.against else None,
        "unrecorded": list(file.unrecorded),
        "rows": [_row_json(each) for each in file.outcomes],
    }


def _row_json(each: Outcome) -> dict[str, Any]:
    return {
        "M": each.m,
        "key": each.key,
        **_trial_json(each.own),
        "verdict": str(each.verdict),
        "loses_to": [str(rival) for rival in each.loses_to],
        "baselines": {
            str(rival): _trial_json(standing.trial)
            | {
                "ratio": standing.ratio.value if standing.ratio else None,
                "tolerance": standing.ratio.tolerance if standing.ratio else None,
                "replaced": rival in REPLACED,
            }
            for rival, standing in each.standings.items()
        },
    }


def _trial_json(trial: Trial) -> dict[str, Any]:
    library = isinstance(trial.candidate, LibraryGemm)
    return {
        "config": None if library else trial.candidate.config.to_entry(),
        "kernel": None if library else str(trial.candidate.kernel),
        "status": str(trial.status),
        "message": trial.message,
        "time_us": trial.time_us,
        "samples_us": list(trial.samples_us),
        "labels": list(trial.labels),
    }
