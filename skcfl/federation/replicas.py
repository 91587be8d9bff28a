"""Clients of squared error at the server: pseudo-rows with their second moments.

A client of few parameters is known, for everything that a fit asks about its objective, by its
Hessian, and by its value and gradient at one model.  Its *replica* has as many pseudo-rows as
parameters, and one more, and the same objective.  Replicas answer what the clients would,
up to rounding, without an exchange.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .._typing import Array
from ..calls.curvatures import Hessians, shows_rows
from ..calls.first_order import ObjectivesGradients
from ..numerics.matrices import quotient
from .inprocess import InProcessSite
from .lanes import asked_at_once
from .ledger import Ledger
from .pool import ClientPool
from .presence import Presence

# Numbers of the clients' Hessians up to which a server keeps them: 32 MB.
MAX_NUMBERS = 4_000_000


class NoLedger(Ledger):
    """The ledger of exchanges that send nothing."""

    counts = False

    def book(self, **sent: Any) -> None:
        """Count nothing."""


def can_replicate(pools: Sequence[ClientPool]) -> bool:
    """Whether clients are known by matrices that may be asked for.

    Parameters
    ----------
    pools : sequence of ClientPool
        The same clients with some of their rows.

    Returns
    -------
    known : bool
        True for linear models of one output under squared error, unless a matrix would show the
        rows of a client (:func:`~skcfl.calls.curvatures.shows_rows`), or there are too many.
    """
    model, n, p = pools[0].model, pools[0].n_clients, pools[0].n_params
    linear = getattr(model, "quadratic", False) and getattr(model, "n_columns", 0) == p
    if not linear or model.own is not None or len(pools) * n * p**2 > MAX_NUMBERS:
        return False
    return not any(shows_rows(pool, np.arange(n), n).any() for pool in pools)


def replicas_of(pools: Sequence[ClientPool], ledger: Ledger) -> list[ClientPool] | None:
    """Pools of replicas, for one exchange with the clients.

    Parameters
    ----------
    pools : sequence of ClientPool
        The same clients with some of their rows, as :func:`can_replicate` allows.
    ledger : Ledger
        Where the exchange is booked.

    Returns
    -------
    replicas : list of ClientPool or None
        They share the random states of `pools`.  None if a client did not answer.
    """
    n, origin = pools[0].n_clients, pools[0].model.origin
    theta, each = np.tile(origin, (n, 1)), np.arange(n)
    slope = partial(ClientPool.ask, call=ObjectivesGradients, w=theta, dtype=np.float64)
    curve = partial(ClientPool.ask, call=Hessians, theta=theta, labels=each, weights=np.ones(n))
    for pool in pools:
        pool.answered = None
    asked = [(pool, question) for pool in pools for question in (slope, curve)]
    answers = asked_at_once(*asked, ledger=ledger)
    if any(pool.answered is not None for pool in pools):
        return None
    parts = zip(pools, answers[::2], answers[1::2], strict=True)
    return [_replica(pool, first[0], first[1], H) for pool, first, H in parts]


def _replica(pool: ClientPool, value: Array, gradient: Array, H: Array) -> ClientPool:
    """Pool of pseudo-rows, from values, gradients and Hessians of the objectives at the origin."""
    model, here = pool.model, np.flatnonzero(pool.client_weights > 0.0)
    p, origin, decay = pool.n_params, pool.model.origin, pool.model.decay
    q = p + 1
    M = np.zeros((len(here), q, q))
    M[:, :p, :p] = H[here]
    np.einsum("ijj->ij", M)[:, :p] -= decay
    M[:, :p, p] = M[:, p, :p] = decay * origin - gradient[here]
    M[:, p, p] = 2.0 * value[here] - (decay * origin) @ origin
    # Columns are scaled, so that none is lost beside a large one.
    scale = np.sqrt(np.maximum(np.einsum("ijj->ij", M), 0.0))
    inverse = quotient(1.0, scale)
    values, vectors = np.linalg.eigh(M * inverse[:, :, None] * inverse[:, None, :])
    roots = np.sqrt(q * np.maximum(values, 0.0))
    rows = (roots[:, :, None] * vectors.transpose(0, 2, 1) * scale[:, None, :]).reshape(-1, q)
    design = rows[:, :p].astype(model.dtype)
    target = (rows[:, p] + rows[:, :p] @ origin)[:, None]
    weights = np.repeat(pool.client_weights[here] / q, q)
    places = np.arange(pool.n_clients)
    site = InProcessSite.of_design(
        model, design, target, weights, np.repeat(here, q), pool.without_rows
    )
    # They stand for the clients' rows.
    site.client_sizes, site.client_weights = pool.client_sizes, pool.client_weights
    replica = copy.copy(pool)
    replica.ledger, replica.presence = NoLedger(), Presence(places)
    replica.places, replica._at = places, slice(None)
    replica._take(site)
    replica.n_samples = pool.n_samples
    return replica
