"""Trees beside random coefficients, from sums over clients: gradient boosting of a mixed model.

Raw predictions of client i are ``D (theta + b_i) + T(x)``, ``b_i ~ N(0, Sigma)``.  Each tree is
grown by Newton's method where b_i is at the client's posterior mode, best leaf first, as by
scikit-learn's ``HistGradientBoostingRegressor`` and ``HistGradientBoostingClassifier``, and its
values follow by generalised least squares of the working response: of the targets under squared
error.  A round has a tree for each output, for each of several classes.  After some rounds theta,
Sigma and the noise are estimated anew.  Boosting with random effects in this way is GPBoost
(Sigrist 2022).
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
    padded,
)
from ..search.judges import HeldOutLoss, comparable
from .components import fit_population
from .em import evaluate, step
from .normal_equations import solve

# Rounds between two estimates of the variances, and two looks at the rows held out.
TREES_A_STAGE = 5
# Most rounds, and stages without a lower loss of the rows held out before the search ends; the
# first one where it gains nothing. Benchmark: benchmarks/real.py --methods "PP trees" --rows 10
# all --units raw --splits 1: of 148 fits with trees two tables gained later, by .5 and 2 %.
MOST_TREES, PATIENT_STAGES = 200, 4
# Folds of the rows, and how many of them judge.
FOLDS = 3, 2
# Leaves where max_leaf_nodes="auto", at least and at most, and the rounds after which they are a
# part of the rows: trees that still gain are too small. Benchmark: the same; storms .9555 and
# .960, restaurant (150 clients) .626 and .652, twelve tables level; after 100 rounds .9585, .649.
FEW_LEAVES, MANY_LEAVES, LARGER_AFTER = 8, 31, 50
# Exchanges of the fit of straight lines that trees begin with, and the gain a client that ends it.
START, START_TOL = 20, 1e-3
# Least gain of a split, in variances of the noise: less is rounding.
LEAST_GAIN = 1e-6
# Least sum of second derivatives of a leaf, as in scikit-learn, and the largest Newton step of its
# value, of a logit or a logarithm: farther a parabola says nothing of log loss and of counts.
LEAST_CURVATURE, MOST_STEP = 1e-3, 3.0
# Rows for each one of a leaf, where min_samples_leaf="auto", and the bounds of that number; and
# for each leaf of larger trees.
ROWS_A_LEAF, FEWEST, MOST = 60, 3, 20


@dataclass
class Forest:
    """Trees, and how they were found.

    Attributes
    ----------
    trees : ndarray of shape (n_rounds * n_outputs, max_leaf_nodes, 5)
        See ``skcfl.numerics.regression_trees``; of the units of the pool. Those of a round are of
        the outputs in turn.
    gains : ndarray of shape (n_rounds, n_features)
        Decrease of the sum of squares by the splits at a feature; of other losses twice that of
        the loss, where it is a parabola.
    losses : ndarray of shape (n_stages,)
        Mean loss of a row held out after each stage, from no tree on; empty for a given number.
    totals : ndarray of shape (n_clients,) or None
        Sum of the losses of each client's rows held out, with these trees.
    cuts : ndarray of shape (n_features, n_bins - 1)
        Ends of the bins.
    counts : ndarray of shape (n_features, n_bins)
        Weights of the rows in them.
    n_outputs : int
        Trees of a round.
    variance : float
        Variance of their error in a row that they were not grown on, of squared error; 0 for a
        given number.
    """

    trees: np.ndarray
    gains: np.ndarray
    losses: np.ndarray
    totals: np.ndarray | None
    cuts: np.ndarray
    counts: np.ndarray
    n_outputs: int = 1
    variance: float = 0.0

    @property
    def n_rounds(self):
        """Number of trees of each output."""
        return len(self.trees) // self.n_outputs

    def in_units(self, mean, scale):
        """The same of features x, where these trees are of ``(x - mean) / scale``."""
        cuts = mean[:, None] + scale[:, None] * self.cuts
        return replace(self, trees=in_units(self.trees, mean, scale), cuts=cuts)


@dataclass
class Node:
    """A leaf that may be split.

    Attributes
    ----------
    counts, slopes, curvatures : ndarray of shape (n_features, n_bins)
        Sums over its rows; curvatures are the counts under squared error.
    gain, feature, cut : float, int, int
        Its best split.
    children : list of Node
        The left and the right one, once they are known.
    """

    counts: np.ndarray
    slopes: np.ndarray
    curvatures: np.ndarray
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
        self.n_taken, self.gains = 0, []
        share = pool.client_weights.sum() // ROWS_A_LEAF
        self.most_leaves = int(np.clip(share, FEW_LEAVES, MANY_LEAVES))
        self.trees = no_trees(self.max_leaf_nodes)
        self.n_outputs, self.curved = pool.model.n_outputs, not pool.model.quadratic
        self.pool = pool.without_effects("without_trees", self.trees, cuts)
        least = basis.min_samples_leaf
        if least == "auto":
            least = np.clip(share, FEWEST, MOST)
        self.least_rows = float(least)
        self.counts = np.zeros((len(cuts), cuts.shape[1] + 1))
        #: Normal equations of the values of the last round's trees, by output.
        self.equations = []
        #: If True, no further tree has a split.
        self.done = False

    @property
    def n_rounds(self):
        """Rounds of trees so far."""
        return len(self.gains)

    @property
    def max_leaf_nodes(self):
        """Leaves of the next trees at most."""
        if self.basis.max_leaf_nodes != "auto":
            return self.basis.max_leaf_nodes
        return FEW_LEAVES if self.n_rounds < LARGER_AFTER else self.most_leaves

    def stage(self, n_rounds):
        """Grow some rounds of trees, then estimate what is beside them anew."""
        for _ in range(n_rounds):
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

    def _about(self, tree, output):
        """Arguments of the calls, with a tree of an output that grows."""
        means, root, _, dispersion, _ = self.population.arguments
        recent = self.trees[self.n_taken :]
        trees = np.concatenate([padded(recent, len(tree)), tree[None]])
        return means, root, dispersion, trees, output

    def grow(self):
        """Grow a tree of each output and append them; `done` is set if none has a split."""
        lanes = [self.pool.lane(remembers=False) for _ in range(self.n_outputs)]
        tasks = [partial(self._grown, *pair) for pair in enumerate(lanes)]
        found = together(tasks, lanes, self.pool.ledger)
        trees, gains, self.equations = zip(*found, strict=True)
        self.done = not np.any(gains)
        if not self.done:
            self.trees = np.concatenate([padded(self.trees, len(trees[0])), trees])
            self.gains.append(sum(gains))

    def _grown(self, output, pool):
        """The next tree of an output, its gains by feature and the equations of its values."""
        tree, gains = self._structure(output, pool)
        if not gains.any():
            return tree, gains, (np.ones((1, 1)), np.zeros(1))
        n_leaves = 1 + int((tree[:, LEAF] >= 0).sum())
        about = self._about(tree, output)
        products, slopes, weights = pool.ask(LeafSums, *about, n_leaves)
        products[np.diag_indices(n_leaves)] += self.basis.l2_regularization
        values = solve(products, slopes)
        if self.curved:
            values = np.clip(values, -MOST_STEP, MOST_STEP)
        tree[:n_leaves, VALUE] = self.basis.learning_rate * values
        tree[:n_leaves, WEIGHT] = weights
        return tree, gains, (products, slopes)

    def _sums(self, pool, tree, output, leaves):
        """Counts, slopes and curvatures of some leaves of a tree, by feature and bin."""
        about = *self._about(tree, output), np.array(leaves, float), self.cuts.shape[1] + 1
        counts, slopes, curvatures = pool.ask(SplitSums, *about, self.curved)
        return list(zip(counts, slopes, curvatures if self.curved else counts, strict=True))

    def _structure(self, output, pool):
        """Splits of the next tree of an output, best leaf first, and their gains by feature."""
        most = self.max_leaf_nodes
        (sums,) = self._sums(pool, empty_tree(most), output, [0])
        self.counts = sums[0]
        root, known = self._node(*sums), []
        while True:
            chosen, waiting = self._best_first(root)
            if not waiting:
                break
            self._split(root, known, waiting, output, pool)
            known += waiting
        gains = np.zeros(len(self.cuts))
        for node in chosen:
            gains[node.feature] += node.gain
        return self._written(root, chosen)[0], gains

    def _best_first(self, root):
        """Nodes that are split, in order, and those with children that have to be known for more.

        Leaves that may be next after an unknown one are asked for with it.
        """
        most, chosen, waiting = self.max_leaf_nodes - 1, [], [root]
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

    def _split(self, root, known, waiting, output, pool):
        """Learn the children of some nodes: the sums of the lighter one, and what is left.

        Those that are known stay in their order: clients have their leaves from the last call.
        """
        # A tree of all that is known and the splits that wait may have more leaves than allowed.
        tree, numbers = self._written(root, [*known, *waiting])
        sides = [self._lighter(node) for node in waiting]
        leaves = [numbers[id(node)][side] for node, side in zip(waiting, sides, strict=True)]
        found = self._sums(pool, tree, output, leaves)
        for node, side, (counts, slopes, curvatures) in zip(waiting, sides, found, strict=True):
            rest = (
                np.maximum(node.counts - counts, 0.0),
                node.slopes - slopes,
                np.maximum(node.curvatures - curvatures, 0.0),
            )
            pair = [self._node(counts, slopes, curvatures), self._node(*rest)]
            node.children = pair if side == 0 else pair[::-1]

    @staticmethod
    def _lighter(node):
        left = node.counts[node.feature, : node.cut + 1].sum()
        return 0 if 2 * left <= node.counts[node.feature].sum() else 1

    def _written(self, root, nodes):
        """Array of a tree in which some nodes are split, parents first, and numbers of leaves.

        The numbers are those of the left and the right leaf of each node when it is split.
        """
        size = max(self.max_leaf_nodes, len(nodes) + 1)
        tree, at, numbers = empty_tree(size), {id(root): 0}, {}
        for k, node in enumerate(nodes, 1):
            leaf = at[id(node)]
            tree[k, [LEAF, FEATURE]] = leaf, node.feature
            tree[k, THRESHOLD] = self.cuts[node.feature, node.cut]
            numbers[id(node)] = leaf, k
            for child, number in zip(node.children, (leaf, k), strict=False):
                at[id(child)] = number
        return tree, numbers

    def _node(self, counts, slopes, curvatures):
        """A leaf and its best split."""
        c, s, h = (sums.cumsum(axis=1)[:, :-1] for sums in (counts, slopes, curvatures))
        n, total, curved = (
            sums.sum(axis=1, keepdims=True) for sums in (counts, slopes, curvatures)
        )
        least, l2 = self.least_rows - 1e-9, self.basis.l2_regularization
        allowed = (c >= least) & (n - c >= least)
        allowed &= (h >= LEAST_CURVATURE) & (curved - h >= LEAST_CURVATURE)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = s**2 / (h + l2) + (total - s) ** 2 / (curved - h + l2)
            gain = gain - total**2 / (curved + l2)
        gain = np.where(allowed, gain, -np.inf)
        feature, cut = np.unravel_index(gain.argmax(), gain.shape)
        best = float(gain[feature, cut]), int(feature), int(cut)
        return Node(counts, slopes, curvatures, *best, [])


def grown(pool, cuts, basis, options):
    """Trees of what the clients' own coefficients leave.

    Parameters
    ----------
    pool, cuts, basis, options
        As of :class:`Booster`.

    Returns
    -------
    forest : Forest
    """
    about = cuts, basis, options
    if basis.n_trees != "auto":
        booster = Booster(pool, *about)
        most = -(-basis.n_trees // TREES_A_STAGE)
        with series("trees", "stage", most, sure=False) as progress:
            while booster.n_rounds < basis.n_trees and not (booster.done or progress.stopped):
                with progress.item():
                    booster.stage(min(TREES_A_STAGE, basis.n_trees - booster.n_rounds))
        return _forest(booster, booster.n_rounds)
    if not HeldOutLoss.can_judge(pool):
        return _forest(Booster(pool, *about), 0)
    # The same folds as those of the forms that trees compete with.
    judge = HeldOutLoss(pool, np.random.RandomState(0), folds=FOLDS)
    lanes = [*judge.pools, pool.lane()]
    held = [*judge.held, None]
    begun = [partial(Booster, lane, *about) for lane in lanes]
    boosters = list(together(begun, lanes, pool.ledger))
    path, left = [], []
    # The first stage judges straight lines.
    stages = [0] + MOST_TREES // TREES_A_STAGE * [TREES_A_STAGE]
    with series("trees", "stage", len(stages), sure=False) as progress:
        for n_rounds in stages:
            with progress.item():
                tasks = [
                    partial(_judged, *pair, n_rounds) for pair in zip(boosters, held, strict=True)
                ]
                path.append(sum(together(tasks, lanes, pool.ledger)))
            left.append(np.mean([booster.population.dispersion for booster in boosters[:-1]]))
            totals, weights = comparable(np.array(path), judge.weights)
            losses = np.sum(totals, axis=1) / weights.sum()
            losses = np.where(np.isfinite(losses), losses, np.inf)
            best, over = int(losses.argmin()), all(booster.done for booster in boosters[:-1])
            waiting = len(path) - 1 - best
            if progress.stopped or over or waiting >= (PATIENT_STAGES if best else 1):
                break
    # Squares that clients' rows held out have beyond the noise, as far as they grew by trees.
    beyond = 2.0 * losses[[0, best]] - np.array(left)[[0, best]]
    variance = max(float(beyond[1] - beyond[0] * left[best] / left[0]), 0.0)
    return _forest(boosters[-1], best * TREES_A_STAGE, losses, path[best], variance)


def _judged(booster, held, n_rounds):
    """Grow some rounds of trees; sums of the losses of rows held out, 0 without such rows."""
    if n_rounds:
        booster.stage(n_rounds)
    return 0.0 if held is None else booster.losses_on(held)


def _forest(booster, n_rounds, losses=(), totals=None, variance=0.0):
    n_features, C = len(booster.cuts), booster.n_outputs
    gains = np.array(booster.gains[:n_rounds]).reshape(-1, n_features)
    trees = booster.trees[: n_rounds * C]
    about = np.array(losses), totals, booster.cuts, booster.counts, C, variance
    return Forest(trees, gains, *about)
