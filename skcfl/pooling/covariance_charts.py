"""Coordinates without bounds of covariances, and how the likelihood curves along them.

A covariance is ``S = T T' + floor``, in the parameters' units.  The likelihood is smooth in T
where a variance, or that of a combination of parameters, is best at zero.  A full covariance with
a prior of its correlations has other coordinates, the lengths of the rows of T and their
directions: the prior depends on the directions only, however small a variance is.  Standard
deviations that a prior keeps off zero have their logarithms as coordinates.

The curvature is an expected one, as if all n clients knew as much: the log-likelihood curves along
a move D of S by ``n/2 tr(P D P D)``, P being the mean of the clients' curvatures.
"""

import numpy as np
from scipy.linalg import block_diag

from .population import FLOOR

# Coordinates up to which the curvature is one matrix; with more it is a matrix for each row of T.
# One of this size is factorised in a few milliseconds.
MOST_CURVED = 300
# Part of a curvature of one a client that is added to it. Benchmark: benchmarks/fits.py.
RIDGE = 0.1
# Least last entry of a row of T, relative to its length: a correlation is less than one.
LEAST_LAST = 1e-3


def covariance_chart(population):
    """Coordinates of the covariances of populations like one."""
    kinds = {"full": FullChart, "none": NoChart}
    return kinds.get(population.kind, DiagonalChart)(population)


class NoChart:
    """No variance: no coordinates."""

    def __init__(self, population):
        self.population, self.start = population, np.zeros(0)

    def covariance(self, x):
        """The covariance at coordinates x."""
        return self.population.covariance

    def slopes(self, x, fit, n):
        """Slopes of the log-likelihood of n clients in the coordinates, from the sums there."""
        return x

    def curvature(self, fit, n):
        """Curvature where the chart starts, of many coordinates blocks along its diagonal.

        Also ``tr(2 P S - P S P S)``, the part of a client's rows that tells of S and not of the
        dispersion, and what couples the coordinates with ``log(phi)``, each of one client.
        """
        return np.zeros((0, 0)), 0.0, np.zeros(0)


class DiagonalChart(NoChart):
    """Standard deviations, in their units, or their logarithms: one of each block."""

    def __init__(self, population):
        self.population, self.owner = population, population.owner
        varying = population.varying
        self.unit = population.unit[varying]
        if population.kind == "spherical":
            self.unit = np.full_like(self.unit, self.unit.mean())
        first = np.unique(self.owner, return_index=True)[1]
        variances = (population.covariance[varying] / self.unit)[first]
        start = np.sqrt(np.maximum(variances - FLOOR, FLOOR))
        self.kept = population.kept[varying][first]
        self.start = np.where(self.kept, np.log(start), start)

    def _sizes(self, x):
        """Standard deviations at coordinates x, and their derivatives there."""
        sizes = np.where(self.kept, _exp(x), x)
        return sizes, np.where(self.kept, sizes, 1.0)

    def covariance(self, x):
        """The covariance at coordinates x."""
        covariance = np.zeros_like(self.population.unit)
        sizes = self._sizes(x)[0]
        covariance[self.population.varying] = self.unit * (sizes[self.owner] ** 2 + FLOOR)
        return covariance

    def slopes(self, x, fit, n):
        """Slopes of the log-likelihood of n clients in the coordinates, from the sums there."""
        sizes, moves = self._sizes(x)
        return moves * sizes * self._excess(sizes, fit, n)

    def _excess(self, sizes, fit, n):
        """Twice the slopes in the variances."""
        excess = fit.sums["squares"][0][self.population.varying] - n
        return (np.bincount(self.owner, excess) + self.kept) / (sizes**2 + FLOOR)

    def curvature(self, fit, n):
        """See :meth:`NoChart.curvature`."""
        (sizes, moves), P = self._sizes(self.start), _mean_curvature(fit, n, self.unit)
        blocks, x = np.eye(len(sizes))[self.owner], moves * sizes
        # A variance that is best at zero, or near it, is held there by its slope.
        held = np.maximum(self.kept - self._excess(sizes, fit, n) * moves**2, 0.0)
        curved = 2.0 * n * np.outer(x, x) * (blocks.T @ P**2 @ blocks)
        PS = P * (sizes[self.owner] ** 2 + FLOOR)
        cross = x * (blocks.T @ np.diag(P - PS @ P))
        return curved + np.diag(held + np.where(self.kept, 1.0, RIDGE * n)), _taken(PS), cross


