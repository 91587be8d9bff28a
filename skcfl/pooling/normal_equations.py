"""Normal equations of the clusters' means: generalised least squares and its errors.

Where clients send curvatures as matrices they are solved; of wide models clients send the
diagonals, and their products with vectors when they are asked (conjugate gradients).
"""

import numpy as np

from ..calls.posteriors_asked import PosteriorProducts

# Singular values of a system of normal equations that count as zero.
SINGULAR = 1e-12
# Most steps of the priors' variances, and the relative change at which they end.
PRIOR_STEPS, PRIOR_TOL = 100, 1e-4
# Least variance of a prior, in units of the mean error variance of the slopes without it.
# Benchmark: benchmarks/real.py, on six tables that end there .01 and .05 predict worse.
LEAST_PRIOR = 0.2
# Relative accuracy of conjugate gradients, in the norm of their preconditioner.
CG_TOL = 1e-4
# Largest number of steps of conjugate gradients.
CG_STEPS = 100
# Vectors of signs by which the errors of wide means are estimated; of fewer parameters exactly.
PROBES = 8


def is_lean(sums):
    """Whether of the curvatures only diagonals are known."""
    return sums["curvature"].ndim == 2


def newton_means(pool, population, sums):
    """Means by generalised least squares."""
    slopes = sums["slopes"] - population.precision * population.means
    if is_lean(sums):
        return population.means + _solve_lean(pool, population, sums, slopes[:, None])[:, 0]
    steps = np.empty_like(population.means)
    for some, place in _together(population):
        b = np.bincount(place.ravel(), slopes[some].ravel())
        steps[some] = solve(_system(population, sums, some, place), b)[place]
    return population.means + steps


def mean_covariances(population, sums):
    """Covariances of the means, given all else, (K, p, p)."""
    out = []
    for some, place in _together(population):
        inverse = inverse_of(_system(population, sums, some, place))
        out += [inverse[np.ix_(at, at)] for at in place]
    return np.array(out)


def mean_variances(pool, population, sums):
    """Their diagonals, (K, p), of parameters that have a prior.

    Of wide models they are unbiased estimates, sums of which are accurate.  Probes of free
    parameters would not be: intercepts of classes have no least-norm solution.
    """
    if not is_lean(sums):
        return np.einsum("kpp->kp", mean_covariances(population, sums))
    K, p = population.means.shape
    if p <= PROBES:
        probes = np.eye(p)
    else:
        # The same for all clusters, whose shared parameters are one.
        probes = np.where(np.random.RandomState(0).uniform(size=(PROBES, p)) < 0.5, -1.0, 1.0)
    every = np.broadcast_to(np.where(population.free, 0.0, probes), (K, *probes.shape))
    solved = _solve_lean(pool, population, sums, every, gathered=True)
    return (probes * solved).sum(axis=1) / (1 if p <= PROBES else PROBES)


def degrees_of_freedom(population, variances):
    """Number of the means' parameters that the rows determine and not their prior."""
    K = population.n_clusters
    share = 1.0 - np.clip(population.precision * variances, 0.0, 1.0)
    # Of shared parameters each cluster has its part of the prior.
    share[:, ~population.varying] = 1.0 / K - (1.0 - share[:, ~population.varying])
    return float(np.maximum(share, 0.0).sum())


def next_prior(population, sums, variances, far):
    """Variances of the priors (K,) by a step of empirical Bayes, given those of the means' errors.

    A `far` step is MacKay's (1992), of one cluster; others are EM's.
    """
    slopes = ~population.free
    squares = (population.means**2)[:, slopes]
    if not far:
        return (squares + variances[:, slopes]).mean(axis=1)
    prior, known = population.prior, sums["curvature"][:, slopes]
    number = np.clip(1.0 - variances[:, slopes] / prior, 0.0, 1.0).sum()
    return np.maximum(squares.sum() / max(number, SINGULAR), _least_prior(prior, known))


def _least_prior(prior, known):
    """The variance that a prior does not fall below, of the curvatures without it."""
    return np.minimum(prior, LEAST_PRIOR / max(known.mean(), 1e-300))


def explaining_prior(population, sums):
    """Variance of the prior under which the mean of one cluster is most likely, (1,).

    All else as it is, by MacKay's (1992) fixed point: the mean's sum of squares over the number
    of its slopes that the rows determine.  It does not fall below a variance under which they
    determine next to nothing: where the best prior has no variance, steps only approach it.
    """
    free, slopes = population.free, ~population.free
    H = sums["curvature"][0]
    b = sums["slopes"][0] + H @ population.means[0]
    cross = H[np.ix_(free, slopes)]
    # Without the free parameters, which are best for each value of the others.
    taken = inverse_of(H[np.ix_(free, free)]) @ np.c_[cross, b[free]]
    known, vectors = np.linalg.eigh(H[np.ix_(slopes, slopes)] - cross.T @ taken[:, :-1])
    pull = vectors.T @ (b[slopes] - cross.T @ taken[:, -1])
    # The rows pull the mean only in directions that they know.
    determined = known > SINGULAR * max(known[-1], 1e-300)
    known, pull = known * determined, pull * determined
    prior = population.prior[0]
    least = _least_prior(prior, known)
    for _ in range(PRIOR_STEPS):
        size = np.maximum(known + 1.0 / prior, 1e-300)
        number = max(float((known / size).sum()), SINGULAR)
        last, prior = prior, max(float(((pull / size) ** 2).sum()) / number, least)
        if abs(np.log(prior / last)) <= PRIOR_TOL:
            break
    return np.array([prior])


