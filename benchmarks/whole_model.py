"""Tune a whole job from cold, as ``blockscale tune`` does, and say where each second went. One GPU.

A fresh process with an empty compile cache, store and output folder; nothing of the job's weights is in the portfolio.
Wall time runs from the start of that process to its end. DIR gets ``run.json`` (every figure and result), ``run.log``
(what the process said), ``trials.db`` and the config files.

    python benchmarks/whole_model.py stock --seed 0 --out out/stock-0
    python benchmarks/whole_model.py 2112x7168,4608x7168 --batch-sizes 1 64 --device recorded:h200 --out out/small

Jobs: ``stock`` is the list of SGLang's tuning script at TP 8; ``deepseek-v3`` what `blockscale shapes deepseek-v3
--tp-size 8` lists; ``qwen3-32b`` the same of Qwen/Qwen3-32B-FP8; else N×K pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent.parent / "src"
sys.path.insert(0, str(SOURCES))

from blockscale.costmodel import Portfolio, portfolio_for  # noqa: E402
from blockscale.engines import Engine, engine, engine_names, require_writable  # noqa: E402
from blockscale.executor.base import SAME_CODE, Device  # noqa: E402
from blockscale.problem import Phase, WeightShape  # noqa: E402
from blockscale.report.lines import json_line  # noqa: E402
from blockscale.tuning.events import Event, Observer  # noqa: E402
from blockscale.tuning.request import STOCK_BATCH_SIZES, TuneRequest, check_sizes  # noqa: E402

JOBS: Mapping[str, str] = {
    "stock": "576x7168,24576x7168,32768x512,7168x16384,7168x18432,4608x7168,3072x7168,4096x512,3072x1536,512x7168,"
    "7168x2304,7168x2048,7168x256",
    "deepseek-v3": "2112x7168,3072x1536,4096x512,7168x2048,4608x7168,7168x2304,512x7168,7168x256",
    "qwen3-32b": "1280x5120,5120x1024,6400x5120,5120x3200",
}
TARGET_S = {"stock": 90.0, "deepseek-v3": 60.0}
_TIMELINE_STEP_S = 0.5
_PORTFOLIO = "portfolio.json.gz"  # in --out: what the measured process knows beforehand


def weights_of(job: str) -> tuple[WeightShape, ...]:
    """The weights of a named job, or of N×K pairs as in ``2112x7168,4608x7168``."""
    pairs = (pair.replace("×", "x").split("x") for pair in JOBS.get(job, job).split(","))
    return tuple(WeightShape(int(n), int(k)) for n, k in pairs)


class Recorder:
    """Passes events on; keeps those that make a JSON line, and now and then what the device has done so far."""

    def __init__(self, show: Observer, device: Device) -> None:
        self._show, self._device = show, device
        self._began_s = self._next_s = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.timeline: list[dict[str, float]] = []

    def __call__(self, event: Event) -> None:
        """Take one event of the run."""
        self._show(event)
        now_s = time.monotonic()
        after_s = now_s - self._began_s
        if line := json_line(event):
            self.events.append(json.loads(line) | {"after_s": after_s})
        if now_s >= self._next_s:
            clock = self._device.clock()
            done = {"screening_s": clock.screening_s, "finals_s": clock.finals_s, "compiling_s": clock.compiling_s}
            self.timeline.append({"after_s": after_s} | done)
            self._next_s = now_s + _TIMELINE_STEP_S


def tune(args: argparse.Namespace) -> None:
    """The measured process: the run as ``blockscale tune`` composes it, less reading a model and asking."""
    from blockscale.cli.devices import open_devices
    from blockscale.cli.live import watch
    from blockscale.store import Store, locate
    from blockscale.tuning.groups import Group
    from blockscale.tuning.run import check_request, run_tune

    chosen = engine(args.engine)
    folder, path = args.out / "configs", args.out / "trials.db"
    request = TuneRequest(
        weights=weights_of(args.job),
        batch_sizes=tuple(args.batch_sizes),
        folders=((chosen.name, folder),),
        engine_versions=((chosen.name, chosen.version),),
        seed=args.seed,
    )
    check_sizes(request.problems(), request.quant)
    marks_s = {"opening": time.monotonic()}
    (device,) = open_devices(args.device, args.gpus)
    with closing(device):
        marks_s["run"] = time.monotonic()
        check_request(request, [chosen], device, locate(path))
        require_writable(folder)
        portfolio = portfolio_for(device.spec, [Portfolio.load(args.out / _PORTFOLIO)])
        with Store.open(path) as store, watch([Group(request, (chosen,), device)], as_json=False) as view:
            recorder = Recorder(view, device)
            run_tune(request, [chosen], device, store, recorder, portfolio)
        marks_s["closing"] = time.monotonic()
        environment = asdict(device.environment)
    marks_s["exit"] = time.monotonic()
    found = {
        "engine_version": chosen.version,
        "environment": environment,
        "marks_s": marks_s,
        "events": recorder.events,
        "timeline": recorder.timeline,
    }
    (args.out / "process.json").write_text(json.dumps(found))


def teach(args: argparse.Namespace) -> None:
    """Leave the measured process what it may know: the portfolio, learnt without the job's weights."""
    from teaching import learnt, recorded_tables

    from blockscale.recording import embedded, load_recording

    recording = load_recording(embedded("h200"))
    learnt(recording.spec, recorded_tables([recording]), without=weights_of(args.job)).save(args.out / _PORTFOLIO)


