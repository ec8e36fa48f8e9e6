"""The benchmarks are scripts beside the package; their parts are imported as they import each other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