def whitening(population, sums):
    """Moves of all means (K p, m) by which the log-likelihood curves by one, or nearly."""
    K, p = population.means.shape
    columns = []
    for some, place in _together(population):
        A, size = _scaled(_system(population, sums, some, place))
        values, vectors = np.linalg.eigh(A)
        kept = values > SINGULAR * max(values[-1], 1e-300)
        moves = vectors[:, kept] / np.sqrt(values[kept]) / size[:, None]
        whole = np.zeros((K, p, moves.shape[1]))
        whole[some] = moves[place]
        columns.append(whole.reshape(K * p, -1))
    return np.concatenate(columns, axis=1)


def _together(population):
    """Places of each cluster's means in the systems that are solved together.

    Yields arrays (k, p) of k clusters: one at a time, all where some parameters are shared.
    """
    K, p = population.means.shape
    shared = ~population.varying
    if K == 1 or not shared.any():
        for k in range(K):
            yield slice(k, k + 1), np.arange(p)[None]
        return
    place = np.empty((K, p), dtype=int)
    place[:, shared] = np.arange(np.count_nonzero(shared))
    place[:, ~shared] = place[0, shared].size + np.arange((K * ~shared).sum()).reshape(K, -1)
    yield slice(0, K), place


def _system(population, sums, some, place):
    """Matrix of the normal equations of some clusters' means."""
    A = np.zeros((place.max() + 1,) * 2)
    for at, P, prior in zip(
        place, sums["curvature"][some], population.precision[some], strict=True
    ):
        A[np.ix_(at, at)] += P + np.diag(prior)
    return A


def _scaled(A):
    """A positive semi-definite matrix with a diagonal of ones, and its sizes before."""
    size = np.sqrt(np.maximum(np.diag(A), 0.0))
    size = np.where(size > 0, size, 1.0)
    return A / (size[:, None] * size), size


def solve(A, b):
    """Least-norm solution of a positive semi-definite system in unlike units."""
    A, size = _scaled(A)
    values, vectors = np.linalg.eigh(A)
    inverse = np.where(values > SINGULAR * values.max(initial=1e-300), 1.0, 0.0)
    inverse = np.divide(inverse, values, out=np.zeros_like(values), where=inverse > 0)
    return vectors @ (inverse * (vectors.T @ (b / size))) / size


def inverse_of(A):
    """Pseudo-inverse of a positive semi-definite matrix in unlike units."""
    A, size = _scaled(A)
    inverse = np.linalg.pinv(A, rcond=SINGULAR, hermitian=True)
    return inverse / (size[:, None] * size)


def _solve_lean(pool, population, sums, b, gathered=False):
    """Solutions of the normal equations with right-hand sides (K, m, p), by conjugate gradients.

    Shared parameters are in every cluster's vectors, with the same values; `gathered` says that
    their right-hand sides are, else they are summed over the clusters.
    """
    shared = ~population.varying if len(b) > 1 else np.zeros(b.shape[2], dtype=bool)

    def gather(v):
        if shared.any():
            v = v.copy()
            v[..., shared] = v[..., shared].sum(axis=0)
        return v

    def dot(u, v):
        if shared.any():
            u = np.where(shared, u / len(u), u)
            return np.einsum("kmp,kmp->m", u, v)[None, :, None]
        return np.einsum("kmp,kmp->km", u, v)[:, :, None]

    prior = population.precision[:, None]
    diagonal = gather(sums["curvature"][:, None] + prior)
    diagonal = np.where(diagonal > 0, diagonal, 1.0)
    x, r = np.zeros_like(b), np.array(b if gathered else gather(b))
    z = r / diagonal
    move, size = z, dot(r, z)
    least = CG_TOL**2 * size
    for _ in range(CG_STEPS):
        going = size > least
        if not going.any():
            break
        product = pool.ask(PosteriorProducts, *population.arguments, np.where(going, move, 0.0))
        product = gather(product + prior * np.where(going, move, 0.0))
        curved = dot(move, product)
        going &= curved > 0
        length = np.divide(size, curved, out=np.zeros_like(size), where=going)
        x = x + length * move
        r = r - length * product
        z = r / diagonal
        last, size = size, np.where(going, dot(r, z), 0.0)
        move = z + np.divide(size, last, out=np.zeros_like(size), where=last > 0) * move
    return x
