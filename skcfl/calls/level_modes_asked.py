"""Calls about rows of levels with losses that are no parabolas: ``skcfl.models._level_modes``."""

import numpy as np

from .answer_bounds import NOT_NEGATIVE, TOTAL
from .levels_asked import PRIOR, NestedEffects, PartCall

PRIOR = {**PRIOR, "effects": "e"}


class LevelModes(PartCall):
    """Sums of what the rows say of shared coefficients and levels, at the clients' modes.

    Parameters
    ----------
    root : ndarray of shape (n_params, n_params)
        R: the clients' coefficients vary with the covariance ``R R'``.
    spreads : ndarray of shape (n_nested,)
        Standard deviations of the effects of the levels inside the clients.
    effects : ndarray of shape (e,)
        Coefficients, and effects of the crossed levels.

    Returns
    -------
    products : ndarray of shape (e, e)
        Sum of ``U'W V``, the second derivatives of the value in the effects.
    slopes : ndarray of shape (e,)
        First derivatives.
    value : float
        Sum of P.
    log_det : float
        Sum of ``log det(A)``.
    weight : float
        Total weight of the rows.
    """

    down = PRIOR
    up = {"products": "e e", "slopes": "e", "value": "", "log_det": "", "weight": ""}
    bounds = {"log_det": NOT_NEGATIVE, "weight": TOTAL}

    def kernel(cls, clients, block, slots, root, spreads, effects):
        e = len(effects)
        products, slopes, value, log_det = np.zeros((e, e)), np.zeros(e), 0.0, 0.0
        weights = clients.client_weights[slots]
        for rows in clients.model.level_rows(block, weights):
            mode = rows.mode(root, spreads, effects)
            products[np.ix_(rows.places, rows.places)] += (rows.U.T * mode.W) @ mode.V
            slopes[rows.places] += rows.U.T @ mode.slopes
            value, log_det = value + mode.value, log_det + mode.log_det
        return products, slopes, value, log_det, weights.sum()


class LevelLeverages(PartCall):
    """Sum of ``V'g``: how the determinant changes with coefficients and crossed levels.

    Parameters
    ----------
    root, spreads, effects
        As of :class:`LevelModes`.
    errors : ndarray of shape (e, e)
        Covariance of what is integrated out among them; zero for the rest.

    Returns
    -------
    pull : ndarray of shape (e,)
    """

    down = {**PRIOR, "errors": "e e"}
    up = {"pull": "e"}

    def kernel(cls, clients, block, slots, root, spreads, effects, errors):
        pull = np.zeros(len(effects))
        for rows in clients.model.level_rows(block, clients.client_weights[slots]):
            mode = rows.mode(root, spreads, effects)
            pull[rows.places] += mode.V.T @ rows.leverages(mode, errors)
        return (pull,)


class LevelModeSlopes(PartCall):
    """Derivatives of twice Laplace's minus log-likelihood.

    Parameters
    ----------
    root, spreads, effects, errors
        As of :class:`LevelLeverages`.
    moved : ndarray of shape (e,)
        Errors times "pull" of these.

    Returns
    -------
    slopes : ndarray of shape (e,)
        Derivatives in coefficients and crossed levels, by way of the predictions.
    covariance : ndarray of shape (n_params, n_params)
        Derivatives in the root.
    variances : ndarray of shape (n_nested,)
        Derivatives in the spreads.
    """

    down = {**PRIOR, "errors": "e e", "moved": "e"}
    up = {"slopes": "e", "covariance": "p p", "variances": "u"}

    def kernel(cls, clients, block, slots, root, spreads, effects, errors, moved):
        slopes, nested = np.zeros(len(effects)), len(spreads)
        covariance, variances = np.zeros(root.shape), np.zeros(nested)
        for rows in clients.model.level_rows(block, clients.client_weights[slots]):
            mode = rows.mode(root, spreads, effects)
            of_places, of_root, inside = rows.derivatives(mode, errors, moved)
            slopes[rows.places] += of_places
            covariance += of_root
            variances += np.bincount(rows.owners, inside, nested)
        return slopes, covariance, variances


class NestedModes(NestedEffects):
    """Each client's effects of the levels inside it, at its mode.

    Parameters
    ----------
    root, spreads, effects
        As of :class:`LevelModes`.
    n_columns : int
        Levels of all nested groupings, v of them.

    Returns
    -------
    inside : ndarray of shape (n_clients, v)
        Effects.
    met : ndarray of shape (n_clients, v) of bool
        Which levels the client has.
    """

    def of_clients(cls, model, block, weights, *prior):
        for rows in model.level_rows(block, weights):
            yield rows, rows.mode(*prior).a
