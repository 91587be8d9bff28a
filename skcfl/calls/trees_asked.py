"""Calls about trees beside the clients' random coefficients: sums over the rows, by bin and leaf.

The clients' site has the bins, see ``ClientPool.without_effects``.  Raw predictions of client i
are ``D (theta + b_i) + T(x)`` with ``b_i ~ N(0, L L')``.  A tree is grown by Newton's method where
b_i is at its posterior mode, which only the client knows: a row has the slope g, minus the
derivative of its loss, and the second derivative h.  The working response ``D (theta + b_i) +
T(x) + g / h`` has the covariance ``V_i = phi W^-1 + D L L' D'`` about ``D theta + T(x)``, W the
weights times h, and leaves' values follow by generalised least squares.  At a mode ``phi V_i^-1``
times the response's residual is the slope, weights included.  Under squared error h is 1, g the
residual, and this is generalised least squares of the targets; under other losses it is a Newton
step of the joint likelihood of the leaves' values and b_i.
"""

from functools import partial

import numpy as np

from ..numerics.regression_trees import forest_outputs, leaves_of
from .answer_bounds import NOT_NEGATIVE
from .levels_asked import PartCall
from .posteriors_asked import kept_for, last_modes, pieces

AROUND = {"theta": "1 p", "root": "p", "dispersion": "", "trees": "t l 5", "output": ""}


class SplitSums(PartCall):
    """Sums from which leaves of a tree are split: weights, slopes and curvature by bin.

    Parameters
    ----------
    theta : ndarray of shape (1, n_params)
        Mean of the clients' models.
    root : ndarray of shape (n_params,)
        L, a diagonal.
    dispersion : float
        phi.
    trees : ndarray of shape (n_trees, max_leaf_nodes, 5)
        Whole rounds of trees, one of each output, that are not beside the predictions yet, and
        last the tree that grows.
    output : int
        The output of that one.
    leaves : ndarray of shape (n_leaves,)
        Leaves of that one.
    n_bins : int
        Bins of a feature.
    curved : bool
        True if clients send curvatures; else these are the weights, as of squared error.

    Returns
    -------
    counts, slopes : ndarray of shape (n_leaves, n_features, n_bins)
        Sums of the weights of the rows of a bin, and of their weighted slopes.
    curvatures : ndarray of shape (n_leaves, n_features, n_bins)
        Sums of their weighted second derivatives; empty unless `curved`.
    """

    down = {**AROUND, "leaves": "k", "n_bins": "", "curved": ""}
    up = {"counts": "k f b", "slopes": "k f b", "curvatures": "j f b"}
    free = frozenset({"n_bins", "output", "curved"})
    most = {"n_bins": 1000}
    bounds = {"counts": NOT_NEGATIVE, "curvatures": NOT_NEGATIVE}
    effort = "f"

    def kernel(cls, clients, block, slots, leaves, n_bins, curved, output, **about):
        d, tree = clients.model.n_features, about["trees"][-1]
        out = np.zeros((2 + bool(curved), len(leaves), d * n_bins))
        for part, at in modes_of(clients, block, slots, **about):
            codes = clients.bins_of(part) + n_bins * np.arange(d)
            leaf_of_row = leaves_of(at.rows, tree, part.cache)
            weights = at.weights.ravel()
            summed = [weights, at.slopes[:, output].ravel()]
            if curved:
                summed.append(at.curvatures(output).ravel())
            for place, leaf in enumerate(leaves.astype(np.intp)):
                rows = np.flatnonzero((leaf_of_row == leaf) & (weights > 0))
                some = codes[rows].ravel()
                for k, values in enumerate(summed):
                    out[k, place] += np.bincount(some, np.repeat(values[rows], d), d * n_bins)
        out = out.reshape(len(out), len(leaves), d, n_bins)
        return out[0], out[1], out[2] if curved else out[1, :0]


class LeafSums(PartCall):
    """Normal equations of the values of the leaves of a tree, by generalised least squares.

    Parameters
    ----------
    theta, root, dispersion, trees, output
        As of :class:`SplitSums`.
    n_leaves : int
        Leaves of the last tree.

    Returns
    -------
    products : ndarray of shape (n_leaves, n_leaves)
        Sum of ``phi H' V^-1 H`` of the incidence matrices H of rows and leaves.
    slopes, weights : ndarray of shape (n_leaves,)
        Sum of the weighted slopes, and weights of the leaves' rows.
    """

    down = {**AROUND, "n_leaves": ""}
    up = {"products": "k k", "slopes": "k", "weights": "k"}
    free = frozenset({"n_leaves", "output"})
    most = {"n_leaves": 1000}
    bounds = {"weights": NOT_NEGATIVE}

    def kernel(cls, clients, block, slots, n_leaves, output, **about):
        products, slopes = np.zeros((n_leaves, n_leaves)), np.zeros(n_leaves)
        weights, tree, root = np.zeros(n_leaves), about["trees"][-1], about["root"]
        for part, at in modes_of(clients, block, slots, **about):
            leaf_of_row = leaves_of(at.rows, tree)
            slopes += np.bincount(leaf_of_row, at.slopes[:, output].ravel(), n_leaves)
            weights += np.bincount(leaf_of_row, at.weights.ravel(), n_leaves)
            curved = at.curvatures(output).ravel()
            products[np.diag_indices(n_leaves)] += np.bincount(leaf_of_row, curved, n_leaves)
            sums = []
            for leaf in range(n_leaves):
                mine = (leaf_of_row == leaf).reshape(at.weights.shape)
                pulled = part.backward(at.curvature_times(mine, output))
                sums.append(root * pulled.reshape(len(mine), -1))
            moved = [at.posterior.covariance_times(each) / about["dispersion"] for each in sums]
            products -= np.einsum("acp,bcp->ab", np.array(sums), np.array(moved))
        return products, slopes, weights


