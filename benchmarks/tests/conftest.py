"""Makes the modules of the benchmarks importable, as they are for a script that runs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
