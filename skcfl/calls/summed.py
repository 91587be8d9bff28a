"""Calls about cluster models with answers that are summed at the sites.

The answers do not grow with the number of clients, but for a number or two of each.
"""

import copy
from typing import Any, ClassVar

import numpy as np
from scipy.spatial.distance import cdist

from ..numerics.by_cluster import without_small
from .answer_bounds import LABELS
from .call import Call
from .first_order import BestResponse, LocalUpdate, MetaUpdate, MoreauUpdate

#: Arguments for training from the clusters' models, and for the sums.
FROM_CLUSTERS = {"theta": "K p", "labels": "n", "weights": "n"}


class ClusterValues(Call):
    """Values ``f_i`` with the local penalty, at the models of the clients' clusters.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    labels : ndarray of shape (n_clients,)
        Cluster of each client.

    Returns
    -------
    values : ndarray of shape (n_clients,)
    """

    down = {"theta": "K p", "labels": "n"}
    up = {"values": "n"}
    known = "theta"
    searched = True
    precise = False

    def count(cls, sizes, arguments):
        return sizes["n"] * sizes["p"], sizes["n"]

    def kernel(cls, clients, block, slots, theta, labels):
        return (clients.model.value(block, theta[labels]),)


class GradientSums(ClusterValues):
    """Values and gradients of ``f_i`` at the models of the clients' clusters.

    Parameters
    ----------
    theta, labels
        As of :class:`ClusterValues`.
    weights : ndarray of shape (n_clients,), default=None
        Weights ``u_i`` of the clients; ``n_i`` by default.
    dtype : dtype, default=None
        Type to compute in; second-order methods ask for float64.

    Returns
    -------
    values : ndarray of shape (n_clients,)
    gradients : ndarray of shape (K, n_params)
        Sums of ``u_i`` times the gradients.
    """

    down = {**FROM_CLUSTERS, "dtype": ""}
    defaults = {"weights": None, "dtype": None}
    up = {"values": "n", "gradients": "K p"}
    adds = frozenset({"gradients"})

    def asked(cls, pool, theta, labels, weights=None, dtype=None):
        dtype = pool.dtype if dtype is None else np.dtype(dtype)
        sent = super().asked(pool, theta, labels, weights, dtype)
        return {**sent, "theta": np.ascontiguousarray(theta, dtype=dtype), "dtype": dtype}

    def count(cls, sizes, arguments):
        return sizes["n"] * sizes["p"], sizes["n"] * (1 + sizes["p"])

    def kernel(cls, clients, block, slots, theta, labels, weights, dtype):
        return clients.model.value_gradient(block.astype(dtype), theta[labels])


class BestResponseSums(BestResponse):
    """Losses, best models, and sums of the gradients at the best models.

    Parameters
    ----------
    theta, fixed
        As of :class:`~skcfl.calls.first_order.BestResponse`.
    weights : ndarray of shape (n_clients,), default=None
        Weights ``u_i`` of the clients; ``n_i`` by default.

    Returns
    -------
    losses, choice
        As of :class:`~skcfl.calls.first_order.BestResponse`.
    gradients : ndarray of shape (K, n_params)
        Sums over the clients that choose a model of ``u_i`` times their gradients.
    """

    down = {**BestResponse.down, "weights": "n"}
    defaults = {"fixed": None, "weights": None}
    up = {"losses": "n K", "choice": "n", "gradients": "K p"}
    adds = frozenset({"gradients"})

    def kernel(cls, clients, block, slots, theta, fixed, weights):
        return BestResponse.kernel(clients, block, slots, theta, fixed)

    def single(cls, site, arguments):
        own = {name: arguments[name] for name in BestResponse.down}
        return site.answer(BestResponse.name, own)


