"""What ``blockscale check`` finds in folders of published config files: counts by code and engine, and files by name.

    python benchmarks/check_published.py FOLDER … [--compile]

A folder named sglang or vllm on the way to a file tells its engine. Prints Markdown; needs no GPU.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from pathlib import Path

from blockscale.checking.findings import Code
from blockscale.checking.run import Checked, check_paths, known_engines, with_findings


def counts_table(checked: Checked) -> list[str]:
    """Files with each finding, by engine; then all files checked and those without findings."""
    engines = sorted({str(file.subject.engine) for file in checked.files})
    found = Counter(
        (str(file.subject.engine), code) for file in checked.files for code in {each.code for each in file.findings}
    )
    lines = [f"| code | {' | '.join(engines)} |", f"|---|{'---|' * len(engines)}"]
    lines += [
        f"| `{code}` | {' | '.join(str(found[name, code]) for name in engines)} |"
        for code in Code
        if any(found[name, code] for name in engines)
    ]
    for title, counted in (
        ("files checked", checked.files),
        ("without findings", [file for file in checked.files if not file.findings]),
    ):
        of = Counter(str(file.subject.engine) for file in counted)
        lines.append(f"| {title} | {' | '.join(str(of[name]) for name in engines)} |")
    return lines


def files_by_code(checked: Checked) -> list[str]:
    """For each engine, code and device the shapes of the files, with the block where it is not 128 × 128."""
    found: dict[tuple[str, Code, str], list[str]] = defaultdict(list)
    for file in checked.files:
        for each in file.findings:
            named = file.subject.named
            shape, device = file.path.name, "–"
            if named is not None:
                block = f"{named.quant.block_n}×{named.quant.block_k}"
                shape = f"{named.weight}{'' if block == '128×128' else f' [{block}]'}"
                device = named.device
            keys = re.match(r"keys? ([0-9, and more]+):", each.message)
            found[str(file.subject.engine), each.code, device].append(f"{shape} ({keys[1]})" if keys else shape)
    lines = []
    for (engine, code, device), shapes in sorted(found.items(), key=lambda item: item[0]):
        lines.append(f"* {engine} `{code}` {device} ({len(shapes)}): {', '.join(shapes)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--compile", action="store_true", help="compile each entry too")
    args = parser.parse_args()
    checked = check_paths(args.folders, known_engines())
    if args.compile:
        from blockscale.checking.compiled import compile_findings

        checked = with_findings(checked, compile_findings(checked.files))
    print("\n".join([*counts_table(checked), "", *files_by_code(checked)]))
    for kind, number in checked.passed_over.items():
        print(f"\npassed over: {number} {kind}")


if __name__ == "__main__":
    main()
