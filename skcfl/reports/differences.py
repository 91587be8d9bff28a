r"""Do clients differ?  A score test from sums over the clients, and from draws.

If one model ``theta`` is right for all clients of a cluster, the rows' gradients at ``theta`` have
mean zero whoever owns them, and the clients' scores ``s_i``, their sums, are as large as chance
makes them.  Two statistics are

    sum_j  Q_j / mean(Q_j),   max_j  (Q_j - mean(Q_j)) / std(Q_j),   Q_j = sum_i s_ij^2,

with means and deviations over the draws: one for differences in all coefficients, one for
differences in few.  The test takes the one that is rarer, and the same in each draw.  Drawn scores
are normal, with the covariances that the rows' gradients show, and the square of each parameter's
varies as that of a sum of rows with random signs (a wild bootstrap): rows are assumed to be
independent, and nothing else about the noise.  Given the draws the models move as they would have
been fitted to them, by ``moves = inverse sum_i s_i``.  If clients have few rows and the loss is
squared error, scores are drawn as of normal noise of one size, and Q is divided by the scatter of
the rows, which makes the test exact for such noise.  With intercepts that may differ, each
client's intercept is projected out first.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata
from sklearn.utils import check_random_state

from ..calls.descriptions import FeatureSums
from ..calls.differences_asked import ScoreDraws, ScoreSums

# Draws, and the product of rows and parameters above which there are fewer.
MANY_DRAWS, FEW_DRAWS, LARGE = 511, 255, 5e5
# Newton steps to the common models, the relative gain at which they end, and halvings.
MAX_STEPS, GAIN, HALVINGS = 30, 1e-10, 30
# Most clients with drawn scores; a sample of more: more clients show smaller differences than
# matter. Draws take half the time of a fit of 2000 clients.
MOST_DRAWN = 500
# Rows of a client, in the middle and for each parameter, below which noise of one size is drawn.
# With four, where noise depends on a feature .7 of 80 tables without differences had p < .05.
FEW_ROWS = 2.0
# Digits of statistics that are no rounding.
DIGITS = 9
# Singular values of curvatures below this part of the largest are rounding.
SINGULAR = 1e-10
# Variances of a feature below this part of its squared mean are rounding.
CONSTANT = 1e-13


@dataclass
class DifferenceTest:
    """Outcome of a test of no difference.

    Attributes
    ----------
    p_value : float
        Probability of differences as large by chance.
    ratio : float
        The statistic as a part of its expectation by chance: 1 where nothing differs.
    n_draws : int
        Draws; no p-value is less than ``1 / (n_draws + 1)``.
    n_clients : int
        Clients that were compared.
    n_odd : int
        Rows with weights that are no whole numbers.
    one_size : bool
        Whether the rows are too few to show their noise, which is taken to be of one size.
    """

    p_value: float
    ratio: float
    n_draws: int
    n_clients: int
    n_odd: int = 0
    one_size: bool = False


@dataclass
class CommonModels:
    """Models that clients of a cluster have in common, with bounds of their errors.

    Attributes
    ----------
    theta : ndarray of shape (K, p)
        The models, in the units of the pool.
    curvature : ndarray of shape (K, p, p)
        Second derivatives of the sums of the rows' losses.
    by_rows, by_clients : ndarray of shape (K, p, p)
        Covariances of the errors, where rows are independent, and where clients are.
    test : DifferenceTest
        Test of no difference inside the clusters.
    """

    theta: np.ndarray
    curvature: np.ndarray
    by_rows: np.ndarray
    by_clients: np.ndarray
    test: DifferenceTest


def common_models(pool, start, labels, counted, within=False):
    """Fit the model of each cluster, and test whether clients inside differ.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    start : ndarray of shape (K, n_params)
        Models to begin with.
    labels : ndarray of shape (n_clients,)
        Clusters.
    counted : ndarray of shape (n_clients,) of bool
        Clients that take part.
    within : bool, default=False
        If True, intercepts may differ between clients, and the others are tested.

    Returns
    -------
    models : CommonModels
    """
    test, about = None, {"counted": counted, "within": within}
    theta = np.array(start, dtype=float)
    about["frame"], back = _frame(pool, counted)
    theta, curvature = _fitted(pool, theta, labels, back, about)
    if counted.sum() > MOST_DRAWN:
        test = differences(pool, theta, labels, counted, within)
    inverse = np.linalg.pinv(curvature, SINGULAR, hermitian=True)
    large = pool.n_samples * pool.n_params > LARGE
    n_draws = FEW_DRAWS if large else MANY_DRAWS
    about["n_draws"] = 0 if test else n_draws
    few = _typical_rows(pool) < FEW_ROWS * pool.n_params
    about["normal"] = bool(pool.model.quadratic and few)
    sums, _, _, rows, scatter, _ = pool.ask(ScoreDraws, theta, labels, inverse, **about)
    moves = np.matmul(inverse, sums)
    _, squares, meat, _, _, odd = pool.ask(ScoreDraws, theta, labels, inverse, moves, **about)
    if about["normal"]:
        scatter = scatter - np.einsum("kpm,kpm->m", sums, moves)
        # Without a degree of freedom nothing is left to compare with.
        least = SINGULAR * scatter.mean()
        squares = squares / scatter if scatter.min() > least else np.zeros_like(squares)
    n_clients = int((counted & ~pool.without_rows).sum())
    sizes = np.bincount(labels[counted & ~pool.without_rows], minlength=len(theta))
    # Few clients: the sum of so many scores that add up to zero.
    share = (sizes / np.maximum(sizes - 1, 1))[:, None, None]
    forth = np.linalg.inv(back)
    return CommonModels(
        theta + moves[:, :, 0] @ back.T,
        forth.T @ curvature @ forth,
        _covariances(back @ inverse, rows),
        share * _covariances(back @ inverse, meat),
        test
        or replace(_test(squares, n_clients), n_odd=round(float(odd)), one_size=about["normal"]),
    )


def _typical_rows(pool):
    """Rows of a client in the middle; one with a weight that is a whole number is so many."""
    weights, sizes = pool.row_weights, pool.client_sizes
    rows = weights if (weights == np.rint(weights)).all() else sizes
    return np.median(rows[~pool.without_rows])


def centre_of(pool, counted):
    """Mean row and standard deviations of the columns of the design, over the rows of clients.

    A feature that is the same number in all rows is the intercept of a model without one: its
    size takes the place of its standard deviation.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    counted : ndarray of shape (n_clients,) of bool
        Clients that take part.

    Returns
    -------
    centre, spread : ndarray of shape (n_columns,)
        Units are those of the pool; the intercept has 1 and 1.
    """
    weight, sums, squares = pool.ask(FeatureSums, counted)
    centre = sums / weight
    variance = squares / weight - centre**2
    constant = variance <= CONSTANT * centre**2
    spread = np.sqrt(np.where(constant, 0.0, variance))
    if pool.model.fit_intercept:
        return np.append(centre, 1.0), np.append(spread, 1.0)
    return centre, np.where(constant, np.abs(centre), spread)


def centred(model, centre, spread):
    """Matrix (p, p) of effects at the mean row and a standard deviation away, of parameters."""
    return np.kron(np.eye(model.n_outputs), _of_one_output(model, centre, spread))


def _of_one_output(model, centre, spread):
    own = np.diag(spread)
    if model.fit_intercept:
        own[-1] = centre
    return own


def _covariances(inverse, meat):
    """``inverse meat inverse`` as squares, so that rounding makes no variance negative."""
    values, vectors = np.linalg.eigh(meat)
    half = np.matmul(inverse, vectors) * np.sqrt(np.maximum(values, 0.0))[:, None]
    return np.matmul(half, half.transpose(0, 2, 1))


def differences(pool, start, labels, counted, within=False):
    """Test whether clients inside the clusters differ, of a sample if they are many.

    Parameters
    ----------
    pool, start, labels, counted, within
        As of :func:`common_models`.

    Returns
    -------
    test : DifferenceTest
    """
    (places,) = np.nonzero(counted)
    if len(places) > MOST_DRAWN:
        places = np.sort(check_random_state(0).choice(places, MOST_DRAWN, replace=False))
        pool, labels, counted = pool.subset(places), labels[places], counted[places]
    return common_models(pool, start, labels, counted, within).test


def _test(squares, n_clients):
    """Test from sums of squares (p, m) of observed scores, which are first, and of drawn ones."""
    chance = squares.mean(axis=1)
    known = chance > SINGULAR * chance.max(initial=0.0)
    n_draws = squares.shape[1] - 1
    if not known.any() or n_clients < 2:
        return DifferenceTest(np.nan, np.nan, n_draws, n_clients)
    parts = squares[known] / chance[known, None]
    spread = parts.std(axis=1, keepdims=True)
    # Squares of clients of one row, and others that are rounding, never change.
    parts, spread = np.round(parts, DIGITS), np.maximum(spread, SINGULAR)
    total, largest = parts.sum(axis=0), ((parts - 1.0) / spread).max(axis=0)
    rarer = np.minimum(_rarity(total), _rarity(largest))
    ratio = total[0] / max(total[1:].mean(), 1e-300)
    return DifferenceTest(float((rarer <= rarer[0]).mean()), float(ratio), n_draws, n_clients)


def _rarity(values):
    """Share of the values that are as large as each of them."""
    return rankdata(-values, method="max") / len(values)


def _frame(pool, counted):
    """What standardises features in units of their own or None, and the matrix back to the pool's.

    Else intercepts, far away from the rows, would take up what the slopes differ in.
    """
    model, frame = pool.model, None
    if pool.scaling is None and model.n_features:
        centre, spread = centre_of(pool, counted)
        spread = np.where(spread > 0, spread, 1.0)
        frame = np.linalg.inv(_of_one_output(model, centre, spread))
    back = np.eye(model.n_columns) if frame is None else frame
    return frame, np.kron(np.eye(model.n_outputs), back)


def leave_one_out_models(pool, start, labels, counted, pooled, rows):
    """Models of the clusters under a prior of one row, and roots of their errors' covariances.

    The prior has the model of all clients and the curvature of one mean row of theirs: a
    unit-information prior (Kass and Wasserman 1995).  A cluster that is not `counted`, of one
    client, has the curvature of as many mean rows as the client has: its own would show them.

    Parameters
    ----------
    pool, start, labels, counted
        As of :func:`common_models`.
    pooled : CommonModels
        The model of all clients.
    rows : ndarray of shape (n_clients,)
        Number of rows of each client, zero if it does not count.

    Returns
    -------
    theta : ndarray of shape (K + 1, n_params)
        The last model is that of a cluster without clients.
    roots : ndarray of shape (K + 1, n_params, n_params)
        See :class:`~skcfl.calls.curvatures.ErrorsOfModels`.
    """
    frame, back = _frame(pool, counted)
    about = {"counted": counted, "within": False, "frame": frame}
    unit = back.T @ pooled.curvature[0] @ back / rows.sum()
    prior, K = (pooled.theta[0], unit), len(start)
    theta, curvature = _fitted(pool, start, labels, back, about, prior)
    of_rows = np.bincount(labels, rows, minlength=K)[:, None]
    single = np.bincount(labels[counted], minlength=K) == 0
    theta[single] = ((of_rows * start + pooled.theta[0]) / (of_rows + 1.0))[single]
    curvature[single] = ((of_rows[:, None] + 1.0) * unit)[single]
    # The prior's units: directions without information have no error.
    values, vectors = np.linalg.eigh(unit)
    known = values > SINGULAR * values.max(initial=0.0)
    white = vectors[:, known] / np.sqrt(values[known])
    values, vectors = np.linalg.eigh(white.T @ np.append(curvature, unit[None], axis=0) @ white)
    roots = np.zeros((K + 1, *unit.shape))
    roots[:, :, : known.sum()] = back @ white @ (vectors / np.sqrt(values)[:, None])
    return np.append(theta, pooled.theta, axis=0), roots


def _fitted(pool, theta, labels, back, about, prior=None):
    """Models of least loss, by Newton's method with halving, and curvatures in the frame.

    A `prior` has a mean, and a curvature in the frame.
    """

    def asked(theta):
        values, gradients, curvature = pool.ask(ScoreSums, theta, labels, **about)
        if prior is None:
            return values, gradients, curvature
        away = np.linalg.solve(back, (theta - prior[0]).T).T
        pull = away @ prior[1]
        return values + 0.5 * (pull * away).sum(axis=1), gradients + pull, curvature + prior[1]

    values, gradients, curvature = asked(theta)
    for _ in range(1 if pool.model.quadratic else MAX_STEPS):
        steps = -np.matmul(
            np.linalg.pinv(curvature, SINGULAR, hermitian=True), gradients[:, :, None]
        )[:, :, 0]
        gain = -float((steps * gradients).sum())
        if gain <= GAIN * (1.0 + abs(float(values.sum()))):
            break
        length = 1.0
        for _ in range(HALVINGS):
            trial = asked(theta + length * steps @ back.T)
            if np.isfinite(trial[0]).all() and trial[0].sum() <= values.sum():
                break
            length *= 0.5
        else:
            break
        theta = theta + length * steps @ back.T
        values, gradients, curvature = trial
    return theta, curvature
