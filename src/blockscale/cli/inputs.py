"""What to tune and for whom: models or sizes to weights and quantisation, engines by name or by what is installed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from blockscale.engines import Engine, engine, installed_engines
from blockscale.errors import InputError
from blockscale.hardware import DeviceSpec
from blockscale.problem import QuantFormat, QuantScheme, WeightShape
from blockscale.shapes import ModelShapes, layer_shapes, load_model_config

_DEFAULT_MODEL = "deepseek-v3"
_DEFAULT_ENGINE = "sglang"
_DEFAULT_BLOCK = 128


@dataclass(frozen=True, slots=True)
class TuneInputs:
    """Distinct weights in the order they were asked for, how they are quantised, and what to tell the person."""

    weights: tuple[WeightShape, ...]
    quant: QuantScheme
    notes: tuple[str, ...] = ()


def read_inputs(args: argparse.Namespace) -> TuneInputs:
    """Weights and quantisation of the arguments of ``tune``.

    Raises:
        InputError: only one of N and K; sizes and a model; a model that cannot be read, has refused layers, or is
            quantised otherwise than another one.
    """
    if (args.N is None) != (args.K is None):
        given, missing = ("--N", "--K") if args.K is None else ("--K", "--N")
        raise InputError(f"{given} is given without {missing}: a weight has both; give --N and --K, or a MODEL.")
    if args.N is not None:
        if args.models:
            raise InputError(
                f"both {' '.join(args.models)} and --N/--K are given: tune a MODEL or one weight, not both."
            )
        return TuneInputs((WeightShape(args.N, args.K),), _scheme(args, None))
    names = dict.fromkeys(args.models or [_DEFAULT_MODEL])
    models = [shapes for name in names for shapes in _read_model(name, args.tp_size, args.engine or [None])]
    quants = {model.quant: model.name for model in models}
    if len(quants) > 1 and (args.block_n is None or args.block_k is None):
        listed = "; ".join(f"{name} {q.block_n}×{q.block_k}" for q, name in quants.items())
        raise InputError(
            f"the models are quantised in different blocks ({listed}): tune them one by one, or give --block-n and "
            "--block-k."
        )
    quant = _scheme(args, next(iter(quants)))
    weights = tuple(dict.fromkeys(weight for model in models for weight in model.weights))
    notes = [text for model in models for text in model.notes]
    notes += [
        f"{name} is quantised in blocks of {q.block_n}×{q.block_k}, files for {quant.block_n}×{quant.block_k} as asked "
        "are not found when it is served."
        for q, name in quants.items()
        if (q.block_n, q.block_k) != (quant.block_n, quant.block_k)
    ]
    return TuneInputs(weights, quant, tuple(dict.fromkeys(notes)))


def chosen_engines(args: argparse.Namespace) -> tuple[Engine, ...]:
    """The engines asked for, else those installed, else SGLang.

    Raises:
        InputError: a version is given that could belong to several engines.
    """
    names = tuple(dict.fromkeys(args.engine or [e.name for e in installed_engines()] or [_DEFAULT_ENGINE]))
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


def _read_model(name: str, tp_size: int, engines: Sequence[str | None]) -> list[ModelShapes]:
    """The model's shapes as each engine has them.

    Raises:
        InputError: it cannot be read, or a layer does not fit the tensor-parallel size.
    """
    label, config = load_model_config(name)
    found = [layer_shapes(config, tp_size, engine_name, label) for engine_name in engines]
    for shapes in found:
        if shapes.refused:
            more = f" {len(shapes.refused) - 1} more: `blockscale shapes {name} --tp-size {tp_size}` lists them."
            raise InputError(
                f"{label} at --tp-size {tp_size}: {shapes.refused[0]}{more if len(shapes.refused) > 1 else ''}"
            )
    return found


def _scheme(args: argparse.Namespace, model: QuantScheme | None) -> QuantScheme:
    return QuantScheme(
        QuantFormat(args.input_type),
        args.block_n or (model.block_n if model else _DEFAULT_BLOCK),
        args.block_k or (model.block_k if model else _DEFAULT_BLOCK),
    )
