"""What to tune and for whom: models, a log or sizes to weights and quantisation, engines by name or as installed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blockscale.cli.listings import Listing, read_listings, require_one_source
from blockscale.engines import Engine, engine, installed_engines
from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import QuantFormat, QuantScheme, WeightShape
from blockscale.report.shapes import note_lines
from blockscale.report.weights import DevicePlan, PlannedWeight, Use
from blockscale.tuning.request import STOCK_BATCH_SIZES

_DEFAULT_MODEL = "deepseek-v3"
_DEFAULT_ENGINE = "sglang"


@dataclass(frozen=True, slots=True)
class TuneInputs:
    """Distinct weights in the order they were asked for, how they are quantised, and what to tell the person.

    ``engines`` are the ones to tune for. ``uses`` says which layers launch a weight in which of them; a weight without
    uses is tuned for all. ``launches`` counts those of a serving log, empty without one.
    """

    weights: tuple[WeightShape, ...]
    quant: QuantScheme
    engines: tuple[Engine, ...]
    batch_sizes: tuple[int, ...] = STOCK_BATCH_SIZES
    uses: Mapping[WeightShape, tuple[Use, ...]] = field(default_factory=dict)
    launches: Mapping[WeightShape, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def launched_by(self, weight: WeightShape, engines: Sequence[Engine]) -> tuple[str, ...]:
        """Names of those of ``engines`` that launch the weight."""
        uses = self.uses.get(weight)
        return tuple(e.name for e in engines if uses is None or any(use.engine == e.name for use in uses))

    def weights_for(self, engines: Sequence[Engine]) -> tuple[WeightShape, ...]:
        """The weights that any of ``engines`` launches."""
        return tuple(weight for weight in self.weights if self.launched_by(weight, engines))

    def plan(self, engines: Sequence[Engine], device_name: str, batch_sizes: tuple[int, ...]) -> DevicePlan:
        """What is tuned for ``engines`` on a GPU of that name, and which shapes they ship for it where installed."""
        weights = self.weights_for(engines)
        shipped = {e.name: e.shipped_weights(weights, self.quant, device_name) for e in engines}
        planned = []
        for weight in weights:
            names = self.launched_by(weight, engines)
            uses = tuple(use for use in self.uses.get(weight, ()) if use.engine in names)
            known = {n: weight in there for n in names if (there := shipped[n]) is not None}
            planned.append(PlannedWeight(weight, names, uses, known, self.launches.get(weight)))
        return DevicePlan(device_name, batch_sizes, tuple(planned))


def read_inputs(args: argparse.Namespace) -> TuneInputs:
    """Weights, quantisation, engines and batch sizes of the arguments of ``tune``.

    Raises:
        InputError: shapes are named in two ways; a model or log that cannot be read; a model that has refused layers,
            is not quantised in blocks, or otherwise than another one.
    """
    require_one_source(args.models, args.from_log, args.N, args.K)
    if args.from_log is not None:
        return _of_log(args)
    engines = chosen_engines(args)
    if args.N is not None:
        return TuneInputs(
            (WeightShape(args.N, args.K),), _scheme(args, None), engines, args.batch_sizes or STOCK_BATCH_SIZES
        )
    listings = read_listings(args, args.models or [_DEFAULT_MODEL], engines)
    for listing in listings:
        _require_whole(listing)
    return _of_models(args, engines, listings)


def _of_models(args: argparse.Namespace, engines: tuple[Engine, ...], listings: Sequence[Listing]) -> TuneInputs:
    quants = {listing.shapes.quant: listing.shapes.name for listing in listings}
    blocks = {(q.block_n, q.block_k): name for q, name in quants.items()}
    if len(blocks) > 1 and (args.block_n is None or args.block_k is None):
        listed = "; ".join(f"{name} {n}×{k}" for (n, k), name in blocks.items())
        raise InputError(
            f"the models are quantised in different blocks ({listed}): tune them one by one, or give --block-n and "
            "--block-k."
        )
    formats = {q.format: name for q, name in quants.items()}
    if len(formats) > 1 and args.input_type is None:
        listed = "; ".join(f"{name} {form}" for form, name in formats.items())
        raise InputError(
            f"the models have different element formats ({listed}): tune them one by one, or give --input-type."
        )
    quant = _scheme(args, next(iter(quants)))
    uses: dict[WeightShape, list[Use]] = {}
    for listing in listings:
        for weight in listing.shapes.weights:
            uses.setdefault(weight, []).append(_use(listing, weight))
    return TuneInputs(
        tuple(uses),
        quant,
        engines,
        args.batch_sizes or STOCK_BATCH_SIZES,
        uses={weight: tuple(found) for weight, found in uses.items()},
        notes=tuple(_notes(listings)),
        warnings=(
            *(_mismatch(name, given, quant) for given, name in quants.items() if given != quant),
            *dict.fromkeys(
                f"the layers of {each.shapes.name} are unverified: {each.shapes.unverified}"
                for each in listings
                if each.shapes.unverified is not None
            ),
        ),
    )


def _of_log(args: argparse.Namespace) -> TuneInputs:
    from blockscale.shapes.served import read_served, weighed_batch_sizes

    served = read_served(args.from_log)
    quant = _scheme(args, served.quant)
    batch_sizes = args.batch_sizes or weighed_batch_sizes(served, STOCK_BATCH_SIZES, len(STOCK_BATCH_SIZES))
    counted = {weight: sum(by_m.values()) for weight, by_m in served.launches.items()}
    return TuneInputs(
        tuple(served.launches),
        quant,
        chosen_engines(args, served.engines),
        tuple(batch_sizes),
        launches=counted if any(counted.values()) else {},
        notes=served.notes,
        warnings=() if served.quant in (None, quant) else (_mismatch(str(args.from_log), served.quant, quant),),
    )


def _use(listing: Listing, weight: WeightShape) -> Use:
    layers = [each for each in listing.shapes.shapes if each.weight == weight]
    return Use(
        listing.engine.name if listing.engine else "",
        listing.shapes.name,
        listing.shapes.parallelism.tp_size,
        tuple(dict.fromkeys(each.layer for each in layers)),
        sum(each.count for each in layers),
    )


def _notes(listings: Sequence[Listing]) -> list[str]:
    """What there is to know of the models' layers, each text once; it names the models where it is not of all."""
    names: dict[str, dict[str, None]] = {}
    for listing in listings:
        for text in note_lines(listing.shapes):
            names.setdefault(text, {})[listing.shapes.name] = None
    models = {listing.shapes.name for listing in listings}
    return [text if set(of) == models else f"{', '.join(of)}: {text}" for text, of in names.items()]


