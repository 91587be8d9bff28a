"""Calls with answers for proofs: bounds that hold in the arithmetic that computes them."""

import numpy as np

from .answer_bounds import NOT_NEGATIVE
from .call import Call
from .curvatures import rows_to_hide

# Slopes of conjugates that are rounding next to the largest one.
ROUNDING = 1e-12


class Conjugate(Call):
    """Upper bounds of the conjugates ``f_i^*(s_i)``.

    Parameters
    ----------
    s : ndarray of shape (n_clients, n_params)
        Slopes.
    x0 : ndarray of shape (n_clients, n_params), default=None
        Starts of the search for the maximisers; as in :class:`~skcfl.calls.curvatures.Prox`, a
        client is not sent its last answer.
    allowed : float
        Difference of ``f_i(x) - <s_i, x>`` between a start and the maximiser beyond which the
        bound is good for nothing, and need not be near.

    Returns
    -------
    bounds : ndarray of shape (n_clients,)
        At least ``f_i^*(s_i)`` whatever the accuracy reached; infinite outside of the domain,
        which is only zero for clients without rows.
    """

    down = {"s": "n p", "x0": "n p", "allowed": "", "own": "n", "largest": ""}
    defaults = {"x0": None, "allowed": np.inf}
    up = {"bounds": "n"}
    free = frozenset({"own", "largest", "allowed"})
    start = "x0"
    always_last = True
    unbounded = frozenset({"bounds"})
    minimised = exact = True
    proof = True
    effort = "p"

    def asked(cls, pool, *args, **arguments):
        sent = super().asked(pool, *args, **arguments)
        return {**sent, "largest": float(np.abs(sent["s"]).max(initial=0.0))}

    def _lost(cls, clients, s, largest):
        """Slopes of free parameters that are rounding.

        They are sums of flows: a rounding error after cancellation counts as zero, or the bound of
        a client without rows would never be finite.  Only free parameters are treated so: a
        penalty makes small slopes cheap, and their share of the bound is kept.
        """
        free = clients.model.decay == 0.0
        tiny = np.abs(s[:, free]).max(axis=1, initial=0.0) <= ROUNDING * largest
        return tiny[:, None] & free

    def begin(cls, clients, answers, arguments):
        s, largest = arguments["s"], arguments["largest"]
        slopes = np.where(cls._lost(clients, s, largest), 0.0, s)
        level = np.abs(slopes).max(axis=1, initial=0.0) <= ROUNDING * largest
        answers["bounds"][clients.without_rows & ~level] = np.inf

    def kernel(cls, clients, block, slots, s, x0, largest, allowed):
        lost = cls._lost(clients, s, largest)
        slopes = np.where(lost, 0.0, s)
        bounds, x = clients.model.conjugate(block, slopes, x0, allowed)
        way = np.abs(x) if x0 is None else np.maximum(np.abs(x), np.abs(x0))
        missing = np.where(lost, np.abs(s), 0.0)
        return (bounds + 2.0 * np.einsum("np,np->n", missing, way),)

    def result(cls, pool, answers, arguments, start):
        bounds = answers["bounds"]
        bounds = np.where(np.isnan(bounds), np.inf, bounds)  # NaN is no bound
        if pool.without_rows.any():
            # The rounding error of their slopes goes as far as the server's models of them.
            idle = np.flatnonzero(pool.without_rows)
            way = 0.0 if start is None else np.abs(start[idle])
            bounds[idle] += 2.0 * (np.abs(arguments["s"][idle]) * way).sum(axis=1)
        return bounds


class Rounding(Call):
    """Bounds of the rounding of the clients' objectives, in double precision.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        Models.

    Returns
    -------
    rounding : ndarray of shape (n_clients,)
        How far the values of :class:`~skcfl.calls.first_order.ObjectivesGradients` with
        ``dtype=np.float64`` may be from exact.
    """

    down = {"w": "n p"}
    up = {"rounding": "n"}
    free = frozenset({"w"})
    unbounded = frozenset({"rounding"})
    minimised = exact = True
    proof = True
    bounds = {"rounding": NOT_NEGATIVE}

    def kernel(cls, clients, block, slots, w):
        return (clients.model.rounding(block, w),)


class Enclosures(Call):
    """Bounds of the objectives of clusters in boxes about their models.

    Parameters
    ----------
    theta, box : ndarray of shape (K, n_params)
        Model of each cluster, and half the sides of its box.
    labels : ndarray of shape (n_clients,)
        Cluster of each client.
    dense : bool
        True if clients send matrices, False if numbers.  If a matrix would show a client's rows it
        is the number, times the identity.

    Returns
    -------
    rounding : ndarray of shape (n_clients, n_params)
        Rounding error of the clients' gradients at the models, in double precision.
    drift : ndarray of shape (n_clients,)
        How far they move at most in the box, in the Euclidean norm.
    floor : ndarray of shape (K, n_params, n_params) or (K,)
        Matrices, or least eigenvalues, that the Hessians of the clusters' sums are not below
        in the box.
    """

    down = {"theta": "K p", "labels": "n", "box": "K p", "dense": "", "members": "K"}
    up = {"rounding": "n p", "drift": "n", "floor": "K H"}
    unbounded = frozenset({"rounding", "drift", "floor"})
    minimised = exact = True
    proof = True
    bounds = {"rounding": NOT_NEGATIVE, "drift": NOT_NEGATIVE}
    effort = "p"
    lesser_axes = (3,)

    def count(cls, sizes, arguments):
        n, p = sizes["n"], sizes["p"]
        return 2 * n * p, n * (p + 1 + (p * (p + 1) // 2 if arguments["dense"] else 3))

    def kernel(cls, clients, block, slots, theta, box, labels, dense, members):
        model, p = clients.model, theta.shape[1]
        rounding, drift, floor = model.enclosure(block, theta[labels], box[labels], dense)
        hidden = dense & rows_to_hide(clients, labels, members, slots)
        if hidden.any():
            own = labels[hidden]
            numbers = model.enclosure(block.take(hidden), theta[own], box[own], False)[2]
            floor[hidden] = least_curvature(*numbers.T)[:, None, None] * np.eye(p)
        total = np.zeros((len(theta), *floor.shape[1:]))
        np.add.at(total, labels, floor)
        return rounding, drift, total

    def result(cls, pool, answers, arguments, start):
        floor = answers["floor"]
        floor = floor if arguments["dense"] else least_curvature(*floor.T)
        return answers["rounding"], answers["drift"], floor


def least_curvature(free, size, penalty):
    """Least eigenvalues of sums of curvatures of linear models, (K,).

    With x the penalised parameters, bounded by rows of a size a and the penalty b, and t the free
    ones of curvature m: ``(u + t)^2 >= t^2 c / (1 + c) - c u^2`` with ``c = b / (2 a)`` leaves ``b
    / 2`` for x and ``m c / (1 + c)`` for t.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        c = np.where(penalty > 0, penalty / (2.0 * size), 0.0)
        both = np.minimum(0.5 * penalty, np.where(np.isinf(c), free, free * c / (1.0 + c)))
    return np.where(np.isinf(free), penalty, np.where(np.isinf(penalty), free, both))
