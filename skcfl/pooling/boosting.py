"""Trees beside random coefficients, from sums over clients: gradient boosting of a mixed model.

Rows of client i are ``y = D (theta + b_i) + T(x) + e``, ``b_i ~ N(0, Sigma)``.  Each tree is grown
on the residuals that the clients' posterior means leave, best leaf first, as by scikit-learn's
``HistGradientBoostingRegressor``, and its values follow by generalised least squares.  After some
trees theta, Sigma and the noise are estimated anew.  Boosting with random effects in this way is
GPBoost (Sigrist 2022).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .._progress import series
from ..calls.first_order import OwnLosses
from ..calls.posteriors_asked import Posteriors
from ..calls.trees_asked import LeafSums, SplitSums
from ..federation.lanes import together
from ..numerics.regression_trees import (
    FEATURE,
    LEAF,
    THRESHOLD,
    VALUE,
    WEIGHT,
    empty_tree,
    in_units,
    no_trees,
)
from ..search.judges import HeldOutLoss
from .components import fit_population
from .em import evaluate, step
from .normal_equations import solve

# Trees between two estimates of the variances, and two looks at the rows held out.
TREES_A_STAGE = 5
# Most trees, and stages without a lower loss of the rows held out before the search ends.
MOST_TREES, PATIENT_STAGES = 200, 4
# Folds of the rows, and how many of them judge.
FOLDS = 3, 2
# Exchanges of the fit of straight lines that trees begin with, and the gain a client that ends it.
START, START_TOL = 20, 1e-3
# Least gain of a split, in variances of the noise: less is rounding.
LEAST_GAIN = 1e-6
# Rows for each one of a leaf, where min_samples_leaf="auto", and the bounds of that number.
ROWS_A_LEAF, FEWEST, MOST = 60, 3, 20


@dataclass
class Forest:
    """Trees, and how they were found.

    Attributes
    ----------
    trees : ndarray of shape (n_trees, max_leaf_nodes, 5)
        See ``skcfl.numerics.regression_trees``; of the units of the pool.
    gains : ndarray of shape (n_trees, n_features)
        Decrease of the sum of squares by the splits at a feature.
    losses : ndarray of shape (n_stages,)
        Mean loss of a row held out after each stage, from no tree on; empty for a given number.
    totals : ndarray of shape (n_clients,) or None
        Sum of the losses of each client's rows held out, with these trees.
    cuts : ndarray of shape (n_features, n_bins - 1)
        Ends of the bins.
    counts : ndarray of shape (n_features, n_bins)
        Weights of the rows in them.
    """

    trees: np.ndarray
    gains: np.ndarray
    losses: np.ndarray
    totals: np.ndarray | None
    cuts: np.ndarray
    counts: np.ndarray

    def in_units(self, mean, scale):
        """The same of features x, where these trees are of ``(x - mean) / scale``."""
        cuts = mean[:, None] + scale[:, None] * self.cuts
        return replace(self, trees=in_units(self.trees, mean, scale), cuts=cuts)


@dataclass
class Node:
    """A leaf that may be split.

    Attributes
    ----------
    counts, residuals : ndarray of shape (n_features, n_bins)
        Sums over its rows.
    gain, feature, cut : float, int, int
        Its best split.
    children : list of Node
        The left and the right one, once they are known.
    """

    counts: np.ndarray
    residuals: np.ndarray
    gain: float
    feature: int
    cut: int
    children: list


def straight(pool, options):
    """Population of one cluster fitted to straight lines, roughly."""
    begin = replace(options, df=np.inf, max_iter=START, tol=START_TOL)
    return fit_population(pool, "diag", 1, 1, begin)[0].population


class Booster:
    """Trees that are grown one after the other on the clients of a pool.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    cuts : ndarray of shape (n_features, n_bins - 1)
        Ascending ends of the bins.
    basis : TreeBasis
        How to grow.
    options : Options
        How to fit.
    population : Population, default=None
        Fit of straight lines, one cluster; None fits one.
    """

    def __init__(self, pool, cuts, basis, options, population=None):
        self.base, self.cuts, self.basis, self.options = pool, cuts, basis, options
        self.population = straight(pool, options) if population is None else population
        self.trees, self.n_taken, self.gains = no_trees(basis.max_leaf_nodes), 0, []
        self.pool = pool.without_effects("without_trees", self.trees, cuts)
        least = basis.min_samples_leaf
        if least == "auto":
            least = np.clip(pool.n_samples // ROWS_A_LEAF, FEWEST, MOST)
        self.least_rows = float(least)
        self.counts = np.zeros((len(cuts), cuts.shape[1] + 1))
        #: If True, no further tree has a split.
        self.done = False

    def stage(self, n_trees):
        """Grow some trees, then estimate what is beside them anew."""
        for _ in range(n_trees):
            self.grow()
            if self.done:
                break
        self.pool = self.base.without_effects("without_trees", self.trees, self.cuts)
        self.n_taken = len(self.trees)
        sums = evaluate(self.pool, self.population).sums
        self.population = step(self.pool, self.population, sums, self.options)

    def losses_on(self, held):
        """Sums of the losses of the rows that clients have in another pool, (n_clients,)."""
        models = self.pool.ask(Posteriors, *self.population.arguments)[1]
        held = held.without_effects("without_trees", self.trees, self.cuts)
        with np.errstate(over="ignore", invalid="ignore"):
            losses = held.client_weights * held.ask(OwnLosses, models)
            return np.where(held.client_weights > 0, losses, 0.0)

    # ------------------------------------------------------------------------- a tree

    def _about(self, tree):
        """Arguments of the calls, with a tree that grows."""
        means, root, _, dispersion, _ = self.population.arguments
        recent = self.trees[self.n_taken :]
        trees = np.array([empty_tree(len(tree))] * len(recent) + [tree])
        trees[:-1, : recent.shape[1]] = recent
        return means, root, dispersion, trees

    def grow(self):
        """Grow a tree and append it; `done` is set if it has no split."""
        tree, gains = self._structure()
        self.done = not gains.any()
        if self.done:
            return
        n_leaves = 1 + int((tree[:, LEAF] >= 0).sum())
        products, slopes, weights = self.pool.ask(LeafSums, *self._about(tree), n_leaves)
        products[np.diag_indices(n_leaves)] += self.basis.l2_regularization
        tree[:n_leaves, VALUE] = self.basis.learning_rate * solve(products, slopes)
        tree[:n_leaves, WEIGHT] = weights
        self.trees = np.concatenate([self.trees, tree[None]])
        self.gains.append(gains)

    def _structure(self):
        """Splits of the next tree, best leaf first, and their gains by feature."""
        most = self.basis.max_leaf_nodes
        tree = empty_tree(most)
        sums = self.pool.ask(SplitSums, *self._about(tree), np.zeros(1), self.cuts.shape[1] + 1)
        self.counts = sums[0][0]
        root = self._node(sums[0][0], sums[1][0])
        while True:
            chosen, waiting = self._best_first(root)
            if not waiting:
                break
            self._split(root, waiting)
        gains = np.zeros(len(self.cuts))
        for node in chosen:
            gains[node.feature] += node.gain
        return self._written(root, chosen)[0], gains

    def _best_first(self, root):
        """Nodes that are split, in order, and those with children that have to be known for more.

        Leaves that may be next after an unknown one are asked for with it.
        """
        most, chosen, waiting = self.basis.max_leaf_nodes - 1, [], [root]
        least = LEAST_GAIN * self.population.dispersion
        while len(chosen) < most:
            waiting = sorted((n for n in waiting if n.gain > least), key=lambda node: -node.gain)
            if not waiting:
                return chosen, []
            node = waiting[0]
            if not node.children:
                if len(chosen) == most - 1:  # what is below the last split does not matter
                    return [*chosen, node], []
                some = [n for n in waiting[: most - len(chosen)] if not n.children]
                return chosen, some
            chosen.append(node)
            waiting = waiting[1:] + node.children
        return chosen, []

    def _split(self, root, waiting):
        """Learn the children of some nodes: the sums of the lighter one, and what is left."""
        known = [node for node in _nodes(root) if node.children]
        # A tree of all that is known and the splits that wait may have more leaves than allowed.
        tree, numbers = self._written(root, [*known, *waiting])
        sides = [self._lighter(node) for node in waiting]
        leaves = [numbers[id(node)][side] for node, side in zip(waiting, sides, strict=True)]
        about = self._about(tree)
        n_bins = self.cuts.shape[1] + 1
        counts, residuals = self.pool.ask(SplitSums, *about, np.array(leaves, float), n_bins)
        for node, side, c, r in zip(waiting, sides, counts, residuals, strict=True):
            rest = np.maximum(node.counts - c, 0.0), node.residuals - r
            pair = [self._node(c, r), self._node(*rest)]
            node.children = pair if side == 0 else pair[::-1]

    @staticmethod
    def _lighter(node):
        left = node.counts[node.feature, : node.cut + 1].sum()
        return 0 if 2 * left <= node.counts[node.feature].sum() else 1

    def _written(self, root, nodes):
        """Array of a tree in which some nodes are split, parents first, and numbers of leaves.

        The numbers are those of the left and the right leaf of each node when it is split.
        """
        size = max(self.basis.max_leaf_nodes, len(nodes) + 1)
        tree, at, numbers = empty_tree(size), {id(root): 0}, {}
        for k, node in enumerate(nodes, 1):
            leaf = at[id(node)]
            tree[k, [LEAF, FEATURE]] = leaf, node.feature
            tree[k, THRESHOLD] = self.cuts[node.feature, node.cut]
            numbers[id(node)] = leaf, k
            for child, number in zip(node.children, (leaf, k), strict=False):
                at[id(child)] = number
        return tree, numbers

    def _node(self, counts, residuals):
        """A leaf and its best split."""
        c, s = counts.cumsum(axis=1)[:, :-1], residuals.cumsum(axis=1)[:, :-1]
        n, total = counts.sum(axis=1, keepdims=True), residuals.sum(axis=1, keepdims=True)
        least, l2 = self.least_rows - 1e-9, self.basis.l2_regularization
        allowed = (c >= least) & (n - c >= least)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = s**2 / (c + l2) + (total - s) ** 2 / (n - c + l2) - total**2 / (n + l2)
        gain = np.where(allowed, gain, -np.inf)
        feature, cut = np.unravel_index(gain.argmax(), gain.shape)
        return Node(counts, residuals, float(gain[feature, cut]), int(feature), int(cut), [])


def _nodes(node):
    """A node and all below it, parents first."""
    return [node, *(below for child in node.children for below in _nodes(child))]


def grown(pool, cuts, basis, options, seed=0):
    """Trees of the residuals of the clients.

    Parameters
    ----------
    pool, cuts, basis, options
        As of :class:`Booster`.
    seed : int, default=0
        Seed of the folds of the rows.

    Returns
    -------
    forest : Forest
    """
    about = cuts, basis, options
    if basis.n_trees != "auto":
        booster = Booster(pool, *about)
        with series("trees", "stage", basis.n_trees) as progress:
            while len(booster.trees) < basis.n_trees and not (booster.done or progress.stopped):
                with progress.item():
                    booster.stage(min(TREES_A_STAGE, basis.n_trees - len(booster.trees)))
        return _forest(booster, len(booster.trees))
    if not HeldOutLoss.can_judge(pool):
        return _forest(Booster(pool, *about), 0)
    judge = HeldOutLoss(pool, np.random.RandomState(seed), folds=FOLDS)
    lanes = [*judge.pools, pool.lane()]
    held = [*judge.held, None]
    boosters = _at_once(pool, [partial(Booster, lane, *about) for lane in lanes], lanes)

    path, weight = [], judge.weights.sum()
    with series("trees", "stage", MOST_TREES // TREES_A_STAGE) as progress:
        for n_trees in [0] + MOST_TREES // TREES_A_STAGE * [TREES_A_STAGE]:
            with progress.item():
                tasks = [
                    partial(_judged, *pair, n_trees) for pair in zip(boosters, held, strict=True)
                ]
                path.append(sum(_at_once(pool, tasks, lanes)))
            losses = np.sum(path, axis=1) / weight
            best, over = int(losses.argmin()), all(booster.done for booster in boosters[:-1])
            if progress.stopped or over or len(path) - 1 - best >= PATIENT_STAGES:
                break
    return _forest(boosters[-1], best * TREES_A_STAGE, losses, path[best])


def _judged(booster, held, n_trees):
    """Grow some trees; sums of the losses of rows held out, 0 without such rows."""
    if n_trees:
        booster.stage(n_trees)
    return 0.0 if held is None else booster.losses_on(held)


def _at_once(pool, tasks, lanes):
    """Results of tasks that do not wait for each other."""
    return list(together(tasks, lanes, pool.ledger))


def _forest(booster, n_trees, losses=(), totals=None):
    n_features = len(booster.cuts)
    gains = np.array(booster.gains[:n_trees]).reshape(-1, n_features)
    trees = booster.trees[:n_trees]
    return Forest(trees, gains, np.array(losses), totals, booster.cuts, booster.counts)
