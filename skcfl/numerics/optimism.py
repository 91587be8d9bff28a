"""Held-out losses of models that will be fitted to more rows.

Models of few rows are worth more once they have all.  With n rows and p parameters the mean loss
is about 1 + p / n of the noise on other rows, and 1 - p / n on its own (Amari and Murata): half of
the difference, the optimism, is what the models' error adds, and it falls as one over the rows.

With about as many rows as parameters neither is true.  A client's own model of two rows meets
both, and half of what the third one says, times its share of the rows, is taken off.  Burman's
correction, what the models gain on all rows by being fitted to them, takes off all of that, and so
prefers models of few rows to better ones.

References
----------
S. Amari, N. Murata. "Statistical theory of learning curves under entropic loss criterion". Neural
Computation 5, 1993.
"""

import numpy as np

# Share of the optimism that is the models' error.
ERROR = 0.5


def with_all_rows(losses, own, held, fitted):
    """Mean losses on rows held out, of models fitted to these, too.

    Parameters
    ----------
    losses, own : ndarray of shape (n_clients,)
        Mean losses of the clients' models on the rows held out, and on those they are fitted to.
    held, fitted : ndarray of shape (n_clients,)
        Weights of these rows.

    Returns
    -------
    losses : ndarray of shape (n_clients,)
        Not finite where they were not, NaN where there is no answer about either.
    """
    share = held / np.maximum(held + fitted, 1e-300)
    with np.errstate(invalid="ignore"):
        error = ERROR * np.where(fitted > 0, losses - own, 0.0)
        corrected = losses - np.nan_to_num(share * error, posinf=0.0, neginf=0.0)
    return np.where(np.isnan(own), np.nan, corrected)
