"""Maximum likelihood of a population of models, from sums over clients.

The model is ``x_i ~ sum_k pi_k N(theta_k, Sigma)``, rows of client i with the density
``exp(-n_i f_i(x_i) / phi)`` (Verbeke and Lesaffre 1996: the heterogeneity model; with one cluster
linear and generalised linear mixed models with random coefficients).

========  =======================================================================
symbol    what it is here
========  =======================================================================
theta_k   ``population.means``
Sigma     ``population.covariance``
pi_k      ``population.weights``
phi       ``population.dispersion``
r_ik      responsibilities, which stay at the clients: ``sums["counts"]`` are their sums
nu        ``population.df``
t_ik      precisions of the clients' scales, of which ``sums["precisions"]`` are sums
P_ik      ``H - H (H + Sigma^-1)^-1 H``, of which ``sums["curvature"]`` are sums
========  =======================================================================

A step of EM would move theta_k by the mean of the posterior deviations, which takes many steps
where Sigma is small.  Generalised least squares take one: ``sums["slopes"]`` and
``sums["curvature"]`` are first and second derivatives of the marginal log-likelihood in theta_k.
Variances take steps of parameter-expanded EM, shares and the dispersion of EM, of which every
third is extrapolated (SQUAREM: Varadhan and Roland 2008).  A step after which the likelihood is
less is taken back, and the EM step, which cannot lower it, is taken instead; under Laplace's
approximation it may, which ends the fit.  Quasi-Newton steps follow (``quasi_newton.py``), but
for wide models.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from .._progress import loop
from ..calls.posteriors_asked import PosteriorProducts, Posteriors, PosteriorSums
from ..numerics.newton import MAX_DENSE
from ..numerics.once import once
from .heavy_tails import expected_df
from .normal_equations import (
    SINGULAR,
    degrees_of_freedom,
    explaining_prior,
    is_lean,
    mean_variances,
    newton_means,
    next_prior,
    solve,
    whitening,
)
from .population import LEAST_DISPERSION, LEAST_WEIGHT, Population
from .quasi_newton import climb, settle

# Newton steps of the pooled model that a fit starts from.
POOLED_STEPS = 30
# Halvings of a Newton step that overshoots.
HALVINGS = 60
# Least part of a sum of squares that is left of it where what is left is more than rounding.
LEAST_LEFT = 1e-6
# Relative rounding of a log-likelihood, which is no fall.
ROUNDING = 1e-13
# Largest extrapolation of the logarithm of a variance.
FARTHEST = 2.0
# Least factor of a standard deviation in a step.
SHRUNK = 0.3
# Whether the prior keeps deviations of intercepts off zero. Benchmark: 75 tables of
# benchmarks/real.py, in doc/benchmarks/partial_pooling.rst.
OFF_ZERO = True
# Newton steps to factors, where their logarithms count.
FACTOR_STEPS = 4
# Least ratio of the variances of two principal axes at which a covariance is stretched: an axis of
# no variance does not turn. Benchmark: 70 generated populations with full covariances. Without it
# those of rank 1 take 49 exchanges instead of 34 and gain .003 of log-likelihood.
ROUND = 1e-2
# Change of the prior's variance, relative, below which it is settled.
SETTLED = 1e-3
# Parameters, relative to MAX_DENSE, up to which clients send curvatures that are matrices in any
# case: few rows give products. Benchmark: 300 features, 24 clients of 400 rows: 35 exchanges for
# 1734 with products only, .7 of the seconds. 30 classes of 8 features: 96 exchanges for 2892.
SUMMED = 4
# Part of the rows that the means take at most.
MOST_SPENT = 0.9
# Most curvature along a standardised feature, relative to the intercept's, where a client has
# other units: about 1 in the units of the other clients.
MOST_CURVED = 10.0
# Largest ratio of one move of the prior to the move before at which moves are extrapolated.
MOST_SHARE = 0.9
# Rounds of the prior's variance after convergence.
MAX_PRIORS = 20
# Gain of three steps of EM, a client, below which quasi-Newton steps follow.
# Benchmark: the mixed models of twelve tables of benchmarks/real.py, in exchanges.
SWITCH = 1e-2
# Steps of EM after which quasi-Newton steps follow in any case. Benchmark: as of SWITCH.
LONG = 30
# Gain of a quasi-Newton step, made or expected, that ends them, as a part of the gain that three
# steps of EM must have. Benchmark: as of SWITCH.
SHARE = 0.03


@dataclass
class Options:
    """How to fit.

    Attributes
    ----------
    max_iter : int
        Most exchanges.
    tol : float
        Gain of the log-likelihood, a client and two steps, at which the fit ends.
    prior : "auto" or float
        Variance of the cluster means' slopes.
    free : ndarray of shape (p,) of bool
        Parameters that have no prior: the intercepts.
    varying : ndarray of shape (p,) of bool
        Parameters that differ between clients.
    dispersion_of : callable or None
        Dispersion of greatest likelihood, of the mean deviance of a row; None where it is known.
    dispersion : float
        The dispersion where it is known.
    df : "auto" or float
        Degrees of freedom of the clients' scales; "auto" estimates them.  Of populations that
        have scales, which fits do not begin with.
    blocks : ndarray of shape (p,) of int, default=None
        Parameters that share a variance, see :class:`~skcfl.pooling.population.Population`.
    correlated : bool, default=True
        Whether a full covariance may compete with others.
    constant : ndarray of shape (p,) of bool, default=None
        Coefficients of constant features, which say nothing.
    held : bool, default=False
        Whether slopes do not vary that were asked for, because rows are too few.
    """

    max_iter: int
    tol: float
    prior: object
    free: np.ndarray
    varying: np.ndarray
    dispersion_of: object
    dispersion: float = 1.0
    df: object = np.inf
    blocks: np.ndarray | None = None
    correlated: bool = True
    constant: np.ndarray | None = None
    held: bool = False


@dataclass
class Fit:
    """A population and what is known about it.

    Attributes
    ----------
    population : Population
    sums : dict
        Of the clients' posteriors there.
    n_iter : int
        Exchanges.
    converged : bool
    trail : list of tuple
        Log-likelihood, and the same minus the penalty, of each accepted step.
    """

    population: Population
    sums: dict
    n_iter: int = 0
    converged: bool = False
    trail: list = field(default_factory=list)
    #: A population, and the responsibilities of its clusters for each client.
    known: tuple = (None, None)

    def responsibilities(self, pool):
        """Probabilities of the clusters (n, K) for the clients with rows, asked for once."""
        if self.known[0] is not self.population:
            r = pool.ask(Posteriors, *self.population.arguments)[0]
            self.known = self.population, r[~pool.without_rows]
        return self.known[1]

    @property
    def loglik(self):
        """Marginal log-likelihood."""
        return float(self.sums["evidence"])

    @once
    def value(self):
        """Log-likelihood minus the penalty of the means."""
        return self.loglik - self.population.penalty


def evaluate(pool, population):
    """A population, and the sums of the clients' posteriors there."""
    p = pool.n_params
    dense = population.kind == "full" or p <= MAX_DENSE
    if not dense and p <= SUMMED * MAX_DENSE:
        dense = pool.typical_size * pool.model.n_outputs >= p
    return Fit(population, pool.ask(PosteriorSums, *population.arguments, dense=dense))


