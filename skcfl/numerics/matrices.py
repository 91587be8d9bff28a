"""Products of batches of small matrices."""

import numpy as np


def sandwich(root, H):
    """``L' H L`` of a batch (c, p, p); a root L of one axis is a diagonal."""
    if root.ndim == 1:
        return H * (root[:, None] * root)
    return np.matmul(root.T, np.matmul(H, root))
