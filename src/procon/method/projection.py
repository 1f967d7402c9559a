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
    """G_l(F): L2-normalise each token [..., C], then multiply by ``matrix`` [C, D] (None keeps C): [..., D] float32.

    Tokens of several images [N, P, C] are multiplied image by image: a GPU library sums in another order where a
    product is larger, and what an image gets must not depend on the others.
    """
    unit = functional.normalize(tokens.float(), dim=-1)
    if matrix is None:
        return unit
    return torch.stack([image @ matrix for image in unit]) if unit.ndim == 3 else unit @ matrix