class Moves(Call, abstract=True):
    """Base of the calls that train the models of the clients' clusters, which are averaged.

    Attributes
    ----------
    trains : type or None
        The call for single models, which answers ``w`` and the further answers of this one. Its
        arguments are taken over, but for those of `without`: ``labels`` name the models `theta`
        that stand for its ``w``.
    """

    trains: ClassVar[Any] = None
    up = {"moves": "K p"}
    adds = frozenset({"moves"})
    known = "theta"
    whole = False

    def __init_subclass__(cls, trains=None, without=(), abstract=False):
        if trains is not None:
            kept = {name: shape for name, shape in trains.down.items() if name not in without}
            of_clusters = kept.pop("w").replace("n", "K")
            cls.trains, cls.free, cls.minimised = trains, trains.free, trains.minimised
            cls.always_draws, cls.most = trains.always_draws, trains.most
            cls.down = {"theta": of_clusters, "labels": "n", **kept, "weights": "n"}
            defaults = {name: trains.defaults[name] for name in trains.defaults if name in kept}
            cls.defaults = defaults | {"weights": None}
            cls.up = {"moves": of_clusters} | {k: v for k, v in trains.up.items() if k != "w"}
        super().__init_subclass__(abstract=abstract)

    def count(cls, sizes, arguments):
        return sizes["n"] * sizes["p"], sizes["n"] * sizes["p"]

    def passes(cls, sizes, arguments):
        return cls.trains.passes(sizes, arguments)

    def kernel(cls, clients, block, slots, theta, labels, weights, **how):
        start = theta[labels]
        return (start - cls.trains.kernel(clients, block, slots, start.copy(), **how)[0],)

    def least_summed(cls, site, arguments, answers, units):
        """As of :class:`Call`; clients that moved almost nothing beside others do not count.

        Steps may be undone, or diverge, so that equal arguments do not make equal moves. Moves
        that are lost in rounding, as of clients that are at their minimum, are as large as it.
        """
        if cls.trains is not None:
            if site.model.own is not None:
                # What clients keep for themselves has been trained already.
                site = copy.copy(site)
                site.state = copy.deepcopy(site.state)
            start, moves = cls.each_move(site, arguments)
            with np.errstate(over="ignore"):
                far = np.linalg.norm(np.asarray(moves, float), axis=1)
                far += np.finfo(float).eps * np.linalg.norm(np.asarray(start, float), axis=1)
            units = without_small(units, far, answers.get("choice", arguments.get("labels")))
        return super().least_summed(site, arguments, answers, units)

    def each_move(cls, site, arguments):
        """Starts of the clients and how each moves, (n_clients, n_params) each."""
        start = arguments["theta"][arguments["labels"]]
        return start, cls.single(site, arguments)["moves"]


class TrainedMoves(Moves, trains=LocalUpdate, without={"center", "rho", "keep", "own"}):
    """Let every client train its cluster's model for some steps on its own rows.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    labels : ndarray of shape (n_clients,)
        Cluster of each client.
    steps, step_size, optimizer, batch_size, monotone
        As of ``LocalUpdate``.
    weights : ndarray of shape (n_clients,), default=None
        Weights ``u_i`` of the clients; ``n_i`` by default.

    Returns
    -------
    moves : ndarray of shape (K, n_params)
        Sums of ``u_i (theta_k - w_i)``, ``w_i`` the trained models.
    """

    def asked(cls, pool, *args, **arguments):
        sent = super().asked(pool, *args, **arguments)
        LocalUpdate.check_monotone(sent)
        return sent

    def kernel(cls, clients, block, slots, theta, labels, weights, **how):
        how |= {"center": None, "rho": np.zeros(len(labels), dtype=theta.dtype)}
        return super().kernel(clients, block, slots, theta, labels, weights, **how)


class NearestMoves(TrainedMoves):
    """Let every client train, and choose the model nearest to its trained one.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    begun : ndarray of shape (n_clients,)
        Model that each client begins at; a negative number is the mean of all.
    steps, step_size, optimizer, batch_size, monotone, weights
        As of :class:`TrainedMoves`.

    Returns
    -------
    choice : ndarray of shape (n_clients,)
        The nearest models.
    moves : ndarray of shape (K, n_params)
        Sums over the clients that choose a model of ``u_i (theta_k - w_i)``.
    """

    down = {**{"theta": "K p", "begun": "n"}, **dict(list(TrainedMoves.down.items())[2:])}
    up = {"choice": "n", "moves": "K p"}
    bounds = {"choice": LABELS}

    def kernel(cls, clients, block, slots, theta, begun, weights, **how):
        every = np.vstack([theta, theta.mean(axis=0)])
        (moves,) = TrainedMoves.kernel(clients, block, slots, every, begun, weights, **how)
        return _nearest(theta, every[begun] - moves)

    def single(cls, site, arguments):
        _, answers = cls._trained(site, arguments)
        choice, moves = _nearest(arguments["theta"], answers.pop("w"))
        return {**answers, "choice": choice, "moves": moves}

    def each_move(cls, site, arguments):
        start, answers = cls._trained(site, arguments)
        return start, start - answers["w"]

    def _trained(cls, site, arguments):
        """Starts of the clients, and answers with their trained models."""
        theta = arguments["theta"]
        start = np.vstack([theta, theta.mean(axis=0)])[arguments["begun"]]
        own = {name: arguments[name] for name in LocalUpdate.down if name in arguments}
        rho = np.zeros(len(start), dtype=start.dtype)
        own.update(w=start, center=None, rho=rho, keep=False, own=None)
        return start, site.answer(LocalUpdate.name, own)


