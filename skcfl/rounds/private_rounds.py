"""Rounds of private clients: models move by noisy sums of the clients' moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array
from ..calls.posteriors_asked import PosteriorSums
from ..calls.releases import Moves, SharedMoves
from ..exceptions import PrivacyError
from ..numerics.newton import MAX_DENSE
from .model_kinds import NETWORK_STEP

if TYPE_CHECKING:
    from ..federation.private_sums import Releases
    from ..models import LocalModel

# Benchmark of the constants: benchmarks/private.py.
#: Rounds of a fit, each a release.
ROUNDS = 10
#: The same where sums are exact.
EXACT = 40
#: Part of the rounds in which several clusters are one yet, and the spread of their models about
#: it, in the declared unit. Three crisp clusters of 200 and 1,000 clients, 5 features, epsilon 4:
#: R2 .91 and .94 (.65 and .63 by models drawn at once; .93 and .92 with a tenth of the rounds);
#: of two classes, 2 and 4 clusters: accuracy .94 and .90 (.93 and .90; .91 and .87).
COMMON, SPREAD = 0.2, 0.02
#: Pull of proximal points of personal methods: weaker, a client of few rows would move far from
#: the common model.
PULL = 0.3
#: Pull of proximal points of linear models that clients take as they are. A stronger pull has less
#: client drift: where the moves cancel, directions in which rows vary little within clients count
#: for more than in the mean loss.
COMMON_PULL = 2.0
#: Factor of the mean move of such models, which the stronger pull shortens. Without momentum, no
#: step of a factor below 2 diverges, whatever the rows.
RELAXATION = 2.0
#: Part of its last step that such a model goes on by.
MOMENTUM = 0.4
#: Bound of a move of such models, in the declared unit: of one model, and of several, where the
#: noise of a model is K times as large.
BOUND, BOUND_OF_CLUSTERS = 0.5, 0.4
#: Steps of Adam in a round of networks.
LOCAL_STEPS = 10
#: Least share of its part of all clients that the noisy count of a cluster is taken for.
LEAST_SHARE = 0.5
#: Norm of a gradient, a row, at which Newton steps end, and up to which they have converged.
LEAST_SLOPE, ROUGH_SLOPE = 1e-8, 1e-6
#: Most exchanges of Newton steps, and halvings of one that overshoots.
MOST_NEWTON, HALVINGS = 60, 30
#: Relative rounding of a loss.
ROUNDING = 1e-12
#: Largest seed that clients draw by.
MOST_DRAWN = 2**31 - 1


def expected_noise(releases: Releases, n_params: int, n_clusters: int) -> float:
    """Noise of a coefficient of a model after its last round, in the declared unit."""
    block = Moves.blocks(releases.model, {"theta": np.zeros((n_clusters, n_params))})["moves"]
    sd = releases.multiplier * block.clip / np.sqrt(block.share)
    return float(sd * n_clusters / releases.n_expected)


def starts(releases: Releases, n_clusters: int) -> Array:
    """Models before anything is released, all the same."""
    model = releases.model
    return np.tile(np.asarray(model.start(releases.random_state), dtype=float), (n_clusters, 1))


def starts_of_clusters(releases: Releases, n_clusters: int, step_size: float | None) -> Array:
    """Models near the one that all clients have after a part of the rounds.

    Each client then chooses by the slope of its loss there. Slopes of all clients cancel at their
    common minimum, so that every cluster gets some; models drawn far from it differ more than the
    clients do, and one of them serves nearly all.
    """
    model, rng = releases.model, releases.random_state
    keep = releases.left - round(COMMON * releases.left)
    theta, _ = move(releases, starts(releases, 1), step_size, keep=keep)
    away = SPREAD * unit_of(releases) * rng.standard_normal((n_clusters, model.n_params))
    return theta + (away if model.moved is None else away * model.moved)


def unit_of(releases: Releases) -> float:
    """Unit of the parameters: that of the target, where predictions are linear in them."""
    model = releases.model
    kernel = None if model.standardised is not None else getattr(model, "kernel", None)
    identity = kernel is not None and kernel.link == "identity"
    return releases.spread if identity else 1.0


def move(
    releases: Releases,
    theta: Array,
    step_size: float | None,
    pull: float | None = None,
    known: Any = None,
    keep: int = 0,
) -> tuple[Array, Array]:
    """Models after some rounds, and the share of the clients of each.

    Parameters
    ----------
    releases : Releases
        The clients.
    theta : ndarray of shape (K, n_params)
        Models to begin with.
    step_size : float or None
        Of Adam, for networks; None is the default one.
    pull : float, default=None
        Strength of the pull of proximal points; the next model is their mean. None is for models
        that clients take as they are: linear ones move by a stronger pull, longer steps and
        momentum towards the minimum of the clients' mean loss.
    known : tuple of ndarray, default=None
        Ids of clients, and the cluster of each, where clusters are known; None lets each client
        choose the model of least loss.
    keep : int, default=0
        Releases that are left for later.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
    shares : ndarray of shape (K,)
    """
    unit, shares = unit_of(releases), np.full(len(theta), 1.0 / len(theta))
    factor, momentum, rho = 1.0, 0.0, PULL if pull is None else pull
    if pull is None and hasattr(releases.model, "prox"):
        unit *= BOUND if len(theta) == 1 else BOUND_OF_CLUSTERS
        factor, momentum, rho = RELAXATION, MOMENTUM, COMMON_PULL
    # Clients are asked about `ahead`, the model after the momentum of the last step.
    ahead = theta
    # Exact sums are of clusters of enough clients only, which have to be counted first.
    counted = releases.multiplier == 0.0 and (len(theta) > 1 or known is not None)
    while releases.left > keep:
        about: dict[str, Any] = {"theta": ahead, "unit": unit, "rho": rho, "known": known}
        about["sizes"], about["draw"] = None, int(releases.random_state.randint(MOST_DRAWN))
        if counted:
            answer = _asked(releases, Moves, step_size, False, **about)
            about["sizes"] = None if answer is None else answer[1]
            least = releases.terms["masked"]
            if known is not None and answer is not None and answer[1].min() < least:
                raise PrivacyError(
                    f"a cluster has {answer[1].min():g} clients that answer, and exact sums are "
                    f"over at least {least}."
                )
        answer = _asked(releases, Moves, step_size, **about)
        if answer is None:
            break
        moves, counts = answer
        last, theta = theta, ahead + factor * unit * moves / counts[:, None]
        ahead = theta + momentum * (theta - last)
        shares = counts / counts.sum()
    return theta, shares


def move_shared(
    releases: Releases, theta: Array, shared: Array, head_steps: int, step_size: float | None
) -> Array:
    """A model after rounds that move its shared parameters, while clients keep the others.

    Parameters
    ----------
    releases : Releases
        The clients.
    theta : ndarray of shape (1, n_params)
        The model to begin with.
    shared : ndarray of shape (n_params,) of bool
        The shared parameters.
    head_steps : int
        Steps of Adam of the others in a round.
    step_size : float or None
        As of :func:`move`.
    """
    unit = unit_of(releases)
    while releases.left > 0:
        about: dict[str, Any] = {"theta": theta, "unit": unit, "rho": PULL, "shared": shared}
        about["draw"] = int(releases.random_state.randint(MOST_DRAWN))
        answer = _asked(releases, SharedMoves, step_size, **about, head_steps=head_steps)
        if answer is None:
            break
        moves, counts = answer
        theta = theta.copy()
        theta[0, shared] += unit * moves / float(counts[0])
    return theta


def _asked(
    releases: Releases, call: type, step_size: float | None, counts: bool = True, **about: Any
) -> tuple[Array, Array] | None:
    """Noisy sums of moves and counts of the clients by cluster; None after the last release."""
    answer = releases.ask(
        call,
        counts,
        **about,
        step_size=NETWORK_STEP if step_size is None else step_size,
        steps=LOCAL_STEPS,
    )
    if answer is None:
        return None
    sums, moved = answer[0], releases.model.moved
    if releases.multiplier and moved is not None:  # others would move by the noise
        sums["moves"] = sums["moves"] * (moved[about["shared"]] if "shared" in about else moved)
    if not counts:
        return sums["moves"], sums["counts"]
    # The number of clients is public: noise can not make steps many times too long.
    least = LEAST_SHARE * releases.n_expected / len(about["theta"])
    return sums["moves"], np.clip(sums["counts"], least, releases.n_clients)


def has_pooled_minimum(model: LocalModel) -> bool:
    """Whether :func:`pooled_minimum` knows derivatives of the losses."""
    return bool(getattr(model, "is_likelihood", False)) and model.n_params <= MAX_DENSE


def pooled_minimum(pool: Any, tol: float) -> tuple[Array, int, str]:
    """The model of least loss of all rows, by Newton steps with exact sums over the clients.

    Parameters
    ----------
    pool : SummedPool
        The clients.
    tol : float
        Norm of the gradient, relative to the weight of the rows, at which it ends.

    Returns
    -------
    theta : ndarray of shape (1, n_params)
    n_iter : int
        Exchanges.
    shortfall : str
        Empty if it has converged.
    """
    model = pool.model
    p = pool.n_params

    def at(theta: Array) -> tuple[float, Array, Array]:
        # Clients without differences: derivatives of the log-likelihood of all rows.
        prior = theta[None], np.zeros(p), np.ones(1), 1.0
        sums = pool.ask(PosteriorSums, *prior)
        weight = float(sums["weight"])
        value = -float(sums["evidence"]) / weight + 0.5 * float(model.decay @ theta**2)
        slope = -sums["slopes"][0] / weight + model.decay * theta
        return value, slope, sums["curvature"][0] / weight + np.diag(model.decay)

    theta = np.asarray(model.start(pool.random_state), dtype=float)
    value, slope, curvature = at(theta)
    n_iter, least = 1, min(tol, LEAST_SLOPE)
    while np.linalg.norm(slope) > least and n_iter < MOST_NEWTON:
        move = -np.linalg.lstsq(curvature, slope, rcond=None)[0]
        for _ in range(HALVINGS):
            trial = at(theta + move)
            n_iter += 1
            if trial[0] <= value + ROUNDING * (1.0 + abs(value)):
                break
            move = 0.5 * move
        else:
            break
        theta, (value, slope, curvature) = theta + move, trial
    size = float(np.linalg.norm(slope))
    if size <= ROUGH_SLOPE:
        return theta[None], n_iter, ""
    return theta[None], n_iter, f"stopped after {n_iter} exchanges at a gradient of {size:.1e}."