class FullChart(NoChart):
    """Entries of T; or lengths of its rows, or logarithms, and entries relative to the last."""

    def __init__(self, population):
        self.population, self.unit = population, population.unit[population.varying]
        values, vectors = np.linalg.eigh(population.scaled)
        root = np.sqrt(np.maximum(values - FLOOR, FLOOR))[:, None] * vectors.T
        T = np.linalg.qr(root, mode="r").T
        T *= np.where(np.diag(T) < 0.0, -1.0, 1.0)
        self.lower = np.tril_indices(len(T))
        self.kept = population.kept[population.varying]
        if population.shrinkage:
            size = np.sqrt((T**2).sum(axis=1))
            T /= np.maximum(np.diag(T), LEAST_LAST * size)[:, None]
            np.fill_diagonal(T, np.where(self.kept, np.log(size), size))
        self.start = T[self.lower]

    def _factor(self, x):
        """T, the directions of its rows, and their lengths relative to the directions' entries."""
        T = np.zeros((len(self.unit), len(self.unit)))
        T[self.lower] = x
        if not self.population.shrinkage:
            return T, None, None
        size = np.diag(T).copy()
        size[self.kept] = _exp(size[self.kept])
        np.fill_diagonal(T, 1.0)
        norm = np.sqrt((T**2).sum(axis=1))
        T /= norm[:, None]
        return size[:, None] * T, T, size / norm

    def _moves(self, x):
        """Moves of the entries of T along the coordinates of each of its rows, row by row."""
        T, directions, ratios = self._factor(x)
        rows = [slice(i + 1) for i in range(len(T))]
        moves = [np.eye(i + 1) for i in range(len(T))]
        if directions is not None:
            lengths = np.where(self.kept, np.sqrt((T**2).sum(axis=1)), 1.0)
            for i, row in enumerate(rows):
                along = directions[i, row]
                moves[i] = ratios[i] * (moves[i] - np.outer(along, along))
                moves[i][i] = lengths[i] * along
        return rows, moves

    def _in_coordinates(self, x, G):
        """Slopes in the coordinates, of slopes in T."""
        rows, moves = self._moves(x)
        return np.concatenate(
            [J @ G[i, row] for i, (row, J) in enumerate(zip(rows, moves, strict=True))]
        )

    def covariance(self, x):
        """The covariance at coordinates x."""
        T = self._factor(x)[0]
        return self.population.of_scaled(T @ T.T + FLOOR * np.eye(len(T)))

    def slopes(self, x, fit, n):
        """Slopes of the log-likelihood of n clients in the coordinates, from the sums there."""
        return self._in_coordinates(x, self._excess(fit, n) @ self._factor(x)[0])

    def _excess(self, fit, n):
        """Twice the slopes in S."""
        population, varying = fit.population, fit.population.varying
        values, vectors = np.linalg.eigh(population.scaled)
        back = vectors / np.sqrt(np.maximum(values, FLOOR))
        excess = fit.sums["squares"][0][np.ix_(varying, varying)] - n * np.eye(len(values))
        excess = back @ excess @ back.T
        if population.shrinkage:
            excess -= population.penalty_slope(population.scaled)
        return excess

    def curvature(self, fit, n):
        """See :meth:`NoChart.curvature`."""
        x, P = self.start, _mean_curvature(fit, n, self.unit)
        T, (i, j), (rows, moves) = self._factor(x)[0], self.lower, self._moves(x)
        # A move of T is a move ``dT T' + T dT'`` of S.
        B, Q = P @ T, T.T @ P @ T
        values, vectors = np.linalg.eigh(-self._excess(fit, n))
        held = (vectors * np.maximum(values, 0.0)) @ vectors.T
        ridge = RIDGE * n + self.population.shrinkage * (i != j)
        if len(x) > MOST_CURVED:
            blocks = []
            for k, (row, J) in enumerate(zip(rows, moves, strict=True)):
                curved = n * (P[k, k] * Q[row, row] + np.outer(B[k, row], B[k, row]))
                curved += held[k, k] * np.eye(k + 1)
                blocks.append(J @ curved @ J.T + np.diag(ridge[i == k]))
            return blocks, 0.0, np.zeros_like(x)
        B = B[np.ix_(i, j)]
        curved = n * (P[np.ix_(i, i)] * Q[np.ix_(j, j)] + B * B.T)
        curved += held[np.ix_(i, i)] * (j[:, None] == j)
        J = block_diag(*moves)
        PS = P @ (T @ T.T + FLOOR * np.eye(len(T)))
        cross = self._in_coordinates(x, (P - PS @ P) @ T)
        return J @ curved @ J.T + np.diag(ridge), _taken(PS), cross


def _exp(x):
    """Exponentials, in bounds."""
    return np.exp(np.clip(x, np.log(FLOOR), -np.log(FLOOR)))


def _taken(PS):
    """Trace of ``2 P S - P S P S``."""
    return float(2.0 * np.trace(PS) - (PS * PS.T).sum())


def _mean_curvature(fit, n, unit):
    """P, in the units of the parameters that vary; where it is rounding it may be negative."""
    at, size = np.ix_(fit.population.varying, fit.population.varying), np.sqrt(unit)
    P = fit.sums["curvature"].sum(axis=0)[at] * (size[:, None] * size) / n
    values, vectors = np.linalg.eigh(P)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T
