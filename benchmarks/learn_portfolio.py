"""Learn the portfolio that ships with the package from recorded devices. No GPU needed, but scikit-learn.

python benchmarks/learn_portfolio.py [RECORDING …] --output src/blockscale/data/portfolio.json.gz
"""

from __future__ import annotations

import argparse
from pathlib import Path

from teaching import learnt, recorded_tables

from blockscale.recording import embedded, load_recording


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="*", default=[embedded("h200")], metavar="RECORDING")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    recordings = [load_recording(path) for path in args.recordings]
    portfolio = learnt(recordings[0].spec, recorded_tables(recordings))
    portfolio.save(args.output)
    configs = sum(len(source.times) for source in portfolio.sources)
    print(f"{len(portfolio.sources)} problems, {configs} configs, {args.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
