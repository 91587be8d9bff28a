"""Mean outputs of several models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp

if TYPE_CHECKING:
    from .._typing import Array
    from ._local_model import LocalModel

# Least probability before logarithms are taken.
LEAST_PROBABILITY = float(np.finfo(float).tiny)


def mixed_decision(model: LocalModel, X: Any, params: Array, shares: Array) -> Array:
    """Raw predictions (n, n_outputs) of rows with the mean outputs of models.

    Parameters
    ----------
    model : LocalModel
        Bound local model.
    X : {ndarray, sparse array} of shape (n, n_features)
        Checked rows.
    params : ndarray of shape (K, n_params)
        The models.
    shares : ndarray of shape (n, K)
        Share of each model in each row's outputs.
    """
    which, shares = np.zeros(X.shape[0], dtype=np.intp), shares.T[:, :, None]
    raw = [model.decision(X, one[None], which).astype(float) for one in params]
    if getattr(model, "has_proba", False):
        mixed = sum(share * model.proba(each) for share, each in zip(shares, raw, strict=True))
        # Not the logit of one of two: rounding may bring that beyond 1.
        mixed = np.log(np.maximum(mixed, LEAST_PROBABILITY))
        return mixed[:, 1:] - mixed[:, :1] if model.n_outputs == 1 else mixed
    if getattr(getattr(model, "kernel", None), "link", "identity") == "log":
        with np.errstate(divide="ignore"):
            return logsumexp(np.array(raw) + np.log(shares), axis=0)
    return (shares * np.array(raw)).sum(axis=0)
