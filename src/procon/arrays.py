"""The array types that the whole package shares."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Reals = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels; right and bottom are exclusive."""
