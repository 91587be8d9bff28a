"""Calls about linear models of rows with crossed and nested groupings.

Rows have no levels if the clients' model has no such groupings.
"""

import numpy as np

from .answer_bounds import FLAGS, NOT_NEGATIVE, TOTAL
from .call import Call

PRIOR = {"root": "p p", "spreads": "u"}


class PartCall(Call, abstract=True):
    """Base of the calls with an entry for each bin, leaf or level: perhaps that of one row."""

    about = "parts"
    whole = False
    minimised = exact = True
    effort = "p"


class LevelSums(PartCall):
    """Sums of what the rows say of shared coefficients and levels, the clients' effects taken out.

    Parameters
    ----------
    root : ndarray of shape (n_params, n_params)
        R: the clients' coefficients vary with the covariance ``phi R R'``.
    spreads : ndarray of shape (n_nested,)
        Standard deviations of the effects of the levels inside the clients, over that of the
        noise.
    n_columns : int
        Coefficients, crossed levels and one column for the targets: v of them.

    Returns
    -------
    products : ndarray of shape (v, v)
        Sum of ``U' V^-1 U``.
    log_det : float
        Sum of ``log det(V)``.
    weight : float
        Total weight of the rows.
    """

    down = {**PRIOR, "n_columns": ""}
    up = {"products": "v v", "log_det": "", "weight": ""}
    free = frozenset({"n_columns"})
    most = {"n_columns": 10_000}
    bounds = {"log_det": NOT_NEGATIVE, "weight": TOTAL}

    def kernel(cls, clients, block, slots, root, spreads, n_columns):
        products, log_det = np.zeros((n_columns, n_columns)), 0.0
        weights = clients.client_weights[slots]
        for gram in clients.model.level_grams(block, weights):
            half, one, _ = gram.taken_out(root, spreads)
            a = len(gram.places)
            rest = gram.product[:a, :a] - half[:, :a].T @ half[:, :a]
            # One flat index takes a third of the time of np.ix_.
            np.add.at(products.reshape(-1), _pairs(gram.places, n_columns).ravel(), rest.ravel())
            log_det += one
        return products, log_det, weights.sum()


class LevelSlopes(PartCall):
    """Derivatives of the deviance in the variances of the clients' effects.

    Parameters
    ----------
    root, spreads
        As of :class:`LevelSums`.
    effects : ndarray of shape (v - 1,)
        Coefficients less the model's ``origin``, and effects of the crossed levels.
    errors : ndarray of shape (v - 1, v - 1)
        Covariance of what is integrated out among them, over phi; zero for the rest.
    dispersion : float
        phi.

    Returns
    -------
    covariance : ndarray of shape (n_params, n_params)
        Derivative in ``R R'``.
    variances : ndarray of shape (n_nested,)
        Derivatives in the squares of the spreads.
    """

    down = {**PRIOR, "effects": "e", "errors": "e e", "dispersion": ""}
    up = {"covariance": "p p", "variances": "u"}

    def kernel(cls, clients, block, slots, root, spreads, effects, errors, dispersion):
        d, nested = len(root), len(spreads)
        covariance, variances = np.zeros((d, d)), np.zeros(nested)
        for gram in clients.model.level_grams(block, clients.client_weights[slots]):
            half, a, places = gram.taken_out(root, spreads)[0], len(gram.places), gram.places[:-1]
            # Rows of the client's coefficients and nested levels, all columns.
            kept = np.r_[:d, a : len(gram.product)]
            rest = gram.product[kept] - half[:, kept].T @ half
            across = rest[:, : a - 1]
            e = rest[:, a - 1] - across @ effects[places]
            right = across @ errors.take(_pairs(places, len(errors)))
            covariance += rest[:d, :d] - np.outer(e[:d], e[:d]) / dispersion
            covariance -= right[:d] @ across[:d].T
            each = rest.diagonal(a - d)[d:] - e[d:] ** 2 / dispersion
            each = each - np.einsum("ij,ij->i", right[d:], across[d:])
            variances += np.bincount(gram.owners, each, nested)
        return covariance, variances


class NestedEffects(PartCall):
    """Each client's effects of the levels inside it.

    Parameters
    ----------
    root, spreads, effects
        As of :class:`LevelSlopes`.
    n_columns : int
        Levels of all nested groupings, v of them.

    Returns
    -------
    inside : ndarray of shape (n_clients, v)
        Expected effects.
    met : ndarray of shape (n_clients, v) of bool
        Which levels the client has.
    """

    down = {**PRIOR, "effects": "e", "n_columns": ""}
    up = {"inside": "n v", "met": "n v"}
    free = frozenset({"n_columns"})
    bounds = {"met": FLAGS}
    whole = True

    def kernel(cls, clients, block, slots, root, spreads, effects, n_columns):
        starts = np.cumsum([0, *clients.model.nested])
        inside = np.zeros((len(slots), n_columns))
        met = np.zeros(inside.shape, dtype=bool)
        weights = clients.client_weights[slots]
        found = cls.of_clients(clients.model, block, weights, root, spreads, effects)
        for row, flags, (rows, v) in zip(inside, met, found, strict=True):
            at = starts[rows.owners] + rows.levels
            flags[at] = True
            row[at] = spreads[rows.owners] * v[len(root) :]
        return inside, met

    def of_clients(cls, model, block, weights, *prior):
        """Yield each client's rows, and its effects: of its coefficients, then of its levels."""
        for gram in model.level_grams(block, weights):
            yield gram, gram.client_effects(*prior)


def _pairs(places, n):
    """Positions of pairs of places in a square matrix of n rows."""
    return places[:, None] * n + places
