"""Recorded devices as JSON lines: reading and writing.

The first line describes the device and how it was measured, every further line is one trial. Two layouts are read:

* layout 1 (no ``layout`` field): kernels ``generic`` and ``hopper``, the fastest and the slowest replay of each trial,
  one quantisation for the whole file. It is only read.
* layout 2: what ``write_recording`` writes: raw samples, phase, status, message, and each trial's own quantisation.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.resources
import json
import math
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from blockscale.errors import IncompleteRunError, InputError
from blockscale.hardware import H200, DeviceSpec
from blockscale.paths import PathKind, kind_at, machine_gave_out
from blockscale.problem import (
    Candidate,
    Environment,
    GemmShape,
    Kernel,
    OutDtype,
    Phase,
    Problem,
    QuantFormat,
    QuantScheme,
    TileConfig,
    Trial,
    TrialStatus,
)

LAYOUT = 2

_EMBEDDED = {"h200": "h200.jsonl.gz"}
_KNOWN_DEVICES = {H200.name: H200}
_LAYOUT_1_KERNELS = {"generic": Kernel.FP8, "hopper": Kernel.FP8_HOPPER}
_LAYOUT_1_STATUSES = {"wrong": TrialStatus.WRONG_RESULT, "err": TrialStatus.LAUNCH_ERROR}
_UNKNOWN = "not recorded"


class _BadLineError(Exception):
    """A line breaks a rule of the format; the caller knows which line."""


@dataclass(frozen=True, slots=True)
class _Header:
    """The first line, read."""

    layout: int
    spec: DeviceSpec
    environment: Environment
    quant: QuantScheme  # layout 1 states it once; layout 2 with each trial
    out_dtype: OutDtype

    def problem_and_kernel(self, fields: Mapping[str, Any]) -> tuple[Problem, Kernel]:
        """What a trial line measured; needs only the fields before ``config``."""
        shape = GemmShape(fields["M"], fields["N"], fields["K"])
        if self.layout == 1:
            kernel = _LAYOUT_1_KERNELS.get(fields["kernel"])
            if kernel is None:
                raise _BadLineError(f"kernel {fields['kernel']!r} is none of {', '.join(_LAYOUT_1_KERNELS)}")
            return Problem(shape, self.quant, self.out_dtype), kernel
        block_n, block_k = fields["block_shape"]
        quant = QuantScheme(QuantFormat(fields["quant"]), block_n, block_k)
        return Problem(shape, quant, OutDtype(fields["out_dtype"])), Kernel(fields["kernel"])

    def trial(self, fields: Mapping[str, Any], problem: Problem, kernel: Kernel) -> Trial:
        """A trial line, read. A minimum and a maximum count as two samples."""
        candidate = Candidate(kernel, TileConfig.from_entry(fields["config"]))
        text = fields["status"]
        status = _LAYOUT_1_STATUSES.get(text) or TrialStatus(text)
        if self.layout == 1:
            samples = _samples(status, [fields[key] for key in ("time_us", "max_us") if key in fields])
            return Trial(problem, candidate, status, samples_us=samples, compile_s=_seconds(fields, "compile_s"))
        return Trial(
            problem,
            candidate,
            status,
            phase=Phase(fields["phase"]),
            samples_us=_samples(status, fields["samples_us"]),
            message=str(fields.get("message", "")),
            compile_s=_seconds(fields, "compile_s"),
            elapsed_s=_seconds(fields, "elapsed_s"),
            labels=tuple(map(str, fields.get("labels", ()))),
        )


class Recording:
    """The trials of one device, by problem and kernel. Trials are read when they are first asked for.

    ``digest`` identifies the content: two recordings of one device, one of them longer, are two.
    """

    def __init__(self, path: Path, header: _Header, text: str, digest: str) -> None:
        self.path = path
        self.spec = header.spec
        self.environment = header.environment
        self.digest = digest
        self._header = header
        self._lines: dict[tuple[Problem, Kernel], list[tuple[int, str]]] = {}
        self._trials: dict[tuple[Problem, Kernel], tuple[Trial, ...]] = {}
        self._index(text)
        self._kernels: dict[Problem, tuple[Kernel, ...]] = {}
        for problem, kernel in self._lines:
            self._kernels[problem] = (*self._kernels.get(problem, ()), kernel)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem that has a trial, in order of size."""
        return tuple(sorted(self._kernels))

    def kernels(self, problem: Problem) -> tuple[Kernel, ...]:
        """Kernels that were measured on the problem, none if it is not recorded."""
        return self._kernels.get(problem, ())

    def trials(self, problem: Problem, kernel: Kernel) -> tuple[Trial, ...]:
        """Trials of one kernel on one problem in the order of the file.

        Raises:
            InputError: a line of them cannot be read.
        """
        key = (problem, kernel)
        if key not in self._trials:
            self._trials[key] = tuple(self._read(n, line, problem, kernel) for n, line in self._lines.get(key, ()))
        return self._trials[key]

    def __iter__(self) -> Iterator[Trial]:
        """All trials, problem by problem."""
        for problem in self.problems:
            for kernel in self.kernels(problem):
                yield from self.trials(problem, kernel)

    def _index(self, text: str) -> None:
        """Sort lines by problem and kernel without reading them whole: 15,000 lines in some 15 ms instead of 300."""
        lines = text.rstrip().split("\n")
        by_head: dict[str, list[tuple[int, str]]] = {}
        for number, line in enumerate(lines[1:], 2):
            if not (line.startswith("{") and line.endswith("}")):
                raise _bad(self.path, number, "the line is not one whole JSON object")
            head = line.partition('"config"')[0]
            group = by_head.get(head)
            if group is None:
                key, whole = self._key_of(number, head, line)
                group = self._lines.setdefault(key, [])
                if whole:
                    by_head[head] = group
            group.append((number, line))
        if len(lines) < 2:
            raise _bad(self.path, 1, "no trial follows the environment record")
        last, number = lines[-1], len(lines)
        key, _ = self._key_of(number, last, last)
        self._read(number, last, *key)

    def _key_of(self, number: int, head: str, line: str) -> tuple[tuple[Problem, Kernel], bool]:
        """Problem and kernel of a line, and whether its head alone tells them."""
        needed = {"record", "kernel", "M", "N", "K"}
        if self._header.layout > 1:
            needed |= {"quant", "block_shape", "out_dtype"}
        fields: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(head.rstrip(", ") + "}")
        whole = isinstance(fields, dict) and needed <= fields.keys()
        with _line(self.path, number):
            if not whole:
                fields = json.loads(line)
            if fields.get("record") != "trial":
                raise _BadLineError(f"record {fields.get('record')!r} is not a trial")
            return self._header.problem_and_kernel(fields), whole

    def _read(self, number: int, line: str, problem: Problem, kernel: Kernel) -> Trial:
        with _line(self.path, number):
            return self._header.trial(json.loads(line), problem, kernel)


