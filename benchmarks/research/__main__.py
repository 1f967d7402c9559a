"""``python benchmarks/research``: see :mod:`research.plan`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from research.plan import main

main()
