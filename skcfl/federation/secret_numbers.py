"""Random numbers that no server can compute: the noise of private releases."""

from __future__ import annotations

import secrets

import numpy as np
from scipy.special import ndtri

from .._typing import Array


class SecretNumbers:
    """Random numbers of the operating system's generator for cryptography.

    It has those methods of ``numpy.random.Generator`` that releases need. A server that knows some
    of the numbers, as where it knows what they were added to, learns nothing of the others.
    """

    def uniform(self, size: int) -> Array:
        """Numbers between 0 and 1."""
        return (self._bits(size) >> np.uint64(11)) * 2.0**-53

    def integers(self, high: int, size: int) -> Array:
        """Integers from 0 to below `high`, which is at most a million."""
        return (self._bits(size) % np.uint64(high)).astype(np.intp)

    def standard_normal(self, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers: quantiles of a half, and a sign."""
        bits = self._bits(int(np.prod(shape)))
        half = ndtri(((bits >> np.uint64(12)) + 0.5) * 2.0**-53)
        return np.where(bits & np.uint64(1), half, -half).reshape(shape)

    def _bits(self, size: int) -> Array:
        return np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64)