def load_recording(path: Path) -> Recording:
    """Read a recorded device, plain or gzip-compressed (told by content, not by name).

    Raises:
        InputError: the file cannot be read, is cut, or is no recording; the message names the line and the rule. Lines
            are read whole when their problem is first asked for, so a wrong value may show only then.
    """
    try:
        if kind_at(path, "give a file that you may read") not in (PathKind.FILE, None):
            raise InputError(f"{path} is no file: give a recording made by `blockscale export recording`.")
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
        text = content.decode("utf-8")
    except FileNotFoundError:
        shipped = ", ".join(f"recorded:{name}" for name in _EMBEDDED)
        raise InputError(f"{path}: there is no such recording: give an existing file, or one of {shipped}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the compressed recording is cut or damaged ({error}): copy it again.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text: a recording is JSON lines, plain or .gz.") from None
    except OSError as error:
        raise InputError(f"{path}: the recording cannot be read ({error.strerror}): give a readable file.") from None
    first = text.partition("\n")[0]
    with _line(path, 1):
        header = _read_header(json.loads(first))
    return Recording(path, header, text, hashlib.sha256(content).hexdigest()[:16])


def require_replaceable(path: Path) -> None:
    """Refuse a recording's place that is taken by something else than a file: a device would be replaced too.

    Raises:
        InputError: it is, or cannot be reached.
    """
    if kind_at(path, "give another file") not in (PathKind.FILE, None):
        raise InputError(f"{path} is not a regular file, so no recording takes its place: give the name of a file.")


def write_recording(path: Path, spec: DeviceSpec, environment: Environment, trials: Iterable[Trial]) -> int:
    """Write a recorded device; gzip-compressed where the name ends in ``.gz``. Returns the number of trials.

    The file appears whole or not at all, and the same trials give the same bytes.

    Raises:
        InputError: there is nothing to write, the folder cannot be written, or ``path`` is something else than a file.
        IncompleteRunError: the disk is full.
    """
    require_replaceable(path)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as raw:
            temporary = Path(raw.name)
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                    count = _write_lines(packed, spec, environment, trials)
            else:
                count = _write_lines(raw, spec, environment, trials)
            raw.flush()
            os.fsync(raw.fileno())
        if count == 0:
            raise InputError(f"{path}: there is no trial to record; nothing was written.")
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if machine_gave_out(error):
            raise IncompleteRunError(f"{path}: the disk is full: free some space and export again.") from None
        raise InputError(f"{path} cannot be written ({error.strerror}): give another file.") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return count


