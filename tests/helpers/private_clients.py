"""Clients under privacy: rows, places of federations, and what a release of moves is asked."""

import numpy as np

from skcfl.models import LinearModel

BOUNDS = {"features": (-2, 2), "target": (-2, 2)}


def grouped(n_clients=12, n_rows=10, seed=0):
    """Rows of clients with two coefficients each."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_clients), n_rows)
    theta = np.array([1.0, -0.5]) + 0.3 * rng.standard_normal((n_clients, 2))
    X = rng.standard_normal((len(ids), 2))
    return X, (X * theta[ids]).sum(axis=1) + 0.3 * rng.standard_normal(len(ids)), ids


def schools(n_clients=30, n_rows=80, seed=0):
    """Rows of schools with three coefficients each, to fit and to judge."""
    rng = np.random.default_rng(seed)
    theta = np.array([0.6, -0.4, 0.1]) + 0.3 * rng.standard_normal((n_clients, 3))

    def rows():
        ids = np.repeat(np.arange(n_clients), n_rows)
        X = rng.standard_normal((len(ids), 2))
        y = (np.column_stack([X, np.ones(len(X))]) * theta[ids]).sum(axis=1)
        return X, y + 0.6 * rng.standard_normal(len(ids)), ids

    return rows(), rows()


def where(data, chosen):
    """Some of the rows."""
    return tuple(values[chosen] for values in data)


def halves(data):
    """The clients of even and of odd numbers."""
    return [where(data, data[2] % 2 == k) for k in range(2)]


def places_of(federation, model=None):
    """What answers for the rows, asked by a server of its own making."""
    model = LinearModel(alpha=0.0).bind(2) if model is None else model
    return federation.rows(model, federation.hello("regressor"))


def moves(n_params=3):
    """Arguments of a release of moves."""
    steps = dict(unit=1.0, rho=0.3, step_size=0.1, steps=1, draw=0, known=None, sizes=None)
    return steps | {"theta": np.zeros((1, n_params))}
