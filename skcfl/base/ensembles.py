"""Fits of local models that are estimators of scikit-learn: fitted first, then only weighted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..federation.federation import Federation
from ..federation.fitted import FittedFederation
from ..federation.handshake import Handshake
from ..federation.pool import ClientPool
from ..federation.presence import Presence
from ..federation.result import Result
from ..models import SklearnModel
from ..numerics.by_cluster import sum_by_cluster

# Largest random seed.
MOST_SEED = np.iinfo(np.int32).max


def check_fits_whole(estimator: Any, federation: Federation) -> None:
    """Raise an error if a method or a federation cannot take fitted estimators.

    Parameters
    ----------
    estimator : estimator
        The method, with a local model that clients fit as a whole.
    federation : Federation
        The clients, of whom nothing has been asked but who they are.
    """
    name = type(estimator).__name__
    if not estimator._fits_estimators:
        raise ValueError(
            f"model must have parameters and gradients for {name}, got a SklearnModel. "
            "CLoVE, IFCA, OracleClusters, FedAvg and LocalModels take a SklearnModel: they need "
            "fits and losses only."
        )
    if not federation.carries_objects:
        raise ValueError(
            "model: a SklearnModel sends fitted estimators to other clients: objects of "
            "Python, which can run code and know much of the rows. Only a federation in process "
            "or on dask carries them, without a policy and without privacy; got "
            f"{type(federation).__name__}. A LinearModel, an MLP or a TorchModel travels as "
            "numbers."
        )
    unused = [
        f"{name}={value!r}"
        for name, value, plain in _options_of_training(estimator)
        if value is not plain and value != plain
    ]
    if unused:
        raise ValueError(
            "model: a SklearnModel is fitted at once, and not trained in rounds: leave "
            f"{', '.join(unused)} at the default."
        )


def with_estimators(
    federation: Federation,
    hello: Handshake,
    model: SklearnModel,
    random_state: Any,
    before: Presence | None,
) -> tuple[FittedFederation, SklearnModel]:
    """Let the clients fit the estimator; the federation and the model to go on with."""
    seed = random_state.randint(MOST_SEED)
    fitting = FittedFederation(federation, model, seed)
    return fitting, model.with_bank(*fitting.fitted(hello, before))


def boosted(
    federation: Federation, hello: Handshake, pool: ClientPool, result: Result, random_state: Any
) -> Result:
    """The result with the ensembles of its clusters, boosted by fits to their residuals.

    Parameters
    ----------
    federation : Federation
        The clients.
    hello : Handshake
        Who they are.
    pool : ClientPool
        All clients, under the model with their estimators.
    result : Result
        Clusters of the same clients.
    random_state : RandomState
        Source of the seeds.

    Returns
    -------
    result : Result
    """
    model: Any = pool.model
    if result.params is not None:
        return result
    labels, K = np.asarray(result.labels), len(result.cluster_params)
    weights = np.where(pool.presence.left_out | pool.rejected, 0.0, pool.client_weights)
    total = np.bincount(labels, weights, K)
    share = np.divide(weights, total[labels], out=np.zeros(len(labels)), where=weights > 0)
    theta = np.array(result.cluster_params)
    theta[total > 0] = sum_by_cluster(model.singles(pool.places), labels, K, share)[total > 0]
    result = replace(result, cluster_params=theta)
    if model.estimator_type != "regressor":
        return result
    several = np.bincount(labels, weights > 0, K) > 1
    index = np.where((weights > 0) & several[labels], labels, -1)
    plain = model.with_bank([], model.owners[:0])
    seeds = random_state.randint(MOST_SEED, size=model.n_boosts)
    for seed in seeds if several.any() else ():
        fitting = FittedFederation(federation, plain, int(seed))
        bank, owners = fitting.fitted(hello, pool.presence, ensembles=(model, theta, index))
        new = np.zeros((len(theta), len(bank)))
        new[labels[owners], np.arange(len(bank))] = share[owners]
        theta = np.hstack([theta, new])
        model = model.with_bank([*model.bank, *bank], np.append(model.owners, owners))
    return replace(result, cluster_params=theta, model=model)


def _options_of_training(estimator: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield names of the options that ensembles do not have, their values and defaults."""
    training = estimator._option("training")
    plain = type(training)().get_params(deep=False)
    for name, value in training.get_params(deep=False).items():
        yield f"training__{name}", value, plain[name]
    for name, value in (("aggregation", "mean"), ("shared_layers", None)):
        yield name, getattr(estimator, name, value), value
