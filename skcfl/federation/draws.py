"""Random numbers that clients draw for themselves, from the seed of a fit and who they are.

Neither where a client is, nor who else takes part, nor the order of the answers changes them.
"""

import numpy as np

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


def splitmix(x):
    """Splitmix64: a good hash of 64-bit integers, so that draws need no stored state."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        return x ^ (x >> np.uint64(31))


def mixed(*keys):
    """One hash of several integers or arrays of them, ndarray of uint64."""
    out = np.uint64(0)
    for key in keys:
        out = splitmix(out ^ np.asarray(key).astype(np.uint64))
    return out