def _em_means(population, sums):
    """Means by a step of EM, which never lowers the likelihood."""
    counts, away = sums["precisions"][:, None], sums["deviations"]
    pull, spread = population.precision * population.means, population.covariance
    if spread.ndim == 1:
        size = np.where(counts > 0, counts + spread * population.precision, np.inf)
        return population.means + (away - spread * pull) / size
    steps = np.zeros_like(population.means)
    for k in np.flatnonzero(sums["counts"] > 0):
        A = counts[k] * np.eye(len(spread)) + spread * population.precision[k]
        steps[k] = np.linalg.solve(A, away[k] - spread @ pull[k])
    return population.means + steps


def step(pool, population, sums, options, newton=True):
    """The population of a step: the faster one, or that of EM alone."""
    n = max(float(sums["counts"].sum()), 1e-300)
    root, squares, scatter = population.root, sums["squares"][0], float(sums["scatter"])
    if newton:
        means = newton_means(pool, population, sums)
        if population.kind != "none" and (root.ndim == 1 or _is_round(population)):
            stretch, gain = _stretch(sums, population)
            scatter = max(scatter - population.dispersion * gain, 0.0)
            squares = squares * (stretch**2 if root.ndim == 1 else stretch[:, None] * stretch)
    else:
        means = _em_means(population, sums)
    squares = squares * root**2 if root.ndim == 1 else root @ squares @ root.T
    if not newton:
        # About the new means.
        move, away, counts = means - population.means, sums["deviations"], sums["precisions"]
        if root.ndim == 1:
            squares = squares + (counts[:, None] * move**2 - 2 * away * move).sum(axis=0)
        else:
            cross = away.T @ move
            squares = squares - cross - cross.T + (counts[:, None] * move).T @ move
    weights = np.maximum(sums["counts"] / n, LEAST_WEIGHT)
    dispersion = population.dispersion
    if options.dispersion_of is not None and not _is_held(pool, population, sums):
        mean = scatter / max(float(sums["weight"]) - population.spent, 1e-300)
        dispersion = max(options.dispersion_of(mean), population.least)
    is_free = is_df_free(population, options)
    df = expected_df(float(sums["tails"]) / n) if is_free else population.df
    return replace(
        population,
        means=means,
        covariance=population.shaped(squares, n),
        weights=weights / weights.sum(),
        dispersion=dispersion,
        df=df,
    )


