"""All rules that one file can be held against alone: its name, its bytes, its keys and its entries."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from blockscale.checking.content import Content, NotAnObjectError, read_content, shortened
from blockscale.checking.devices import as_reported, is_impossible, is_reported
from blockscale.checking.entries import check_entries
from blockscale.checking.findings import Code, Finding, finding, listed
from blockscale.checking.ladder import batch_size, check_keys, check_ladder
from blockscale.checking.names import read_name
from blockscale.checking.subject import Subject
from blockscale.engines import Engine
from blockscale.engines.files import LARGEST_FILE_BYTES, MalformedJsonError
from blockscale.paths import reason_of
from blockscale.problem import QuantFormat

_RUN_BITS = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file, what could be read of it (None where nothing could) and what is wrong with it."""

    subject: Subject
    content: Content | None
    findings: tuple[Finding, ...]

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.subject.path


def check_file(path: Path, engine: Engine) -> CheckedFile:
    """Hold one file against all rules that look at no other file."""
    subject = Subject(path, engine, read_name(path.name))
    findings = [*_name_findings(subject)]
    content = None
    try:
        data, mode = _read(path)
        content = read_content(data)
        findings += _content_findings(subject, content)
        findings += _bytes_findings(content, mode)
    except NotAnObjectError as error:
        findings.append(
            finding(Code.NOT_AN_OBJECT, f"{error}, no object of batch sizes: {engine} fails on it; tune it again")
        )
    except MalformedJsonError as error:
        findings.append(
            finding(
                Code.UNREADABLE,
                f"{error}: {engine} fails on it or takes half of it; take it from a backup, or move it away and tune "
                "again",
            )
        )
    return CheckedFile(subject, content, tuple(findings))


def right_name(subject: Subject) -> str | None:
    """The name under which the engine looks for the file, None where the file's own does not tell."""
    if subject.named is None or is_impossible(subject.named.device):
        return None
    device = subject.named.device.strip()
    return subject.engine.file_name(subject.named.weight, subject.named.quant, as_reported(device) or device)


def note_keys(content: Content) -> list[str]:
    """Keys that are about no batch size."""
    return [key for key in content.members if (m := batch_size(key)) is None or m <= 0]


def _read(path: Path) -> tuple[bytes, int]:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # opening a pipe may never end
            raise MalformedJsonError("it is no regular file")
        with path.open("rb") as file:
            return file.read(LARGEST_FILE_BYTES + 1), stat.S_IMODE(mode)
    except OSError as error:
        raise MalformedJsonError(f"it cannot be read ({reason_of(error)})") from error


def _name_findings(subject: Subject) -> list[Finding]:
    engine, named = subject.engine, subject.named
    if named is None:
        return [
            finding(
                Code.NEVER_FOUND,
                f"its name is none that {engine} looks for, N=…,K=…,device_name=…,dtype=fp8_w8a8,block_shape=….json "
                "with whole numbers: name it after its shape, GPU and blocks",
            )
        ]
    if is_impossible(named.device):
        return [
            finding(
                Code.NEVER_FOUND,
                f"device_name={named.device} is no device, so {engine} never looks for it: put in the name of the GPU "
                "as the engine's log has it",
            )
        ]
    findings = []
    reason = _refusal(subject)
    if reason:
        findings.append(finding(Code.NEVER_READ, reason))
    name = right_name(subject)
    if name is not None and name != subject.path.name and not (reason and named.quant.format is QuantFormat.INT8):
        findings.append(_never_found(subject, name))
    device = as_reported(named.device) or named.device.strip().replace(" ", "_")
    if not is_reported(device):
        findings.append(
            finding(
                Code.DEVICE_UNKNOWN,
                f"{device} is no name that a driver is known to report, so {engine} may never look for it, and limits "
                "of the device are not checked: compare it with the name in the engine's log",
            )
        )
    return findings


def _refusal(subject: Subject) -> str | None:
    """Why the engine reads no file for such operands on this device."""
    if subject.named is None:
        return None
    is_int8 = subject.named.quant.format is QuantFormat.INT8  # refused on whatever device, FP8 only on some
    spec = subject.rules_spec if is_int8 else subject.spec
    return subject.engine.refusal(subject.named.quant, spec) if spec is not None else None


def _never_found(subject: Subject, name: str) -> Finding:
    taken = os.path.lexists(subject.path.with_name(name))
    way_out = "that file is there already: compare the two and delete one" if taken else "--fix renames it"
    return finding(
        Code.NEVER_FOUND, f"{subject.engine} looks for {name} and not for this: {way_out}", fixable=not taken
    )


def _content_findings(subject: Subject, content: Content) -> list[Finding]:
    findings = check_keys(subject.engine, list(content.members))
    by_size: dict[int, list[str]] = {}
    for key in content.members:
        m = batch_size(key)
        if m is not None:
            by_size.setdefault(m, []).append(key)
    repeated = [keys for keys in by_size.values() if len(keys) > 1]
    if repeated:
        raise MalformedJsonError(
            f"keys {listed([repr(shortened(key)) for key in repeated[0]])} are the same batch size"
        )
    entries = {keys[0]: content.members[keys[0]] for m, keys in by_size.items() if m > 0}
    findings += check_entries(subject, entries)
    findings += check_ladder(subject.engine, {int(key): entry for key, entry in entries.items()})
    return findings


def _bytes_findings(content: Content, mode: int) -> list[Finding]:
    faults = []
    if content.has_bom:
        faults.append("a byte order mark at its start, on which the JSON readers of the engines stop")
    if content.has_returns:
        faults.append("carriage returns at the ends of its lines, as Windows writes them")
    if mode & _RUN_BITS:
        faults.append("permission to be run as a program")
    if not faults:
        return []
    return [finding(Code.BYTES, f"it has {' and '.join(faults)}: --fix takes this away", fixable=True)]
