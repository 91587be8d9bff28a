"""Fits without some clients of a federation: those that were lost, or rejected, on the way.

A fit sees the other clients only, as if there were no others. What it returns is then given an
entry for each client, in which nothing is claimed of those that are absent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .._typing import Array
from ..federation.result import Result
from ..graphs import Graph

# Entries of absent clients in attributes with one row per client.
UNKNOWN = {"dual_coef": 0.0, "suspicion": np.inf, "without_rows": True}


def options_of(options: dict[str, Any], kept: Array) -> dict[str, Any]:
    """Keyword arguments of ``_solve`` for some of the clients.

    Parameters
    ----------
    options : dict
        Those for all clients: arrays have an entry per client.
    kept : ndarray of shape (n_clients,) of bool
        Which clients take part.

    Returns
    -------
    options : dict
    """

    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return options_of(value, kept)
        if hasattr(value, "judged_by"):
            return value.judged_by(kept, alone=True)
        return value if value is None else value[kept]

    return {name: part(value) for name, value in options.items()}


def with_absent(result: Result, kept: Array, weights: Array) -> Result:
    """Result of all clients, of a fit to some of them.

    Absent clients are counted to the largest cluster, and have its model. If each client is a
    cluster they get a separate one, with the mean of the clients' models, and if clients mix
    models the mean mixture.

    Parameters
    ----------
    result : Result
        Result of the clients that took part.
    kept : ndarray of shape (n_clients,) of bool
        Which clients took part.
    weights : ndarray of shape (n_clients,)
        Weights of the clients' rows.

    Returns
    -------
    result : Result
    """
    places, n, n_absent = np.flatnonzero(kept), len(kept), int((~kept).sum())
    models, labels, extra = result.cluster_params, np.asarray(result.labels), dict(result.extra)
    weights = weights[kept] if weights.any() else np.ones(len(places))
    sizes = np.bincount(labels, minlength=len(models))
    own = models[labels] if result.params is None else result.params
    mean = weights @ own / weights.sum()

    def spread(values: Any, unknown: Any) -> Array:
        out = np.empty((n, *np.shape(values)[1:]), dtype=np.asarray(values).dtype)
        out[kept], out[~kept] = values, unknown
        return out

    if len(models) > 1 and (sizes == 1).all():
        others = len(models) + np.arange(n_absent)
        models = np.vstack([models, np.tile(mean.astype(models.dtype), (n_absent, 1))])
    else:
        others = np.full(n_absent, sizes.argmax())
        if "mixture_weights" not in extra:
            mean = models[sizes.argmax()]
    for name in UNKNOWN.keys() & extra.keys():
        extra[name] = spread(extra[name], UNKNOWN[name])
    if "fusion_params" in extra:
        extra["fusion_params"] = spread(extra["fusion_params"], mean)
    if "mixture_weights" in extra:
        shares = extra["mixture_weights"]
        extra["mixture_weights"] = spread(shares, weights @ shares / weights.sum())
    if "mixing_weights" in extra:
        whole = np.eye(n)
        whole[np.ix_(places, places)] = extra["mixing_weights"]
        extra["mixing_weights"] = whole
    if "round_labels" in extra:
        extra["round_labels"] = spread(extra["round_labels"].T, -1).T
    if "tree" in extra:
        extra["tree"] = [{**node, "clients": places[node["clients"]]} for node in extra["tree"]]
    if "graph" in extra:
        graph = extra["graph"]
        if graph.is_complete:
            extra["graph"] = Graph(n, weights=graph.weight)
        else:
            extra["graph"] = Graph(n, places[graph.heads], places[graph.tails], graph.weights)
    return replace(
        result,
        cluster_params=models,
        labels=spread(labels, others),
        params=None if result.params is None else spread(result.params, mean),
        extra=extra,
    )