def run_cold(args: argparse.Namespace, cache: Path) -> dict[str, Any] | None:
    """Run the measured process with ``cache`` for all that is compiled: what it left, None where it failed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(cache.absolute())}
    with (args.out / "run.log").open("w") as log:
        began_s = time.monotonic()  # one clock for all processes of a machine
        code = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--as-measured-process"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ).returncode
        ended_s = time.monotonic()
    left = args.out / "process.json"
    if code or not left.exists():
        print(f"the run ended with exit code {code}; the end of {args.out / 'run.log'}:", file=sys.stderr)
        print("\n".join((args.out / "run.log").read_text().splitlines()[-30:]), file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(left.read_text())
    marks_s = found.pop("marks_s")
    return found | {"wall_s": ended_s - began_s, "parts_s": parts(began_s, marks_s, ended_s)}


def parts(began_s: float, marks_s: Mapping[str, float], ended_s: float) -> dict[str, float]:
    """Seconds of each part of the wall time, in order; ``marks_s`` says when each but the first began."""
    begins = {"starting": began_s, **marks_s}
    return {name: end - begin for (name, begin), end in zip(begins.items(), [*marks_s.values(), ended_s], strict=True)}


def collect(args: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Everything that is saved of a run, as plain data."""
    events = found.pop("events")

    def of_kind(kind: str) -> list[dict[str, Any]]:
        return [event for event in events if event["event"] == kind]

    (summary,), (spent,) = of_kind("summary"), of_kind("time")
    trials, default_us = stored(args.out / "trials.db", engine(args.engine, found["engine_version"]))
    problems = [
        {name: value for name, value in row.items() if name != "event"}
        | {"default_us": default_us.get((row["M"], row["N"], row["K"]))}
        for row in of_kind("problem")
    ]
    return {
        "job": args.job,
        "engine": args.engine,
        "seed": args.seed,
        "weights": [[w.N, w.K] for w in weights_of(args.job)],
        "batch_sizes": list(args.batch_sizes),
        **found,
        "time": {name: value for name, value in spent.items() if name not in ("event", "after_s")},
        "trials": trials,
        "files": [{"name": Path(file["path"]).name, "keys": len(file["keys"])} for file in of_kind("file")],
        "warnings": [event["text"] for event in of_kind("warning")],
        "complete": summary["complete"],
        "problems": problems,
    }


def stored(path: Path, chosen: Engine) -> tuple[dict[str, int], dict[tuple[int, int, int], float]]:
    """Trials by phase and status, and the time (µs) of the engine's default in the finals of each (M, N, K)."""
    from blockscale.store import Store
    from blockscale.tuning.baselines import baseline_of

    counts: Counter[str] = Counter()
    default_us = {}
    with Store.open(path, create=False) as store:
        (environment,) = store.environments()
        spec = store.device_spec(environment)
        assert spec is not None
        for _, trial in store.trials(environment):
            counts[f"{trial.phase} {trial.status}"] += 1
            counts[f"{trial.phase} {SAME_CODE}"] += SAME_CODE in trial.labels
            default = baseline_of(chosen, trial.problem, spec, None).default
            if trial.phase is Phase.FINAL and trial.candidate == default and trial.time_us is not None:
                shape = trial.problem.shape
                default_us[shape.M, shape.N, shape.K] = trial.time_us
    return dict(sorted((+counts).items())), default_us


