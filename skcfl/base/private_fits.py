"""Fits of clients that release noisy sums only."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from .._checks import caller_level
from ..exceptions import PrivacyError, PrivacyWarning
from ..federation.federation import Federation
from ..federation.handshake import Handshake
from ..federation.privacy import EXAMPLE, check_terms, target_units
from ..federation.private_sums import Releases
from ..federation.result import Result
from ..federation.summed_pool import SummedPool
from ..models import LocalModel
from .predicting import attributes_of


@dataclass
class PrivatePlan:
    """How an estimator fits private clients.

    Attributes
    ----------
    n_releases : int
        Releases, which share the budget of the fit.
    n_exact : int
        Releases where sums are masked and exact, if there is no `exact`.
    n_clusters : int
        Number of models.
    solve : callable
        ``solve(releases)`` asks for them and returns a Result, in the units of the releases.
    local : callable
        ``local(releases)`` returns a Result without asking for any, where noise drowns all.
    noise : callable
        ``noise(releases)`` is the standard deviation of the noise of a coefficient of a common
        model, as a part of the spread of the clients' coefficients, known beforehand.
    most_noise : float
        Noise above which nothing is released.
    exact : callable, default=None
        ``exact(releases, pool)`` returns what a fit without masks finds, by exact masked sums.
    """

    n_releases: int
    n_exact: int
    n_clusters: int
    solve: Callable[[Releases], Result]
    local: Callable[[Releases], Result]
    noise: Callable[[Releases], float]
    most_noise: float
    exact: Callable[[Releases, SummedPool], Result] | None = None


def fit_privately(estimator: Any, federation: Federation, hello: Handshake, header: Any) -> None:
    """Fit clients that release noisy sums only."""
    model = _private_model(estimator, hello)
    plan = estimator._private_plan(model)
    rng = check_random_state(estimator.random_state)
    terms: Any = hello.privacy
    is_exact = bool(np.isinf(terms["epsilon"]))
    if is_exact and plan.exact is None:
        _need_bounds(estimator, terms, model.estimator_type)
    count = plan.n_exact if is_exact else plan.n_releases
    releases = Releases(federation, hello, model, count, rng)
    if plan.n_clusters > releases.n_clients:
        raise ValueError(
            f"n_clusters={plan.n_clusters} is more than the number of clients, "
            f"{releases.n_clients}. Every cluster needs a client."
        )
    drowned = _is_drowned(estimator, federation, releases, plan)
    if is_exact and plan.exact is not None:
        pool = releases.pool()
        result = plan.exact(releases, pool)
        while not pool.steady:  # without the places that were lost, and their units
            pool = releases.pool()
            result = plan.exact(releases, pool)
    else:
        result = plan.local(releases) if drowned else plan.solve(releases)
    if releases.withheld:
        warnings.warn(
            f"{type(estimator).__name__}: {releases.withheld} of {plan.n_clusters} clusters have "
            f"fewer clients than least_clients={terms['masked']}. Their sums are withheld, and "
            "their models stay where they were, without meaning. Take fewer clusters, or another "
            "random_state.",
            PrivacyWarning,
            stacklevel=caller_level(),
        )
    if not result.converged:
        warnings.warn(result.shortfall, ConvergenceWarning, stacklevel=caller_level())
    estimator._replace_attributes(header, _released(estimator, header, hello, releases, result))
    estimator._is_local = drowned


def _need_bounds(estimator: Any, terms: dict[str, Any], kind: Any) -> None:
    """Raise a PrivacyError unless units are declared."""
    needed = {"features", "target"} if kind == "regressor" else {"features"}
    if missing := sorted(needed - terms.keys()):
        raise PrivacyError(
            f"{type(estimator).__name__}: masked rounds are in declared units, and bounds of "
            f"{' and '.join(missing)} are missing: declare {EXAMPLE}. PartialPooling with one "
            "cluster and FedAvg with a linear model measure units by masked sums instead."
        )


def _private_model(estimator: Any, hello: Handshake) -> LocalModel:
    terms: Any = hello.privacy
    model = estimator._local_model()
    if model.fits_whole:
        raise PrivacyError(
            "model: a SklearnModel sends fitted estimators, which know much of the rows: no "
            "noise makes them private. Private fits take models of parameters, such as "
            "LinearModel."
        )
    if getattr(model, "class_weight", None) is not None:
        raise PrivacyError("class_weight must be None where clients are private.")
    check_terms(terms, model.estimator_type, len(hello.ids), hello.n_features)
    model = hello.bound(model)
    return model.in_units(*target_units(terms)) if model.has_units and "target" in terms else model


def _is_drowned(
    estimator: Any, federation: Federation, releases: Releases, plan: PrivatePlan
) -> bool:
    """Whether noise would drown what clients have in common, which is reported."""
    noise = plan.noise(releases)
    if noise <= plan.most_noise:
        return False
    terms = releases.terms
    text = (
        f"{type(estimator).__name__}: with {releases.n_clients} clients, "
        f"epsilon={terms['epsilon']:g} and delta={terms['delta']:g} the noise of the "
        f"coefficients that clients have in common would be {noise:.2f} of their spread over "
        f"clients, more than {plan.most_noise:g}"
    )
    if federation.on_noise == "error":
        raise PrivacyError(f"{text}. Nothing was released.")
    warnings.warn(
        f"{text}: nothing was released, and each client has a model of its own rows. More "
        "clients or a larger epsilon would help.",
        PrivacyWarning,
        stacklevel=caller_level(),
    )
    return True


def _released(
    estimator: Any, header: Any, hello: Handshake, releases: Releases, result: Result
) -> dict[str, Any]:
    """Fitted attributes: models that clients have in common, and what was released."""
    units, model = releases.units, releases.model
    theta = np.asarray(units.to_user(result.cluster_params), dtype=model.dtype)
    if not np.isfinite(theta).all():
        raise ValueError(estimator._divergence(result.n_iter))
    weights = np.asarray(result.extra.pop("shares", np.ones(len(theta))))
    order = np.argsort(-weights, kind="stable")
    theta, weights = theta[order], weights[order] / weights.sum()
    fitted = {
        **attributes_of(estimator, header, model, theta, hello.classes, result),
        "n_iter_": releases.count or result.n_iter,
        "groups_": np.zeros(0, dtype=hello.ids.dtype),
        "missing_clients_": hello.ids[releases.missing],
        "rejected_clients_": hello.ids[:0],
        "absences_": [],
        "_n_asked": releases.n_clients,
        "_is_masked": bool(releases.terms["masked"]),
        "_scaling": releases.scaling,
        "_average_params": weights @ theta,
        "_cluster_shares": weights,
        "_shared_params": True,
        "_has_clusters": True,
        "_has_groups": True,
        "_row_shape": header._row_shape,
        "_is_private": True,
        **releases.ledger.published(),
        **releases.published(),
    }
    return fitted | result.extra
