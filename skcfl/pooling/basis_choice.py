"""Cheap looks at what straight lines leave, before curves and trees are fitted and judged.

Both looks are at the population that was fitted to straight lines.  Curves are refused by a score
test: one exchange about their columns says what coefficients and variances of their own would
gain.  Trees are refused if the first one, grown on a half of each client's rows, explains nothing
of the other half, where the loss is as a parabola.
"""

from functools import partial

import numpy as np
from scipy.stats import chi2

from ..calls.posteriors_asked import PosteriorSums
from ..calls.trees_asked import LeafSums
from ..federation.lanes import together
from ..numerics.regression_trees import LEAF
from .boosting import Booster
from .criteria import n_free
from .normal_equations import solve

# Largest p-value of a curve that clients share, and least z-score of the variance of curves of
# their own, at which curves compete. Benchmark: benchmarks/basis.py.
LARGEST_P, LEAST_Z = 0.05, 2.0
# Standard deviation of a bend, as a part of that of the noise, at which variances are looked at.
SMALL = 0.03
# Bins of a look at trees.
LOOK_BINS = 16
# Part of its least-squares values that the first tree has, the least gain of twice the
# log-likelihood of the halves, and the leaves of the trees that are tried, all where there are
# none. Benchmark: benchmarks/basis.py.
LOOK_RATE, LEAST_GAIN = 0.5, 4.0
# The same but for squared error: a row of a class or a count says less. They are of mlc_churn, of
# ten rows a client, and fourteen generated linear populations of two classes: looks let trees
# compete on 4 of 4 splits of the one and on 2 of the others.
OTHER_RATE, OTHER_GAIN, OTHER_LEAVES = 0.3, 1.0, (4, 8)


def may_be_curved(pool, population, is_curve):
    """Whether curves may be better than straight lines.

    Parameters
    ----------
    pool : ClientPool
        The clients, with the columns of the curves.
    population : Population
        Fitted to the other columns, one cluster.
    is_curve : ndarray of shape (n_features,) of bool
        Which columns are parts of curves.

    Returns
    -------
    may_be : bool
    """
    outputs = pool.model.n_outputs
    straight = np.append(~is_curve, np.ones(int(pool.model.fit_intercept), dtype=bool))
    straight = np.tile(straight, outputs)
    means = np.zeros((1, len(straight)))
    root = np.full(len(straight), SMALL * np.sqrt(population.dispersion))
    means[:, straight], root[straight] = population.means, population.root
    sums = pool.ask(PosteriorSums, means, root, np.ones(1), population.dispersion)
    precision = np.zeros(len(straight))
    precision[straight] = population.precision[0]
    A = sums["curvature"][0] + np.diag(precision)
    g = sums["slopes"][0] - precision * means[0]
    lines = g[straight] @ solve(A[np.ix_(straight, straight)], g[straight])
    gain = g @ solve(A, g) - lines
    if chi2.sf(gain, n_free(pool, ~straight)) < LARGEST_P:
        return True
    # Derivatives in the variances; theirs are as if all clients had the same information.
    n = float(sums["counts"].sum())
    excess = (sums["squares"][0][~straight] - n).sum() / root[~straight][0] ** 2
    each = sums["curvature"][0][np.ix_(~straight, ~straight)] / max(n, 1.0)
    return bool(excess > LEAST_Z * np.sqrt(2.0 * n * (each**2).sum()))


def may_have_trees(pool, population, cuts, basis, options):
    """Whether trees may be better than straight lines.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    population : Population
        Fitted to straight lines, one cluster.
    cuts, basis, options
        As of :class:`~skcfl.pooling.boosting.Booster`.

    Returns
    -------
    may_have : bool
    """
    halves = pool.deal_folds(2, np.random.RandomState(0))
    lanes = [train.lane() for train, _ in halves]
    means, root, _, dispersion, _ = population.arguments
    exact = pool.model.quadratic
    rate, least = (LOOK_RATE, LEAST_GAIN) if exact else (OTHER_RATE, OTHER_GAIN)
    sizes = np.array([basis.max_leaf_nodes, *(() if exact else OTHER_LEAVES)])

    def gains(train, held):
        """Twice the gains of trees of some sizes, all but the first pruned."""
        booster = Booster(train, cuts, basis, options, population=population)
        booster.grow()
        total, held = np.zeros(len(sizes)), held.lane()
        held.ledger = train.ledger
        if booster.done:
            return total
        for output, tree in enumerate(booster.trees):
            fitted, n_leaves = booster.equations[output], len(booster.equations[output][1])
            known = means, root, dispersion, tree[None], output, n_leaves
            products, slopes, _ = held.ask(LeafSums, *known)
            for k, size in enumerate(sizes):
                merged = _merged(tree, n_leaves, size)
                P, g = merged @ fitted[0] @ merged.T, merged @ fitted[1]
                values = rate * solve(P, g) @ merged
                total[k] += 2.0 * values @ slopes - values @ products @ values
        return total

    tasks = [partial(gains, lane, held) for lane, (_, held) in zip(lanes, halves, strict=True)]
    found = sum(together(tasks, lanes, pool.ledger))
    return bool(found.max() > least * dispersion)


def _merged(tree, n_leaves, size):
    """Which of its first leaves (at most `size` of them) those of a tree are in, as a matrix.

    A tree grows best leaf first, so that its first splits are a smaller tree.
    """
    at = np.arange(n_leaves)
    for k in range(size, n_leaves):
        at[k] = at[int(tree[k, LEAF])]
    return (np.arange(min(size, n_leaves))[:, None] == at).astype(float)