def _nearest(theta, trained):
    """Model nearest to each client's trained one, and the moves from there."""
    choice = cdist(trained.astype(float), theta.astype(float)).argmin(axis=1)
    return choice, theta[choice] - trained


class MetaMoves(Moves, trains=MetaUpdate):
    """Let every client train the model that is best after one more step.

    Parameters
    ----------
    theta, labels, weights
        As of :class:`TrainedMoves`.
    steps, step_size, inner, optimizer, batch_size, exact
        As of :class:`~skcfl.calls.first_order.MetaUpdate`.

    Returns
    -------
    moves : ndarray of shape (K, n_params)
        As of :class:`TrainedMoves`.
    """


class MoreauMoves(Moves, trains=MoreauUpdate):
    """Let every client descend the Moreau envelope of its objective.

    Parameters
    ----------
    theta, labels, weights
        As of :class:`TrainedMoves`.
    steps, step_size, rho, move, n_moves, optimizer, batch_size
        As of :class:`~skcfl.calls.first_order.MoreauUpdate`.

    Returns
    -------
    moves : ndarray of shape (K, n_params)
        As of :class:`TrainedMoves`.
    """


class ProximalMoves(Moves):
    """Let every client move its cluster's model to its proximal points, which it keeps.

    Parameters
    ----------
    theta, labels
        As of :class:`TrainedMoves`.
    rho : float
        Strength of the pull.
    move : float
        Rate of the moves ``center <- center - move * rho * (center - x)``.
    n_moves : int
        Number of moves.
    weights
        As of :class:`TrainedMoves`.

    Returns
    -------
    moves : ndarray of shape (K, n_params)
        As of :class:`TrainedMoves`, of the centres.
    values : ndarray of shape (n_clients,)
        Objectives at the last proximal points.
    away : ndarray of shape (n_clients,)
        Squared distances of these from the clusters' models.
    """

    down = {
        **{"theta": "K p", "labels": "n", "rho": "n", "move": "n", "n_moves": ""},
        **{"weights": "n"},
    }
    defaults = {"weights": None}
    up = {"moves": "K p", "values": "n", "away": "n"}
    free = frozenset({"rho", "move", "n_moves"})
    most = {"n_moves": 1000}
    minimised = True
    remembers = True
    exact = True

    def count(cls, sizes, arguments):
        n, p = sizes["n"], sizes["p"]
        return n * p, n * (p + 2)

    def passes(cls, sizes, arguments):
        return sizes["p"] * arguments["n_moves"]

    def begin(cls, clients, answers, arguments):
        # Before blocks work at the same time.
        clients.state.keep("nearest", clients.entries[:0], arguments["theta"][:0])

    def kernel(cls, clients, block, slots, theta, labels, rho, move, n_moves, weights):
        start, entries, model = theta[labels], clients.entries[slots], clients.model
        nearest, centre = clients.state.recall("nearest", entries, start), start.copy()
        for _ in range(n_moves):
            nearest = model.prox(block, centre, rho, nearest, 100)[0]
            centre -= (move * rho)[:, None] * (centre - nearest)
        clients.state.keep("nearest", entries, nearest)
        away = start - nearest
        values = model.value(block, nearest.astype(block.dtype, copy=False))
        return start - centre, values, np.einsum("cp,cp->c", away, away)