def is_df_free(population, options):
    """Whether the degrees of freedom of the clients' scales are estimated."""
    return options.df == "auto" and np.isfinite(population.df)


def _is_round(population):
    """Whether no principal axis of the covariance is far shorter than another."""
    values = np.linalg.eigvalsh(population.scaled)
    return values[0] > ROUND * values[-1]


def _stretch(sums, population):
    """Factors of the coordinates that raise the expected log-density most, and twice by how much.

    Parameter expansion (Liu, Rubin and Wu 1998): a variance that the rows know little of, which
    EM changes by little, moves by what they know.
    """
    G, c, kept = sums["coupling"], sums["pull"], population.kept.astype(float)
    together = None
    if population.kind == "spherical":
        together = np.ones((len(c), 1))
    elif population.kind == "full":
        # A variance has a part along each axis, and the logarithm of a mean is no less than the
        # mean of logarithms.
        parts = population.root[population.kept] ** 2
        kept = (parts / parts.sum(axis=1, keepdims=True)).sum(axis=0)
    elif population.blocks is not None:
        # The same for the coordinates of a block.
        together = np.zeros((len(c), population.n_variances))
        together[np.flatnonzero(population.varying), population.owner] = 1.0
    if together is not None:
        c, kept = together.T @ c, together.T @ kept
        G = together.T @ G @ together if G.ndim == 2 else together.T @ G
    factors = _factors(G, c, kept)
    move = factors - 1.0
    product = G * (2.0 + move) if G.ndim == 1 else G @ (2.0 + move)
    gain = float(move @ (2.0 * c - product))
    return factors if together is None else together @ factors, gain


def _factors(G, c, kept):
    """Where ``c' x - x' G x / 2 + kept' log(x)`` is greatest, in bounds; G may be a diagonal."""
    if G.ndim == 1:
        # As if no two coordinates were coupled.
        both = c + np.where(kept > 0, np.sqrt(c**2 + 4.0 * G * kept), c)
        best = np.divide(both, 2.0 * G, out=np.ones_like(G), where=G > 0)
        return np.clip(best, SHRUNK, 1.0 / SHRUNK)
    best = np.maximum(1.0 + solve(G, c - G.sum(axis=1)), SHRUNK)
    for _ in range(FACTOR_STEPS if kept.any() else 0):
        slope = c - G @ best + kept / best
        best = np.maximum(best + solve(G + np.diag(kept / best**2), slope), SHRUNK)
    return best


