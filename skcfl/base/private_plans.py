"""How estimators fit private clients: what they ask for, and what they publish of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from .._typing import Array
from ..exceptions import PrivacyError
from ..federation.private_sums import Releases
from ..federation.result import Result
from ..models import LocalModel
from ..numerics.newton import MAX_DENSE
from ..pooling import private_population as pooling
from ..pooling.components import fit_population
from ..pooling.population import Population
from ..pooling.stacking import Stack, stacked
from ..rounds import private_rounds as rounds
from .designs import Design
from .posterior_predictions import posterior_std
from .private_fits import PrivatePlan

# Noise of the means, in standard deviations of the clients' coefficients, above which clients do
# better by themselves.  Benchmark: benchmarks/private.py; generated clients do better together up
# to about .9, in clusters up to 1.3.
MOST_NOISE = 0.8
# Norm of the noise of a model, in the declared unit, above which it says nothing.
MOST_NOISE_OF_MODELS = 0.3
# Values of parameters that private fits of partial pooling know: variances of all coefficients.
POOLING = {
    "covariance": ("stacked", "auto", "diag"),
    "random": ("all",),
    "prior": ("auto", np.inf),
    "df": ("auto", np.inf),
    "basis": ("auto", "linear"),
    "crossed": (None,),
    "nested": (None,),
}


def rounds_plan(
    estimator: Any,
    model: LocalModel,
    n_clusters: int,
    pull: float | None = None,
    lam: float | None = None,
    known: Any = None,
    shared: Array | None = None,
) -> PrivatePlan:
    """Plan of an estimator with training and max_iter, by rounds of noisy moves.

    Parameters
    ----------
    estimator : estimator
        With ``training``, ``max_iter`` and maybe ``aggregation``.
    model : LocalModel
        The bound local model.
    n_clusters : int
        Number of models.
    pull : float, default=None
        As of :func:`skcfl.rounds.private_rounds.move`.
    lam : float, default=None
        Pull of the clients' models to the shared one, published as ``lam_``; None publishes none.
    known : tuple of ndarray, default=None
        As of :func:`skcfl.rounds.private_rounds.move`.
    shared : ndarray of shape (n_params,) of bool, default=None
        Parameters that clients share, while they keep the others; None is all.
    """
    if hasattr(estimator, "aggregation"):
        refuse_privately(estimator, "aggregation", "mean")
    automatic = estimator.max_iter == "auto"
    n_rounds, n_exact = rounds.ROUNDS, rounds.EXACT
    if not automatic:
        n_rounds = n_exact = int(estimator.max_iter)
    step_size = estimator._option("training").step_size
    step = None if isinstance(step_size, str) else float(step_size)

    def result(theta: Array, shares: Array) -> Result:
        extra: dict[str, Any] = {"shares": shares} | ({} if lam is None else {"lam_": lam})
        return Result(theta, np.zeros(0, dtype=np.intp), extra=extra)

    def solve(releases: Releases) -> Result:
        _refuse_statistics(releases.model, shared, releases.multiplier > 0)
        if n_clusters > 1 and known is None:
            theta = rounds.starts_of_clusters(releases, n_clusters, step)
        else:
            theta = rounds.starts(releases, n_clusters)
        if shared is not None:
            theta = rounds.move_shared(releases, theta, shared, estimator.head_steps, step)
            return result(theta, np.ones(1))
        return result(*rounds.move(releases, theta, step, pull, known))

    def local(releases: Releases) -> Result:
        return result(rounds.starts(releases, 1), np.ones(1))

    def exact(releases: Releases, pool: Any) -> Result:
        theta, n_iter, shortfall = rounds.pooled_minimum(pool, estimator.tol)
        shortfall = shortfall and f"{type(estimator).__name__} {shortfall}"
        return Result(theta, np.zeros(0, dtype=np.intp), n_iter=n_iter, shortfall=shortfall)

    # The models of clusters, and shared models that clients are drawn to, are other minima.
    one_model = n_clusters == 1 and automatic
    one_model &= lam is None and known is None and shared is None

    def noise(releases: Releases) -> float:
        size = rounds.expected_noise(releases, model.n_params, n_clusters)
        moved = model.n_params if shared is None else np.count_nonzero(shared)
        return float(size * np.sqrt(moved))

    sums = one_model and rounds.has_pooled_minimum(model)
    about = n_rounds, n_exact, n_clusters, solve, local, noise, MOST_NOISE_OF_MODELS
    return PrivatePlan(*about, exact if sums else None)


def _refuse_statistics(model: LocalModel, shared: Array | None, noisy: bool) -> None:
    """Raise a PrivacyError if noise is added to running statistics, or clients keep theirs."""
    refused = model.statistics if noisy else model.own
    if refused is None:
        return
    refused = refused if shared is None else refused & shared
    if layers := [name for name, at in model.layer_slices().items() if refused[at].any()]:
        why = (
            "and noise can make a variance negative. Take layers without them, such as GroupNorm "
            "or LayerNorm; register constants with persistent=False."
            if noisy
            else "which clients keep with buffers='local': models would be published with those "
            "of the module before it was trained. buffers='average' sums them behind the masks."
        )
        raise PrivacyError(
            f"model: the layers {layers} of the module have buffers of floats, such as running "
            f"statistics, {why}"
        )


def refuse_privately(estimator: Any, name: str, *allowed: Any) -> None:
    """Raise a PrivacyError unless a parameter has a value that a private fit knows."""
    value = getattr(estimator, name)
    if not any(type(value) is type(one) and value == one for one in allowed):
        values = " or ".join(map(repr, allowed))
        raise PrivacyError(
            f"{type(estimator).__name__}: {name} must be {values} where clients are private, got "
            f"{value!r}."
        )


def strength(lam: float | str) -> float:
    """Pull of clients to a shared model: that given, or one that needs no held-out rows."""
    return rounds.PULL if isinstance(lam, str) else float(lam)


def pooling_plan(estimator: Any, model: LocalModel, dispersion_of: Any) -> PrivatePlan:
    """Plan of partial pooling; `dispersion_of` is None where the dispersion is known."""
    for name, allowed in POOLING.items():
        refuse_privately(estimator, name, *allowed)
    dispersion = None
    if dispersion_of is None:
        dispersion = 1.0 if estimator.dispersion == "auto" else float(estimator.dispersion)
    n_clusters = 1 if estimator.n_clusters == "auto" else int(estimator.n_clusters)
    p = model.n_params
    if p > MAX_DENSE:
        raise PrivacyError(
            f"{type(estimator).__name__}: private clients release matrices of {p} parameters, "
            f"and up to {MAX_DENSE} are possible."
        )
    several, about = n_clusters > 1, (dispersion_of, dispersion)
    n_releases = pooling.RELEASES_OF_CLUSTERS if several else pooling.RELEASES

    def solve(releases: Releases) -> Result:
        return _of_population(releases, pooling.fit_privately(releases, n_clusters, *about))

    def local(releases: Releases) -> Result:
        fit = pooling.beginning(releases, 1, dispersion)
        return _of_population(releases, fit)

    def exact(releases: Releases, pool: Any) -> Result:
        options = estimator._fit_options(pool, np.ones(model.n_features + 1, dtype=bool))
        about = estimator.covariance, 1, estimator.n_init, options
        fit, _, fits = fit_population(pool, *about)
        stack, more, shortfall = stacked(pool, fits, options.constant)
        found = _of_stack(releases, stack, fit.population, fits)
        shortfall = shortfall_of(estimator, stack, fits, shortfall)
        return replace(found, shortfall=shortfall, n_iter=fit.n_iter + more)

    noise = partial(pooling.expected_noise, n_params=p, n_clusters=n_clusters)
    counts = n_releases, pooling.EXACT, n_clusters
    return PrivatePlan(*counts, solve, local, noise, MOST_NOISE, None if several else exact)


def _of_population(releases: Releases, fit: pooling.PrivateFit) -> Result:
    """What is published of a population that was found with noise."""
    order = np.argsort(-fit.population.weights, kind="stable")
    population, aware = fit.population.ordered(order), fit.aware.ordered(order)
    stack = Stack(["diag"], [aware], [None], np.ones(1))
    found = _of_stack(releases, stack, population, {"diag": None})
    errors = np.stack([np.diag(variances) for variances in fit.errors[order]])
    user_map = releases.units.user_map()
    # Clients know that the means have errors, which are no differences between clients.
    found.extra["covariance_"] = user_map @ population.covariance_matrix() @ user_map.T
    found.extra["standard_errors_"] = posterior_std(errors, user_map)
    return found


def _of_stack(
    releases: Releases, stack: Stack, population: Population, fits: dict[str, Any]
) -> Result:
    """What is published of a stack of populations, one of which is that of a likelihood."""
    published = of_stack(stack, fits, releases.units.user_map())
    covariance = published["covariance"]
    extra = {
        **{f"{name}_": value for name, value in published.items()},
        "shares": population.weights,
        "basis_": "linear",
        "covariance_": covariance.toarray() if sparse.issparse(covariance) else covariance,
        "mixture_weights_": population.weights,
        "df_": population.df,
        "_stack": stack,
        "_population": population,
        "_covariances": None,
        "_known": None,
        "_design": Design(),
        "_effects": (),
    }
    return Result(releases.model.centre(stack.means), np.zeros(0, dtype=np.intp), extra=extra)


def of_stack(stack: Stack, fits: dict[str, Any], user_map: Any) -> dict[str, Any]:
    """Attributes of a stack of populations in the user's units, by names without underscores."""
    covariance, errors = user_map @ stack.covariance @ user_map.T, stack.mean_errors
    known = dict(zip(stack.names, stack.shares.tolist(), strict=True))
    nothing = np.full(stack.means.shape, np.nan)
    return {
        "covariance_type": stack.names[0] if len(fits) == 1 else "stacked",
        "stacking_shares": dict.fromkeys(fits, 0.0) | known,
        "covariance": covariance.tocsr() if sparse.issparse(covariance) else covariance,
        "dispersion": stack.dispersion,
        "standard_errors": nothing if errors is None else posterior_std(errors, user_map),
        "prior_variance": stack.prior,
    }


def shortfall_of(estimator: Any, stack: Stack, fits: dict[str, Any], unstacked: str) -> str:
    """Why fits of a stack, or the stack, fell short; empty if they did not."""
    name, slow = type(estimator).__name__, [one for one in stack.names if not fits[one].converged]
    if not slow:
        return unstacked and f"{name}: {unstacked}"
    of = f" of the stack's {' and '.join(slow)} fit" if len(fits) > 1 else ""
    return (
        f"{name} stopped after max_iter={estimator.max_iter} exchanges{of} while the "
        f"log-likelihood still gained more than tol={estimator.tol} a client. Increase max_iter, "
        "or tol."
    )
