"""G_l, the fixed map from backbone tokens to the scoring space, and the narrower space of the coreset."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def gaussian_matrix(rows: int, columns: int, seed: int, *key: int) -> Tensor:
    """A fixed random projection [rows, columns], float32, entries N(0, 1/columns), so that it keeps lengths on average.

    ``key`` tells matrices of one seed apart (the layer, the purpose). NumPy guarantees the stream of ``RandomState``
    for good, so a model file need not carry its matrices.
    """
    state = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((seed, *key))))
    return torch.from_numpy((state.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32))


def project(tokens: Tensor, matrix: Tensor | None) -> Tensor:
    """G_l(F): L2-normalise each token [N, C], then multiply by ``matrix`` [C, D] (None keeps C): [N, D] float32."""
    unit = functional.normalize(tokens.float(), dim=-1)
    return unit if matrix is None else unit @ matrix