def pooled(pool, options):
    """Fit of one cluster without variance: one model for all clients."""
    p = pool.n_params
    population = Population(
        "none",
        means=np.zeros((1, p)) if pool.model.quadratic else pool.model.origin[None],
        covariance=np.zeros(p),
        weights=np.ones(1),
        dispersion=1.0,
        prior=np.full(1, 1e-300),  # of a constant
        unit=np.ones(p),
        free=options.free,
        varying=options.varying,
        blocks=options.blocks,
        off_zero=OFF_ZERO and options.prior == "auto",
    )
    known = options.dispersion_of is None
    current = evaluate(pool, population)
    population.varying = options.varying & ~_level(pool, current, options.free)
    size = _noise(current.sums, options)
    exact = pool.model.quadratic and not is_lean(current.sums)
    if exact:
        # What sums are at other means follows from these, but for rounding.
        moved = _moved(current, newton_means(pool, population, current.sums))
        exact = float(moved.sums["scatter"]) > LEAST_LEFT * float(current.sums["scatter"])
    current, n_iter = (moved, 1) if exact else _newton(pool, current, options)
    h = current.sums["curvature"][0]
    h = (np.diag(h) if h.ndim == 2 else h) / max(float(current.sums["weight"]), 1e-300)
    if pool.other_units and options.free.any():
        # The rows of a client in other units weigh so much that variances would begin at nothing.
        h = np.minimum(h, MOST_CURVED * h[options.free].max())
    dispersion = options.dispersion
    if not known:
        # Of a constant, but for the rounding of targets that are all alike.
        dispersion = max(_noise(current.sums, options), ROUNDING**1.5 * size) or 1.0
    unit = dispersion / np.where(h > 0, h, 1.0)
    # Of wide models the slopes together explain about as much as there is.
    n_slopes = np.count_nonzero(~options.free)
    guess = dispersion / (n_slopes if pool.n_params > MAX_DENSE else 1)
    prior = np.full(1, guess if options.prior == "auto" else options.prior)
    population = replace(current.population, dispersion=dispersion, unit=unit, prior=prior)
    if exact:
        ahead = _moved(current, current.population.means, population)
        means = newton_means(pool, population, ahead.sums)
        current, more = evaluate(pool, replace(population, means=means)), 1
    else:
        start = evaluate(pool, population)
        if is_lean(start.sums) and not pool.model.quadratic:
            start = _with_prior_of_its_own(pool, start, options)
        current, more = _newton(pool, start, options)
        more += start.n_iter
    population = current.population
    n_iter += more
    if not known:
        floor = LEAST_DISPERSION * dispersion
        spent = _spent(pool, population, current.sums, options)
        dispersion = max(_noise(current.sums, options, spent), floor)
        unit = unit * (dispersion / population.dispersion)
        spent = 0.0 if _is_held(pool, population, current.sums) else spent
        population = replace(population, spent=spent)
    least = LEAST_DISPERSION * dispersion
    population = replace(population, dispersion=dispersion, unit=unit, least=least)
    return replace(current, population=population, n_iter=n_iter)


def _level(pool, fit, free):
    """Slopes of features that are the same number in all rows, (n_params,), beside intercepts.

    Deviations of such a slope and of the intercept are the same in these rows. A feature that
    differs in held-out rows only is one of them in the training rows.
    """
    if not free.any():
        return free
    H, C = fit.sums["curvature"][0], pool.model.n_outputs
    if is_lean(fit.sums):
        constants = np.zeros((1, C, pool.n_params))
        constants[0, np.arange(C), np.flatnonzero(free)] = 1.0
        sizes, shared = H, pool.ask(PosteriorProducts, *fit.population.arguments, constants)[0]
    else:
        sizes, shared = np.diag(H), H[free]
    most = sizes.reshape(C, -1) * sizes[free][:, None]
    left = most - np.einsum("oop->op", shared.reshape(C, C, -1)) ** 2
    return (left <= SINGULAR * most).ravel() & ~free


def _moved(fit, means, population=None):
    """The fit of a population without variance at other means, of squared errors.

    With another dispersion and prior where `population` is given.
    """
    population = fit.population if population is None else population
    ratio = fit.population.dispersion / population.dispersion
    H, slopes = ratio * fit.sums["curvature"], ratio * fit.sums["slopes"]
    move = means - fit.population.means
    bent = np.einsum("kpq,kq->kp", H, move)
    lost = 2.0 * population.dispersion * float((move * (slopes - 0.5 * bent)).sum())
    sums = {**fit.sums, "curvature": H, "slopes": slopes - bent}
    sums["scatter"] = float(fit.sums["scatter"]) - lost
    return Fit(replace(population, means=means), sums)


def _noise(sums, options, spent=0.0):
    """Dispersion that explains the scatter of the rows."""
    mean = float(sums["scatter"] / max(float(sums["weight"]) - spent, 1e-300))
    return mean if options.dispersion_of is None else options.dispersion_of(mean)


def _spent(pool, population, sums, options, variances=None):
    """Degrees of freedom that the means take from the dispersion, see :func:`_with_prior`."""
    if not pool.model.quadratic or options.dispersion_of is None:
        return 0.0
    if options.prior != "auto" and not _is_held(pool, population, sums):
        return 0.0
    if variances is None:
        variances = mean_variances(pool, population, sums)
    return min(degrees_of_freedom(population, variances), _most_spent(population, sums))


def _most_spent(population, sums):
    """Most degrees of freedom that the means take from the dispersion.

    Each deviation that is kept off zero needs a row: else all variances would grow without bound.
    """
    return MOST_SPENT * max(float(sums["weight"]) - np.count_nonzero(population.kept), 0.0)


