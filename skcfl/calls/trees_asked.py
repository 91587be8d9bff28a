"""Calls about trees beside the clients' random coefficients: sums over the rows, by bin and leaf.

The clients' site has the bins, see ``ClientPool.without_effects``.  Rows of client i are ``y = D
(theta + b_i) + T(x) + e`` with ``b_i ~ N(0, L L')``.  The residual that a tree is grown on is the
client's own: ``g = r - D b_i(r)``, ``r = y - D theta - T(x)``, with the posterior mean of b_i,
which is ``phi V_i^-1 r`` for the covariance ``V_i = phi W^-1 + D L L' D'`` of the rows, of weights
W.
"""

import numpy as np

from ..numerics.regression_trees import forest_values, leaves_of
from .answer_bounds import NOT_NEGATIVE
from .call import Call
from .posteriors_asked import POSTERIOR_BYTES, pieces

AROUND = {"theta": "1 p", "root": "p", "dispersion": "", "trees": "t l 5"}


class SplitSums(Call):
    """Sums from which leaves of a tree are split: weights and residuals by feature and bin.

    Parameters
    ----------
    theta : ndarray of shape (1, n_params)
        Mean of the clients' models.
    root : ndarray of shape (n_params,)
        L, a diagonal.
    dispersion : float
        phi.
    trees : ndarray of shape (n_trees, max_leaf_nodes, 5)
        Trees that are not taken from the targets yet, the last of them the one that grows.
    leaves : ndarray of shape (n_leaves,)
        Leaves of that one.
    n_bins : int
        Bins of a feature.

    Returns
    -------
    counts, residuals : ndarray of shape (n_leaves, n_features, n_bins)
        Sums of the weights of the rows of a bin, and of their weighted residuals.
    """

    down = {**AROUND, "leaves": "k", "n_bins": ""}
    up = {"counts": "k f b", "residuals": "k f b"}
    free = frozenset({"n_bins"})
    whole = False
    minimised = exact = True
    bounds = {"counts": NOT_NEGATIVE}
    effort = "f"

    def kernel(cls, clients, block, slots, theta, root, dispersion, trees, leaves, n_bins):
        d = clients.model.n_features
        out = np.zeros((2, len(leaves), d * n_bins))
        for part in residuals_of(clients, block, slots, theta, root, dispersion, trees):
            codes = clients.bins_of(part.block) + n_bins * np.arange(d)
            for place, leaf in enumerate(leaves.astype(np.intp)):
                rows = np.flatnonzero((part.leaf == leaf) & (part.weight > 0))
                some, w = codes[rows].ravel(), part.weight[rows]
                for k, values in enumerate((w, w * part.residual[rows])):
                    out[k, place] += np.bincount(some, np.repeat(values, d), d * n_bins)
        return tuple(out.reshape(2, len(leaves), d, n_bins))


class LeafSums(Call):
    """Normal equations of the values of the leaves of a tree, by generalised least squares.

    Parameters
    ----------
    theta, root, dispersion, trees
        As of :class:`SplitSums`.
    n_leaves : int
        Leaves of the last tree.

    Returns
    -------
    products : ndarray of shape (n_leaves, n_leaves)
        Sum of ``phi H' V^-1 H`` of the incidence matrices H of rows and leaves.
    slopes, weights : ndarray of shape (n_leaves,)
        Sum of ``phi H' V^-1 r``, and weights of the leaves' rows.
    """

    down = {**AROUND, "n_leaves": ""}
    up = {"products": "k k", "slopes": "k", "weights": "k"}
    free = frozenset({"n_leaves"})
    whole = False
    minimised = exact = True
    bounds = {"weights": NOT_NEGATIVE}
    effort = "p"

    def kernel(cls, clients, block, slots, theta, root, dispersion, trees, n_leaves):
        products, slopes = np.zeros((n_leaves, n_leaves)), np.zeros(n_leaves)
        weights = np.zeros(n_leaves)
        for part in residuals_of(clients, block, slots, theta, root, dispersion, trees):
            slopes += np.bincount(part.leaf, part.weight * part.residual, n_leaves)
            weights += np.bincount(part.leaf, part.weight, n_leaves)
            shape = part.block.shape[:2]
            sums = []
            for leaf in range(n_leaves):
                mine = np.where(part.leaf == leaf, part.weight, 0.0).reshape(shape)
                sums.append(root * part.block.backward(mine[:, None])[:, 0])
            moved = [part.curvature.covariance_times(each) / dispersion for each in sums]
            products -= np.einsum("acp,bcp->ab", np.array(sums), np.array(moved))
        products[np.diag_indices(n_leaves)] += weights
        return products, slopes, weights


class Residuals:
    """Rows of some clients, their residuals and leaves, padding included with weight 0.

    Attributes
    ----------
    block : Block
        Their rows.
    weight, residual, leaf : ndarray of shape (n_rows,)
        Weight, residual and leaf of each row.
    curvature : DenseCurvature or RowCurvature
        Curvature of the clients' posteriors.
    """

    def __init__(self, block, weight, residual, leaf, curvature):
        self.block, self.weight, self.residual = block, weight, residual
        self.leaf, self.curvature = leaf, curvature


def residuals_of(clients, block, slots, theta, root, dispersion, trees):
    """Yield :class:`Residuals` of parts of a block."""
    model, d = clients.model, clients.model.n_features
    by_rows = model.has_few_rows(block, root)
    n, p = block.shape[1], model.n_params
    floats = 4 * n * n + 14 * p if by_rows else 6 * p * p
    size = max(int(POSTERIOR_BYTES // (8 * floats)), 1)
    for some, part in pieces(block, size, True):
        totals = clients.client_weights[slots[some]]
        rows = part.dense().reshape(-1, part.shape[2])[:, :d]
        weight = (part.weights * totals[:, None]).ravel()
        curvature = _curvature(model, part, totals, theta, root, dispersion, by_rows)
        fitted = part.forward(np.broadcast_to(theta, (len(totals), p))[:, None])[:, 0].ravel()
        residual = part.y[:, 0].ravel() - fitted - forest_values(rows, trees[:-1])
        pulled = part.backward((weight * residual).reshape(-1, 1, n))[:, 0]
        away = root * curvature.covariance_times(root * pulled / dispersion)
        residual = residual - part.forward(away[:, None])[:, 0].ravel()
        yield Residuals(part, weight, residual, leaves_of(rows, trees[-1]), curvature)


def _curvature(model, block, weights, theta, root, dispersion, by_rows):
    """Curvature of the posteriors, which depends on no target: kept for the next call."""
    about = root, dispersion
    known, kept = block.cache.get("curvature of trees", ((), None))
    if len(known) == 2 and np.array_equal(known[0], root) and known[1] == dispersion:
        return kept
    found = model.posteriors(block, weights, theta, root, dispersion, None, by_rows)
    block.cache["curvature of trees"] = about, found.curvatures[0]
    return found.curvatures[0]