def time_split(run: Mapping[str, Any]) -> dict[str, float]:
    """The wall time of a saved run, in order, in parts that add up to it: seconds by name."""
    part_s, time_s = run["parts_s"], run["time"]
    recorded = time_s["recorded"]  # then the GPU's seconds are none of this run's
    gpus = time_s.get("gpus", 1)  # whose seconds are summed
    gpu_s = {name: 0.0 if recorded else time_s[name] / gpus for name in ("screening_s", "finals_s", "idle_s")}
    return {
        "interpreter and imports": part_s["starting"],
        "opening the device": part_s["opening"],
        "GPU screening": gpu_s["screening_s"],
        "GPU finals": gpu_s["finals_s"],
        "GPU idle between": gpu_s["idle_s"],
        "before the first work, after the last": part_s["run"] - sum(gpu_s.values()),
        "closing": part_s["closing"] + part_s["exit"],
    }


def report(run: Mapping[str, Any]) -> str:
    """The run in a few lines."""
    target_s, wall_s, spent = TARGET_S.get(run["job"]), run["wall_s"], run["time"]
    verdict = "" if target_s is None else f" ({'within' if wall_s <= target_s else 'beyond'} {target_s:g} s)"
    keys = sum(file["keys"] for file in run["files"])
    size = f"{len(run['weights'])} weights × {len(run['batch_sizes'])} batch sizes"
    workers = spent["compile_workers"]
    busy = f" on {workers} workers ({spent['compiling_s'] / workers / wall_s:.0%} of the wall time)" if workers else ""
    lines = [
        f"{run['job']} for {run['engine']} {run['engine_version']}, seed {run['seed']}: {size}, "
        f"{run['environment']['device_name']}, torch {run['environment']['torch']}, "
        f"Triton {run['environment']['triton']}",
        f"wall {wall_s:.1f} s{verdict}; {len(run['files'])} files with {keys} entries"
        + ("" if run["complete"] else "; INCOMPLETE"),
        *(f"{seconds:8.1f} s  {name}" for name, seconds in time_split(run).items()),
        f"compilers: {spent['compiling_s']:.0f} CPU s for {spent['compilations']} compilations{busy}; "
        f"search, store and files: {spent['computing_s']:.1f} s beside the GPU",
        "trials: " + ", ".join(f"{count} {name}" for name, count in run["trials"].items()),
        f"over the engine's default: {gains(run['problems'], 'default_us')}",
        f"over what ran before: {gains(run['problems'], 'baseline_us')}",
        *(f"warning: {text}" for text in run["warnings"]),
    ]
    return "\n".join(lines)


def gains(problems: Sequence[Mapping[str, Any]], over: str) -> str:
    """Geometric mean and least of a time over the chosen one's, in words."""
    ratios = [row[over] / row["time_us"] for row in problems if row[over] and row["time_us"]]
    if not ratios:
        return "no times"
    return f"{statistics.geometric_mean(ratios):.3f}x over {len(ratios)} problems, least {min(ratios):.3f}x"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help=f"{', '.join(JOBS)}, or N×K pairs with commas between")
    parser.add_argument("--engine", choices=engine_names(), default="sglang")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results, empty or new")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="empty folder whose compiled kernels stay")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=list(STOCK_BATCH_SIZES), metavar="M")
    parser.add_argument("--device", default="cuda", help="as of `blockscale tune`")
    parser.add_argument("--gpus", default="0", help="as of `blockscale tune`; one model")
    parser.add_argument("--as-measured-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_measured_process:
        tune(args)
        return 0
    for folder in filter(None, (args.out, args.cache)):
        if folder.exists() and any(folder.iterdir()):
            parser.error(f"{folder} is not empty: a cold run needs a fresh one")
        folder.mkdir(parents=True, exist_ok=True)
    teach(args)
    with tempfile.TemporaryDirectory() as temporary:
        found = run_cold(args, args.cache or Path(temporary))
    if found is None:
        return 1
    run = collect(args, found)
    (args.out / "run.json").write_text(json.dumps(run))
    (args.out / "process.json").unlink()
    print(report(run))
    return 0 if run["complete"] else 1


if __name__ == "__main__":
    sys.exit(main())