def embedded(name: str) -> Path:
    """The file of a recording that ships with the package, e.g. ``h200``.

    Raises:
        InputError: no recording of that name ships.
    """
    if name not in _EMBEDDED:
        raise InputError(
            f"recorded:{name} does not ship with blockscale: give {', '.join(_EMBEDDED)} or a file's path."
        )
    return Path(str(importlib.resources.files("blockscale") / "data" / _EMBEDDED[name]))


def _bad(path: Path, number: int, rule: str) -> InputError:
    return InputError(f"{path} line {number}: {rule}: give an uncut recording made by `blockscale export recording`.")


@contextlib.contextmanager
def _line(path: Path, number: int) -> Iterator[None]:
    """Turn whatever is wrong with a line into one message that names it."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise _bad(path, number, f"the line is not one whole JSON object ({error.msg})") from None
    except KeyError as error:
        raise _bad(path, number, f"the field {error} is missing") from None
    except RecursionError:
        raise _bad(path, number, "the line is nested too deeply") from None
    except (InputError, _BadLineError, TypeError, ValueError, AttributeError) as error:
        raise _bad(path, number, str(error).rstrip(".")) from None


def _read_header(fields: Mapping[str, Any]) -> _Header:
    if fields.get("record") != "environment":
        raise _BadLineError("the first record is not an environment")
    layout = fields.get("layout", 1)
    if layout == 1:
        return _read_layout_1(fields)
    if layout != LAYOUT:
        raise _BadLineError(f"layout {layout} is newer than this blockscale reads ({LAYOUT})")
    environment = Environment.from_fields(fields["environment"])
    return _Header(layout, DeviceSpec.from_fields(fields["spec"]), environment, QuantScheme(), OutDtype.BFLOAT16)


def _read_layout_1(fields: Mapping[str, Any]) -> _Header:
    name = fields["device_name"]
    spec = DeviceSpec.from_fields(fields["spec"]) if "spec" in fields else _KNOWN_DEVICES.get(name)
    if spec is None:
        raise _BadLineError(f"the limits of device {name!r} are unknown and the record has no spec")
    identity = {key: fields.get(key) for key in ("device_name", "torch", "triton", "timing", "kernels")}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    details = [("timing", str(fields.get("timing", _UNKNOWN)))]
    details += [(f"kernel {key}", str(value)) for key, value in fields.get("kernels", {}).items()]
    environment = Environment(
        device_name=name,
        arch=spec.arch,
        driver=_UNKNOWN,
        torch=str(fields.get("torch", _UNKNOWN)),
        triton=str(fields.get("triton", _UNKNOWN)),
        kernel_hash=digest,
        blockscale=_UNKNOWN,
        details=tuple(details),
    )
    quant = QuantScheme(QuantFormat(fields["dtype"].removesuffix("_w8a8")), *fields["block_shape"])
    return _Header(1, spec, environment, quant, OutDtype(fields["out_dtype"]))


def _seconds(fields: Mapping[str, Any], name: str) -> float:
    value = float(fields.get(name, 0.0))
    if not 0 <= value < math.inf:
        raise _BadLineError(f"{name} = {value} is no number of seconds")
    return value


def _samples(status: TrialStatus, values: Iterable[Any]) -> tuple[float, ...]:
    samples = tuple(map(float, values))
    if not all(0 < sample < math.inf for sample in samples):
        raise _BadLineError("a time is not a positive number of microseconds")
    if status.timed and not samples:
        raise _BadLineError(f"status {status} has no time")
    return samples


def _write_lines(out: IO[bytes] | gzip.GzipFile, spec: DeviceSpec, env: Environment, trials: Iterable[Trial]) -> int:
    header = {"record": "environment", "layout": LAYOUT, "environment": asdict(env), "spec": asdict(spec)}
    out.write(_encode(header))
    count = 0
    for count, trial in enumerate(trials, 1):  # noqa: B007 - the last one is the number of trials
        out.write(_encode(_trial_fields(trial)))
    return count


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n"


def _trial_fields(trial: Trial) -> dict[str, Any]:
    """A trial's line. What names the problem stands before ``config``: readers sort lines by that part unread."""
    shape, quant = trial.problem.shape, trial.problem.quant
    fields: dict[str, Any] = {
        "record": "trial",
        "kernel": trial.candidate.kernel,
        "M": shape.M,
        "N": shape.N,
        "K": shape.K,
        "quant": quant.format,
        "block_shape": [quant.block_n, quant.block_k],
        "out_dtype": trial.problem.out_dtype,
        "config": trial.candidate.config.to_entry(),
        "phase": trial.phase,
        "status": trial.status,
        "samples_us": list(trial.samples_us),
    }
    optional = ("message", "compile_s", "elapsed_s", "labels")
    fields.update((name, value) for name in optional if (value := getattr(trial, name)))
    return fields