def _with_prior_of_its_own(pool, fit, options):
    """The fit of one model near its mean and the prior that explains it, a step of each in turn.

    What variances a fit ends with depends on the prior of its start: a mean that is held too
    close to zero leaves to them what clients have in common.
    """
    move, n_iter = None, 0
    for _ in range(MAX_PRIORS):
        before = fit.population
        fit, tried = _newton(pool, fit, options, steps=1)
        n_iter += tried - 1
        fit, settled = _with_prior(pool, fit, options)
        if settled:
            break
        fit, move = _farther(fit, before, move)
    return replace(fit, n_iter=n_iter)


def _newton(pool, current, options, steps=POOLED_STEPS):
    """The mean of a population without variance, by Newton's method with halving.

    Also the number of exchanges, with that of the fit to begin with.
    """
    n_iter = 1
    for _ in range(1 if pool.model.quadratic else steps):
        ahead = newton_means(pool, current.population, current.sums) - current.population.means
        slopes = current.sums["slopes"] - current.population.precision * current.population.means
        gain, length = float((slopes * ahead).sum()), 1.0
        for _ in range(HALVINGS):
            means = current.population.means + length * ahead
            trial = evaluate(pool, replace(current.population, means=means))
            n_iter += 1
            if not _is_worse(pool, trial, current):
                break
            length *= 0.5
        else:
            return current, n_iter
        current = trial
        if gain <= options.tol:
            break
    return current, n_iter


def _is_worse(pool, trial, fit):
    """Whether a trial is less likely than a fit; nothing is known where other clients answer."""
    if not np.isfinite(trial.value):
        return True
    same = pool.steady and trial.sums["weight"] == fit.sums["weight"]
    return same and trial.value < fit.value - ROUNDING * (1.0 + abs(fit.value))


def maximise(pool, population, options, max_iter=None, sums=None):
    """Fit a population by the steps above.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    population : Population
        The start.
    options : Options
        How.
    max_iter : int, default=None
        Most exchanges, in place of that of the options.
    sums : dict, default=None
        Those of the start, where they are known; they count as an exchange.

    Returns
    -------
    fit : Fit
    """
    max_iter = options.max_iter if max_iter is None else max_iter
    fit = evaluate(pool, population) if sums is None else Fit(population, sums)
    # Wide models' means are too many for quasi-Newton steps.
    climbed = not is_lean(fit.sums)
    fit = replace(fit, n_iter=1, trail=[(fit.loglik, fit.value)])
    fit = _by_em(pool, fit, options, max_iter, climbed)
    if not (fit.converged and climbed and pool.steady):
        return fit
    move, least = None, SHARE * options.tol * max(float(fit.sums["counts"].sum()), 1.0)
    exact = pool.model.quadratic
    for _ in range(MAX_PRIORS):
        if fit.n_iter >= max_iter:
            return replace(fit, converged=False)
        begin = fit
        fit = (climb if exact else settle)(
            lambda at: evaluate(pool, at),
            fit,
            whitening(fit.population, fit.sums),
            options.dispersion_of,
            not is_df_free(fit.population, options),
            max_iter - fit.n_iter,
            least,
        )
        if not (exact or fit.converged):
            return _by_em(pool, fit, options, max_iter, climbed=False)
        # The curvature at the end may see more to gain than that of the climb.
        done = not exact or fit.value - begin.value <= least
        before = fit.population
        fit, settled = _with_prior(pool, fit, options)
        if settled and done:
            break
        if not settled:
            fit, move = _farther(fit, before, move)
    return fit


def _farther(fit, before, last):
    """The fit with its prior extrapolated by two moves (Aitken), and the move if it was not."""
    population = fit.population
    move = np.log(population.prior) - np.log(before.prior)
    move = np.append(move, population.spent - before.spent)
    share = 0.0 if last is None else float(move @ last) / max(float(last @ last), 1e-300)
    if not 0.0 < share < MOST_SHARE:
        return fit, move
    more = share / (1.0 - share) * move
    prior = population.prior * np.exp(np.clip(more[:-1], -FARTHEST, FARTHEST))
    spent = min(max(population.spent + more[-1], 0.0), _most_spent(population, fit.sums))
    return replace(fit, population=replace(population, prior=prior, spent=spent)), None


def _is_held(pool, population, sums):
    """Whether the dispersion is part of the prior, and stays as it is between its rounds.

    Wide means can interpolate: given what they take of the degrees of freedom the likelihood
    would have no maximum.
    """
    return is_lean(sums) and pool.model.quadratic and np.isfinite(population.prior).all()


