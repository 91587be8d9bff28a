"""Rounds of private clients: models move by noisy sums of the clients' moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array
from ..calls.releases import Moves
from .model_kinds import NETWORK_STEP

if TYPE_CHECKING:
    from ..federation.private_sums import Releases

# Benchmark of the constants: benchmarks/private.py.
#: Rounds of a fit, each a release.
ROUNDS = 10
#: The same where sums are exact.
EXACT = 40
#: Pull of proximal points: weaker, a client of few rows would move far from the common model.
PULL = 0.3
#: Steps of Adam in a round of networks.
LOCAL_STEPS = 10
#: Least share of its part of all clients that the noisy count of a cluster is taken for.
LEAST_SHARE = 0.5
#: Largest seed that clients draw by.
MOST_DRAWN = 2**31 - 1


def expected_noise(releases: Releases, n_params: int, n_clusters: int) -> float:
    """Noise of a coefficient of a model after its last round, in the declared unit."""
    block = Moves.blocks(releases.model, {"theta": np.zeros((n_clusters, n_params))})["moves"]
    sd = releases.multiplier * block.clip / np.sqrt(block.share)
    return float(sd * n_clusters / releases.n_clients)


def starts(releases: Releases, n_clusters: int, spread: float) -> Array:
    """Models before anything is released; several begin at random."""
    model, rng = releases.model, releases.random_state
    theta = np.tile(np.asarray(model.start(rng), dtype=float), (n_clusters, 1))
    if n_clusters > 1:
        theta = theta + spread * unit_of(releases) * rng.standard_normal(theta.shape)
    return theta


def unit_of(releases: Releases) -> float:
    """Unit of the parameters: that of the target, where predictions are linear in them."""
    kernel = getattr(releases.model, "kernel", None)
    identity = kernel is not None and kernel.link == "identity"
    return releases.spread if identity else 1.0


def move(
    releases: Releases,
    theta: Array,
    step_size: float | None,
    pull: float = PULL,
    known: Any = None,
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
    pull : float, default=PULL
        Strength of the pull of proximal points.
    known : tuple of ndarray, default=None
        Ids of clients, and the cluster of each, where clusters are known; None lets each client
        choose the model of least loss.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
    shares : ndarray of shape (K,)
    """
    unit, shares = unit_of(releases), np.full(len(theta), 1.0 / len(theta))
    while releases.left > 0:
        answer = releases.ask(
            Moves,
            theta=theta,
            unit=unit,
            rho=pull,
            known=known,
            step_size=NETWORK_STEP if step_size is None else step_size,
            steps=LOCAL_STEPS,
            draw=int(releases.random_state.randint(MOST_DRAWN)),
        )
        if answer is None:
            break
        sums = answer[0]
        # The number of clients is public: noise can not make steps many times too long.
        least = LEAST_SHARE * releases.n_clients / len(theta)
        counts = np.clip(sums["counts"], least, releases.n_clients)
        theta = theta + unit * sums["moves"] / counts[:, None]
        shares = counts / counts.sum()
    return theta, shares