def _mismatch(name: str, given: QuantScheme, asked: QuantScheme) -> str:
    return (
        f"{name} is quantised as {given.format} in blocks of {given.block_n}×{given.block_k}: files for {asked.format} "
        f"{asked.block_n}×{asked.block_k}, as asked, are not found when it is served."
    )


def chosen_engines(args: argparse.Namespace, logged: Sequence[str] = ()) -> tuple[Engine, ...]:
    """The engines asked for, else those that a log is ``logged`` by, else those installed, else SGLang.

    Raises:
        InputError: a version is given that could belong to several engines.
    """
    found = args.engine or logged or [e.name for e in installed_engines()] or [_DEFAULT_ENGINE]
    names = tuple(dict.fromkeys(found))
    if args.engine_version is not None and len(names) > 1:
        raise InputError(
            f"--engine-version {args.engine_version} with several engines ({', '.join(names)}): give one --engine "
            "with it."
        )
    return tuple(engine(name, args.engine_version) for name in names)


def usable_engines(
    engines: Sequence[Engine], quant: QuantScheme, spec: DeviceSpec, *, explicit: bool
) -> tuple[tuple[Engine, ...], list[str]]:
    """The engines that can use such a file on such a device, and why the others are left out.

    Raises:
        InputError: an engine that was asked for by name cannot, or none can.
    """
    refusals = {e.name: reason for e in engines if (reason := e.refusal(quant, spec)) is not None}
    usable = tuple(e for e in engines if e.name not in refusals)
    if refusals and (explicit or not usable):
        raise InputError("; ".join(refusals.values()))
    return usable, [f"{name} is left out: {reason}" for name, reason in refusals.items()]


def _require_whole(listing: Listing) -> None:
    """Refuse a model that is not quantised in blocks, or has layers that the engines refuse.

    Raises:
        InputError: so it is; the message names the first layer.
    """
    if listing.refusal is not None:
        raise listing.refusal
    refused, size = listing.shapes.refused, listing.shapes.parallelism.tp_size
    if refused:
        more = f" {len(refused) - 1} more: `blockscale shapes {listing.model} --tp-size {size}` lists them."
        raise InputError(f"{listing.shapes.name} at --tp-size {size}: {refused[0]}{more if len(refused) > 1 else ''}")


def _scheme(args: argparse.Namespace, found: QuantScheme | None) -> QuantScheme:
    """What is asked for, else what was found, else FP8 in blocks of 128×128."""
    found = found or QuantScheme()
    return QuantScheme(
        QuantFormat(args.input_type or found.format), args.block_n or found.block_n, args.block_k or found.block_k
    )