def _with_prior(pool, fit, options):
    """The fit with another prior, and whether that is as it was.

    By empirical Bayes: the variance of the prior, and the degrees of freedom that the means take
    from the dispersion, or the dispersion itself (MacKay, 1992).
    """
    population, sums = fit.population, fit.sums
    if np.isinf(population.prior).all():
        return fit, True
    new, change, ahead, slopes = {}, 0.0, population, ~population.free
    at_once = population.n_clusters == 1 and not is_lean(sums)
    variances = None if at_once else mean_variances(pool, population, sums)
    if options.prior == "auto" and slopes.any():
        if at_once:
            new["prior"] = np.maximum(explaining_prior(population, sums), 1e-300)
            ahead = replace(population, **new)
        else:
            # Beside a dispersion that moves as well long steps end in interpolation.
            far = population.n_clusters == 1 and not pool.model.quadratic
            new["prior"] = np.maximum(next_prior(population, sums, variances, far), 1e-300)
        change = np.abs(np.log(new["prior"]) - np.log(population.prior)).max()
    spent = _spent(pool, ahead, sums, options, variances)
    if spent and _is_held(pool, population, sums):
        new["dispersion"] = max(_noise(sums, options, spent), population.least)
        change = max(change, abs(np.log(new["dispersion"] / population.dispersion)))
    elif spent:
        new["spent"] = spent
        left = max(float(sums["weight"]) - spent, 1e-300)
        change = max(change, abs(spent - population.spent) / left)
    if change <= SETTLED:
        return fit, True
    population = replace(population, **new)
    if "dispersion" in new:
        # The sums depend on the dispersion.
        return replace(
            fit, sums=evaluate(pool, population).sums, population=population, n_iter=fit.n_iter + 1
        ), False
    return replace(fit, population=population), False


def _by_em(pool, current, options, max_iter, climbed):
    """Steps of EM, until they gain little or, where quasi-Newton steps follow, not much."""
    points, gains, priors, done = [current.population.coordinates()], [], 0, False
    n = max(float(current.sums["counts"].sum()), 1.0)
    least = max(SWITCH, options.tol) if climbed else options.tol
    n_iter, trail = current.n_iter, current.trail
    with loop("exchange", max_iter) as progress:
        while n_iter < max_iter and not (done or progress.stopped):
            progress.begin()
            for candidate in _candidates(pool, current, points, options):
                trial = evaluate(pool, candidate)
                n_iter += 1
                if not _is_worse(pool, trial, current):
                    break
            else:
                return replace(current, n_iter=n_iter, converged=True, trail=trail)
            gains.append(trial.value - current.value)
            current = trial
            trail.append((current.loglik, current.value))
            progress.tell(k=n_iter, log_likelihood=current.loglik)
            at = current.population.coordinates()
            points = [at] if len(points) == 2 else [*points, at]
            done = len(gains) >= 3 and sum(gains[-3:]) <= least * n
            done |= climbed and len(gains) >= LONG
            if priors < 2 * MAX_PRIORS and (done or (len(gains) % 3 == 0 and priors < MAX_PRIORS)):
                priors += 1
                current, settled = _with_prior(pool, replace(current, n_iter=n_iter), options)
                n_iter = current.n_iter
                if not settled:
                    gains, done = [], done and climbed
    return replace(current, n_iter=n_iter, converged=done and not progress.stopped, trail=trail)


def _candidates(pool, current, points, options):
    """Populations of a step, those that may lower the likelihood first."""
    population, sums = current.population, current.sums
    ahead = step(pool, population, sums, options)
    if len(points) == 2:
        last = ahead.coordinates()
        first, second = points[1] - points[0], last - points[1]
        bend = second - first
        size = np.linalg.norm(bend)
        length = np.linalg.norm(first) / size if size > 0 else 1.0
        if length > 1.0:
            far = points[0] + 2.0 * length * first + length**2 * bend
            extrapolated = ahead.at(last + np.clip(far - last, -FARTHEST, FARTHEST))
            if options.dispersion_of is not None:
                least = options.dispersion_of(0.0)
                extrapolated.dispersion = max(extrapolated.dispersion, least)
            if not is_df_free(population, options):
                extrapolated = replace(extrapolated, df=population.df)
            yield extrapolated
    yield ahead
    yield step(pool, population, sums, options, newton=False)
    if population.kind == "none" or not population.varying.all():
        # Steps of EM do not move parameters without variance.
        yield replace(population, means=newton_means(pool, population, sums))
