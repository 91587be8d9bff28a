"""Clients on a line: one feature, no intercept, a slope each."""

import numpy as np

from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel


def line_pool(slopes, sizes, alpha=0.0, noise=0.0, curvature=1.0, seed=0):
    """Clients of one feature and no intercept, each with its own slope."""
    rng = np.random.RandomState(seed)
    codes = np.repeat(np.arange(len(slopes)), sizes)
    size = np.sqrt(np.broadcast_to(curvature, len(slopes)))[codes]
    X = (size * rng.choice([-1.0, 1.0], size=len(codes)))[:, None]
    y = X[:, 0] * np.asarray(slopes)[codes] + noise * rng.standard_normal(len(codes))
    model = LinearModel(alpha=alpha, fit_intercept=False, standardize=False).bind(1)
    return open_rows(model, X, y, codes, len(slopes))