class Modes:
    """Rows of some clients where their coefficients are at their posterior modes.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_features)
        All rows, padding included, which weighs nothing.
    weights : ndarray of shape (c, n)
        Weights of the rows.
    slopes : ndarray of shape (c, n_outputs, n)
        Weights times minus the derivatives of the losses.
    posterior : DenseCurvature or RowCurvature
        Curvature of the clients' posteriors.
    """

    def __init__(self, rows, weights, slopes, posterior, kernel, state, y):
        self.rows, self.weights, self.slopes, self.posterior = rows, weights, slopes, posterior
        self._kernel, self._about = kernel, (state, y)

    def curvatures(self, output):
        """Weights times the second derivatives of an output, (c, n)."""
        return self.weights * self._kernel.own_curvature(*self._about)[:, output]

    def curvature_times(self, mine, output):
        """Weights times the derivatives of the slopes by an output of some rows, (c, C, n)."""
        moved = np.zeros(self._about[0].shape)
        moved[:, output] = mine
        return self.weights[:, None] * self._kernel.curvature_product(*self._about, moved)


def modes_of(clients, block, slots, theta, root, dispersion, trees):
    """Yield parts of a block and their :class:`Modes`, beside all trees but the last."""
    model, about = clients.model, (theta, root, dispersion, trees[:-1])
    n, p = block.shape[1] * model.n_outputs, model.n_params
    by_rows = model.has_few_rows(block, root)
    floats = 4 * n * n + 14 * p if by_rows else 6 * p * p
    find = _residuals if model.quadratic else _working_rows
    for some, part in pieces(block, floats, True):
        made = partial(find, model, part, clients.client_weights[slots[some]], *about, by_rows)
        yield part, kept_for(part.cache, "modes beside trees", about, made)


def _residuals(model, part, totals, theta, root, dispersion, trees, by_rows):
    """Modes under squared error: residuals of the targets from the posterior means."""
    (c, n, _), p = part.shape, model.n_params
    rows = _features(model, part)
    weights = part.weights * totals[:, None]
    posterior = _posterior(model, part, totals, theta, root, dispersion, by_rows)
    residual = part.y - part.forward(np.broadcast_to(theta, (c, p))[:, None])
    residual = residual - forest_outputs(rows, trees, 1, part.cache).reshape(c, 1, n)
    pulled = part.backward(weights[:, None] * residual)[:, 0]
    away = root * posterior.covariance_times(root * pulled / dispersion)
    residual = residual - part.forward(away[:, None])
    about = model.kernel, part.y - residual, part.y
    return Modes(rows, weights, weights[:, None] * residual, posterior, *about)


def _posterior(model, block, weights, theta, root, dispersion, by_rows):
    """Curvature of the posteriors, which depends on no target: kept for the next call."""

    def made():
        return model.posteriors(*arguments, None, by_rows).curvatures[0]

    arguments = block, weights, theta, root, dispersion
    return kept_for(block.cache, "curvature of trees", (root, dispersion), made)


def _working_rows(model, part, totals, theta, root, dispersion, trees, by_rows):
    """Modes under other losses, by Newton's method."""
    (c, n, _), C = part.shape, model.n_outputs
    rows = _features(model, part)
    offset = forest_outputs(rows, trees, C, part.cache).reshape(c, n, C).transpose(0, 2, 1)
    model, y = model.beside(part.y, offset)
    moved = part.with_targets(y)
    start = last_modes(part, (1, c, model.n_params))
    found = model.posteriors(moved, totals, theta, root, dispersion, start, by_rows)
    part.cache["modes"] = found.modes
    state = model.state(moved, theta + found.deviations[0])
    weights = part.weights * totals[:, None]
    slopes = -weights[:, None] * model.kernel.gradient(state, y)
    return Modes(rows, weights, slopes, found.curvatures[0], model.kernel, state, y)


def _features(model, part):
    """Features of all rows of a block, without the column of the intercept."""
    return part.dense().reshape(-1, part.shape[2])[:, : model.n_features]
