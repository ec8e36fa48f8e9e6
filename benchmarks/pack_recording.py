"""Merge stores and recordings of one device into the recorded device that ships with the package. No GPU needed.

python benchmarks/pack_recording.py --keep FILE NOTE --add FILE NOTE [--add …] -o src/blockscale/data/h200.jsonl.gz

FILE is a store or a recording; NOTE says when and how it was measured and goes into the file's provenance. What a kept
file holds of a kernel on a problem stands digit for digit, and nothing is mixed in. Of the same candidate in several
added files a whole measurement beats a first look, and that beats a failure; among equals the later file wins.

A whole measurement keeps every sample and a first look its fastest, to four digits: 0.05%, where measuring the same
config again differs by 0.4 to 2%.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import Candidate, Environment, Kernel, Phase, Problem, Trial, TrialStatus, WeightShape
from blockscale.recording import Recording, load_recording, write_recording
from blockscale.store import Store, limits_of

LARGEST_BYTES = 1_000_000
SAMPLE_DIGITS = 4
ELAPSED_DIGITS = 2

_ORIGIN = "origin"
_STORE_START = b"SQLite format 3\0"


@dataclass(frozen=True)
class Source:
    """Trials of one environment; ``note`` says how they came about, ``kept`` that nothing of them may change."""

    environment: Environment
    spec: DeviceSpec
    trials: tuple[Trial, ...]
    note: str
    kept: bool


Origin = tuple[int, Trial]
"""The place of a source among the sources, and a trial of it."""


def read_sources(path: Path, note: str, kept: bool) -> list[Source]:
    """What a store holds, environment by environment, or a recording.

    Raises:
        InputError: the file is neither.
    """
    with path.open("rb") as file:
        is_store = file.read(len(_STORE_START)) == _STORE_START
    if not is_store:
        recording = load_recording(path)
        return [Source(recording.environment, recording.spec, tuple(recording), note, kept)]
    with Store.open(path, create=False) as store:
        sources = []
        for environment in store.environments():
            trials = tuple(t for _, t in store.trials(environment) if t.status is not TrialStatus.UNRECORDED)
            if trials:
                sources.append(Source(environment, limits_of(store, environment), trials, note, kept))
        return sources


def merge(sources: Iterable[Source]) -> list[Origin]:
    """One trial for each candidate, problem and phase; kept sources come first.

    Problems stay in the order of measuring; the configs of each are sorted, so that tables look alike and pack well.
    """
    tables: dict[tuple[Problem, Kernel], dict[tuple[Candidate, Phase], Origin]] = {}
    closed: set[tuple[Problem, Kernel]] = set()
    for place, source in enumerate(sources):
        for trial in source.trials:
            key = (trial.problem, trial.candidate.kernel)
            if key in closed:
                continue
            table = tables.setdefault(key, {})
            known = table.get((trial.candidate, trial.phase))
            if known is None or _worth(trial) >= _worth(known[1]):
                table[trial.candidate, trial.phase] = (place, trial if source.kept else shortened(trial))
        if source.kept:
            closed |= tables.keys()
    return [table[key] for table in tables.values() for key in sorted(table, key=_spelling)]


def shortened(trial: Trial) -> Trial:
    """A trial with as many digits as its measurement is good for."""
    samples = (min(trial.samples_us),) if trial.status is TrialStatus.COARSE else trial.samples_us
    return replace(
        trial,
        samples_us=tuple(_rounded(sample, SAMPLE_DIGITS) for sample in samples),
        compile_s=round(trial.compile_s, 2),
        elapsed_s=_rounded(trial.elapsed_s, ELAPSED_DIGITS),
    )


def combined_environment(sources: list[Source], merged: list[Origin]) -> Environment:
    """One environment for trials of several: what differs is listed, and the key is a digest of all their keys.

    Its details say of each source what it was, and which trials are its.
    """
    environments = [source.environment for source in sources]
    details = [text for place, source in enumerate(sources) for text in _provenance(source, place, merged)]
    numbered = tuple((f"{_ORIGIN} {number}", text) for number, text in enumerate(details, 1))
    keys = sorted({environment.key for environment in environments})
    if len(keys) == 1:
        return replace(environments[0], details=numbered)

    def listed(of: Callable[[Environment], str]) -> str:
        return " / ".join(sorted({of(environment) for environment in environments}))

    return Environment(
        device_name=listed(lambda e: e.device_name),
        arch=listed(lambda e: e.arch),
        driver=listed(lambda e: e.driver),
        torch=listed(lambda e: e.torch),
        triton=listed(lambda e: e.triton),
        kernel_hash=hashlib.sha256(" ".join(keys).encode()).hexdigest()[:16],
        blockscale=listed(lambda e: e.blockscale),
        details=numbered,
    )


def _provenance(source: Source, place: int, merged: list[Origin]) -> Iterator[str]:
    """The origins of a source: those that it names itself where it was packed earlier."""
    e = source.environment
    earlier = [text for name, text in e.details if name.startswith(f"{_ORIGIN} ")]
    if earlier:
        yield from earlier
        return
    trials = [trial for of, trial in merged if of == place]
    versions = f"driver {e.driver}, torch {e.torch}, Triton {e.triton}, blockscale {e.blockscale}"
    more = "".join(f"; {name}: {text}" for name, text in e.details if text)
    held = "; ".join(_held(trials))
    yield f"{e.device_name}, {versions}, method {e.kernel_hash}; {source.note}{more}; {len(trials)} trials: {held}"


def _held(trials: Iterable[Trial]) -> Iterator[str]:
    """``fp8 2112×7168 at M 1 16 64`` for each kernel and weight."""
    pairs = sorted({(t.candidate.kernel, t.problem.shape.weight, t.problem.shape.M) for t in trials})
    for (kernel, weight), group in groupby(pairs, lambda pair: pair[:2]):
        yield f"{kernel} {weight} at M " + " ".join(str(m) for *_, m in group)


def _spelling(key: tuple[Candidate, Phase]) -> tuple[str, ...]:
    """What rows are sorted by: text, since some fields of a config may be unset."""
    candidate, phase = key
    return (*map(str, candidate.config.to_entry().values()), phase)


def table(recording: Recording) -> str:
    """Numbers of trials by weight and kernel, as Markdown: for docs/recorded-device.md."""
    kernels = sorted({kernel for problem in recording.problems for kernel in recording.kernels(problem)})
    counts: Counter[tuple[WeightShape, Kernel]] = Counter()
    batch_sizes: dict[WeightShape, list[int]] = {}
    for problem in recording.problems:
        weight = problem.shape.weight
        batch_sizes.setdefault(weight, []).append(problem.shape.M)
        for kernel in recording.kernels(problem):
            counts[weight, kernel] += len(recording.trials(problem, kernel))
    lines = ["| weight N×K | M | " + " | ".join(f"`{kernel}`" for kernel in kernels) + " |"]
    lines.append("|---" * (2 + len(kernels)) + "|")
    for weight, sizes in sorted(batch_sizes.items()):
        held = (counts[weight, kernel] for kernel in kernels)
        cells = " | ".join(f"{count:,}" if count else "–" for count in held)
        lines.append(f"| {weight} | {' '.join(map(str, sizes))} | {cells} |")
    return "\n".join(lines)


def _worth(trial: Trial) -> int:
    return {TrialStatus.OK: 2, TrialStatus.COARSE: 1}.get(trial.status, 0)


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def pack(sources: list[Source], output: Path) -> int:
    """Write the merged recording; returns the number of its trials.

    Raises:
        InputError: the sources are of different devices, or hold nothing.
    """
    devices = sorted({(source.spec.name, source.spec.arch) for source in sources})
    if len(devices) != 1:
        raise InputError(f"the files are of {len(devices)} devices, {devices}: pack those of one.")
    sources = sorted(sources, key=lambda s: not s.kept)
    merged = merge(sources)
    environment = combined_environment(sources, merged)
    return write_recording(output, sources[0].spec, environment, (trial for _, trial in merged))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, text in (("--keep", "stands as it is"), ("--add", "is rounded, and merged with what else is added")):
        parser.add_argument(option, nargs=2, action="append", default=[], metavar=("FILE", "NOTE"), help=text)
    parser.add_argument("--output", "-o", type=Path, required=True)
    args = parser.parse_args()
    given = [(*pair, True) for pair in args.keep] + [(*pair, False) for pair in args.add]
    sources = [source for path, note, kept in given for source in read_sources(Path(path), note, kept)]
    trials = pack(sources, args.output)
    recording = load_recording(args.output)
    size = args.output.stat().st_size
    print(f"{trials} trials of {len(recording.problems)} problems in {size} bytes")
    for name, text in recording.environment.details:
        print(f"{name}: {text}")
    print(table(recording))
    if size > LARGEST_BYTES:
        raise SystemExit(f"{args.output} has more than {LARGEST_BYTES} bytes: too large to ship.")


if __name__ == "__main__":
    main()
