"""``blockscale tune``: arguments to a checked request, a device and a store; then the run, watched."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blockscale.cli.devices import open_devices
from blockscale.cli.folders import nothing_left_behind, output_folders
from blockscale.cli.inputs import TuneInputs, read_inputs, usable_engines
from blockscale.cli.parsing import (
    MODEL_HELP,
    Parser,
    add_model_options,
    add_store,
    out_dtype,
    seconds,
    whole_number,
)
from blockscale.engines import Engine, engine_names, require_writable
from blockscale.engines.kernels import KernelChoice, choose_kernels
from blockscale.errors import IncompleteRunError, InputError
from blockscale.executor.base import Device
from blockscale.kernels.installed import OWN, KernelSource
from blockscale.problem import OutDtype, QuantFormat
from blockscale.report.weights import DevicePlan
from blockscale.tuning.events import Note, RunSummary
from blockscale.tuning.request import STOCK_BATCH_SIZES, TuneRequest, check_sizes, distinct_batch_sizes

if TYPE_CHECKING:  # numpy and SQLite come with it, which a refused command does not wait for
    from blockscale.tuning.groups import Group

_EPILOG = """Without MODEL and without --N/--K the preset deepseek-v3 is tuned.
Without a GPU, try it on a recorded one:

  blockscale tune --N 2112 --K 7168 --device recorded:h200 --batch-sizes 1 16 64"""


def build_parser() -> Parser:
    """The parser of ``tune``."""
    parser = Parser(
        "blockscale tune",
        "Search the fastest config of every weight shape and batch size, and write the engines' config files.",
        _EPILOG,
    )
    _add_what(parser)
    _add_where(parser)
    _add_how(parser)
    return parser


def _add_what(parser: Parser) -> None:
    group = parser.add_argument_group("what to tune")
    group.add_argument("models", nargs="*", metavar="MODEL", help=MODEL_HELP)
    add_model_options(group)
    group.add_argument("--N", type=whole_number("--N"), metavar="N", help="rows of one weight, instead of a MODEL")
    group.add_argument("--K", type=whole_number("--K"), metavar="K", help="columns of that weight; goes with --N")
    group.add_argument(
        "--batch-sizes",
        "--batch-size",
        type=whole_number("--batch-sizes"),
        nargs="+",
        action="extend",
        metavar="M",
        help="tokens of one launch: the file's keys (default: those that a log weighs most, else "
        f"{' '.join(map(str, STOCK_BATCH_SIZES))})",
    )
    group.add_argument(
        "--input-type",
        choices=[*map(str, QuantFormat)],
        help="element format of A and B (default: as the model's config or the log says, else fp8)",
    )
    group.add_argument(
        "--out-dtype",
        type=out_dtype,
        default=OutDtype.BFLOAT16,
        metavar="DTYPE",
        help="bfloat16, float16, half (= float16) or float32 (default bfloat16)",
    )
    for side, axis in (("n", "N"), ("k", "K")):
        group.add_argument(
            f"--block-{side}",
            type=whole_number(f"--block-{side}"),
            metavar=axis,
            help=f"quantisation block along {axis} (default: as the model's config or the log says, else 128)",
        )


def _add_where(parser: Parser) -> None:
    group = parser.add_argument_group("where it runs and what it writes")
    group.add_argument(
        "--engine",
        action="append",
        choices=engine_names(),
        help="engine whose files are written, repeatable (default: those installed here, else sglang)",
    )
    group.add_argument(
        "--engine-version", metavar="V", help="its version (default: the installed one, else the newest)"
    )
    group.add_argument(
        "--save-path",
        type=Path,
        metavar="DIR",
        help="output folder; with several engines a folder each in it (default ./configs/ENGINE)",
    )
    group.add_argument(
        "--device",
        default="cuda",
        metavar="DEVICE",
        help="cuda, recorded:h200 (ships with blockscale) or recorded:FILE (default cuda)",
    )
    group.add_argument(
        "--device-name", default="", metavar="NAME", help="GPU name for the file's name, where a container renames it"
    )
    group.add_argument(
        "--gpus",
        default="all",
        metavar="all|I,J",
        help="GPUs to measure on, by index; different models get files of their own (default all)",
    )
    group.add_argument(
        "--executor", choices=["local", "ray"], default="local", help="where trials are measured (default local)"
    )
    group.add_argument("--ray-address", metavar="A", help="address of a Ray cluster, with --executor ray")
    group.add_argument(
        "--kernels",
        choices=[*map(str, KernelChoice)],
        default=KernelChoice.AUTO.value,
        help="whose kernels are timed on a GPU: auto (default) takes the engine's where it is installed, else ours",
    )
    add_store(group, "every trial is kept here, and a stopped run goes on from it")


def _add_how(parser: Parser) -> None:
    group = parser.add_argument_group("how to search")
    group.add_argument(
        "--search", choices=["auto", "exhaustive", "random"], default="auto", help="strategy (default auto)"
    )
    group.add_argument(
        "--trials", type=whole_number("--trials"), metavar="N", help="most candidates tried for one problem"
    )
    group.add_argument(
        "--time-budget", type=seconds("--time-budget"), metavar="S", help="device seconds for the whole run"
    )
    group.add_argument(
        "--seed", type=whole_number("--seed", least=0), default=0, metavar="N", help="seed of the search (default 0)"
    )
    group.add_argument(
        "--overwrite", action="store_true", help="new entries win without comparison with what would run otherwise"
    )
    group.add_argument(
        "--keys",
        choices=["asked", "fit"],
        default="asked",
        help="fit adds keys between the tuned ones, where the faster config changes (default asked)",
    )
    group.add_argument("--yes", "-y", action="store_true", help="start without asking")
    group.add_argument("--json", action="store_true", help="one JSON object a line on stdout, the summary last")


@dataclass(frozen=True, slots=True)
class _CheckedRun:
    """All that a run needs but its store, checked; nothing has been written."""

    groups: tuple[Group, ...]
    plans: tuple[DevicePlan, ...]  # one a group
    notes: tuple[Note, ...]


def run(args: argparse.Namespace) -> int:
    """Tune as the arguments say, and give the exit code."""
    inputs = read_inputs(args)
    check_sizes(_request(args, inputs, inputs.engines).problems(), inputs.quant)
    kernels, whose = _kernels(args, inputs)
    with ExitStack() as opened:
        devices = open_devices(args.device, args.gpus, args.executor, args.ray_address, kernels)
        for device in devices:
            opened.enter_context(closing(device))
        summary = _tune(args, _checked(args, inputs, devices, whose))
    if not summary.complete:
        raise IncompleteRunError(
            "some problems have no valid candidate, so their entries are missing; the table names them. The same "
            "command goes on from the store, with another --seed or more --trials it tries others."
        )
    return 0


def _kernels(args: argparse.Namespace, inputs: TuneInputs) -> tuple[KernelSource, list[str]]:
    """Whose kernels a GPU launches, and notes; a recorded device answers with what it was recorded with."""
    choice = KernelChoice(args.kernels)
    if args.device == "cuda":
        return choose_kernels(choice, inputs.engines, inputs.quant.format)
    if choice is KernelChoice.ENGINE:
        raise InputError(
            f"--kernels engine with --device {args.device}: recordings are of blockscale's own kernels; leave "
            "--kernels out, or measure on a GPU."
        )
    return OWN, []


def _checked(
    args: argparse.Namespace, inputs: TuneInputs, devices: Sequence[Device], whose: Sequence[str]
) -> _CheckedRun:
    """Refuse all that can be refused without writing anything; ``whose`` are notes on the kernels."""
    from blockscale.store import locate
    from blockscale.tuning.groups import Group
    from blockscale.tuning.run import check_request

    names = [device.spec.name for device in devices]
    if args.device_name and len(devices) > 1:
        raise InputError(
            f"--device-name {args.device_name}: here are GPUs of several models ({', '.join(names)}), whose files need "
            "names of their own; leave it out, or choose GPUs of one model with --gpus."
        )
    groups: list[Group] = []
    plans: list[DevicePlan] = []
    _, repeated = distinct_batch_sizes(inputs.batch_sizes)
    texts = [Note(text) for text in (*inputs.notes, *repeated, *whose)]
    texts += [Note(text, warning=True) for text in inputs.warnings]
    for device in devices:
        usable, left_out = usable_engines(inputs.engines, inputs.quant, device.spec, explicit=bool(args.engine))
        request = _request(args, inputs, usable)
        check_request(request, usable, device, locate(args.store))
        groups.append(Group(request, usable, device))
        plans.append(inputs.plan(usable, args.device_name or device.spec.name, request.batch_sizes))
        texts += [Note(text, warning=True) for text in left_out]
    if args.device_name and args.device_name != names[0]:
        texts.append(
            Note(
                f"the files are named for {args.device_name!r}, but the device reports {names[0]!r}: the "
                "engine finds them only where it reports the former.",
                warning=True,
            )
        )
    return _CheckedRun(tuple(groups), tuple(plans), tuple(texts))


def _request(args: argparse.Namespace, inputs: TuneInputs, engines: tuple[Engine, ...]) -> TuneRequest:
    batch_sizes, _ = distinct_batch_sizes(inputs.batch_sizes)
    weights = inputs.weights_for(engines)
    return TuneRequest(
        weights=weights,
        batch_sizes=batch_sizes,
        folders=output_folders(args.save_path, [e.name for e in engines]),
        engine_versions=tuple((e.name, e.version) for e in engines),
        quant=inputs.quant,
        out_dtype=args.out_dtype,
        device_name=args.device_name,
        search=args.search,
        trials=args.trials,
        time_budget_s=args.time_budget,
        seed=args.seed,
        overwrite=args.overwrite,
        fit_keys=args.keys == "fit",
        not_launched=tuple(
            (e.name, weight) for weight in weights for e in engines if e.name not in inputs.launched_by(weight, engines)
        ),
    )


def _tune(args: argparse.Namespace, checked: _CheckedRun) -> RunSummary:
    from blockscale.cli.live import watch
    from blockscale.cli.question import confirmed
    from blockscale.store import Store
    from blockscale.tuning.groups import run_groups

    asks = args.device == "cuda" and not (args.yes or args.json) and sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        confirmed(checked.groups, checked.plans)
    folders = dict.fromkeys(folder for group in checked.groups for _, folder in group.request.folders)
    with nothing_left_behind(folders):
        for folder in folders:
            require_writable(folder)
        with Store.open(args.store) as store, watch(checked.groups, checked.plans, as_json=args.json) as view:
            for plan in () if asks else checked.plans:
                view(plan)
            for note in checked.notes:
                view(note)
            return run_groups(checked.groups, store, view)
