"""Cheap looks at what straight lines leave, before curves and trees are fitted and judged.

Both looks are at the population that was fitted to straight lines.  Curves are refused by a score
test: one exchange about their columns says what coefficients and variances of their own would
gain.  Trees are refused if the first one, grown on a half of each client's rows, explains nothing
of the other half.
"""

from functools import partial

import numpy as np
from scipy.stats import chi2

from ..calls.posteriors_asked import PosteriorSums
from ..calls.trees_asked import LeafSums
from ..federation.lanes import together
from ..numerics.regression_trees import LEAF, VALUE
from .boosting import Booster
from .normal_equations import solve

# Largest p-value of a curve that clients share, and least z-score of the variance of curves of
# their own, at which curves compete. Benchmark: benchmarks/basis.py.
LARGEST_P, LEAST_Z = 0.05, 2.0
# Standard deviation of a bend, as a part of that of the noise, at which variances are looked at.
SMALL = 0.03
# Bins of a look at trees, and part of its least-squares values that the first tree has.
LOOK_BINS, LOOK_RATE = 16, 0.5
# Least gain of twice the log-likelihood of the halves. Benchmark: benchmarks/basis.py.
LEAST_GAIN = 4.0


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
    straight = np.append(~is_curve, [True] * bool(pool.model.fit_intercept))
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
    if chi2.sf(gain, np.count_nonzero(~straight)) < LARGEST_P:
        return True
    # Derivatives in the variances; theirs are as if all clients had the same information.
    n = float(sums["counts"].sum())
    excess = (sums["squares"][0][~straight] - n).sum() / root[~straight][0] ** 2
    each = sums["curvature"][0][np.ix_(~straight, ~straight)] / max(n, 1.0)
    return bool(excess > LEAST_Z * np.sqrt(2.0 * n * (each**2).sum()))


def may_have_trees(pool, population, cuts, basis, options, seed=0):
    """Whether trees may be better than straight lines.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    population : Population
        Fitted to straight lines, one cluster.
    cuts, basis, options
        As of :class:`~skcfl.pooling.boosting.Booster`.
    seed : int, default=0
        Seed of the halves.

    Returns
    -------
    may_have : bool
    """
    halves = pool.deal_folds(2, np.random.RandomState(seed))
    lanes = [train.lane() for train, _ in halves]

    def gain(train, held):
        booster = Booster(train, cuts, basis, options, population=population)
        booster.grow()
        if booster.done:
            return 0.0
        tree, held = booster.trees[0].copy(), held.lane()
        held.ledger = train.ledger
        n_leaves = 1 + int((tree[:, LEAF] >= 0).sum())
        values = LOOK_RATE / basis.learning_rate * tree[:n_leaves, VALUE]
        means, root, _, dispersion, _ = population.arguments
        known = means, root, dispersion, tree[None], n_leaves
        products, slopes, _ = held.ask(LeafSums, *known)
        return float(2.0 * values @ slopes - values @ products @ values)

    tasks = [partial(gain, lane, held) for lane, (_, held) in zip(lanes, halves, strict=True)]
    found = sum(together(tasks, lanes, pool.ledger))
    return found > LEAST_GAIN * population.dispersion
