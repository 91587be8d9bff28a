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
P_ik      ``H - H (H + Sigma^-1)^-1 H``, of which ``sums["curvature"]`` are sums
========  =======================================================================

A step of EM would move theta_k by the mean of the posterior deviations, which takes many steps
where Sigma is small.  Generalised least squares take one: ``sums["slopes"]`` and
``sums["curvature"]`` are first and second derivatives of the marginal log-likelihood in theta_k.
Variances take steps of parameter-expanded EM, shares and the dispersion of EM, of which every
third is extrapolated (SQUAREM: Varadhan and Roland 2008).  A step after which the likelihood is
less is taken back, and the EM step, which cannot lower it, is taken instead; under Laplace's
approximation it may, which ends the fit.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from .population import LEAST_DISPERSION, LEAST_WEIGHT, Population

# Newton steps of the pooled model that a fit starts from, and halvings of one that overshoots.
POOLED_STEPS, HALVINGS = 30, 60
# Relative rounding of a log-likelihood, which is no fall.
ROUNDING = 1e-13
# Logarithms of variances are extrapolated by so much at most, standard deviations shrunk to this
# part in a step, and covariances stretched only where the least variance of a principal axis is
# more than this part of the largest: an axis of no variance hardly turns any more.
FARTHEST, SHRUNK, ROUND = 2.0, 0.3, 1e-2
# Change of the prior's variance, relative, below which it is settled.
SETTLED = 1e-3
# Rounds of the prior's variance after convergence.
MAX_PRIORS = 20
# Singular values of a system of normal equations that count as zero.
SINGULAR = 1e-12


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
    scale_known : bool
        Whether the dispersion is 1.
    """

    max_iter: int
    tol: float
    prior: object
    free: np.ndarray
    scale_known: bool
    verbose: int = 0


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

    @property
    def loglik(self):
        """Marginal log-likelihood."""
        return float(self.sums["evidence"])

    @property
    def value(self):
        """Log-likelihood minus the penalty of the means."""
        return self.loglik - self.population.penalty


def evaluate(pool, population):
    """A population, and the sums of the clients' posteriors there."""
    return Fit(population, pool.posterior_sums(*population.arguments))


def _solve(A, b):
    """Least-norm solution of a positive semi-definite system in unlike units."""
    size = np.sqrt(np.maximum(np.diag(A), 0.0))
    size = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(A / (size[:, None] * size))
    inverse = np.where(values > SINGULAR * max(values[-1], 1e-300), 1.0, 0.0)
    inverse = np.divide(inverse, values, out=np.zeros_like(values), where=inverse > 0)
    return vectors @ (inverse * (vectors.T @ (b / size))) / size


def mean_covariances(population, sums):
    """Covariances of the means, given all else, (K, p, p)."""
    out = []
    for k in range(population.n_clusters):
        A = sums["curvature"][k] + np.diag(population.precision[k])
        size = np.sqrt(np.maximum(np.diag(A), 0.0))
        size = np.where(size > 0, size, 1.0)
        inverse = np.linalg.pinv(A / (size[:, None] * size), rcond=SINGULAR, hermitian=True)
        out.append(inverse / (size[:, None] * size))
    return np.array(out)


def _newton_means(population, sums):
    """Means by generalised least squares."""
    slopes = sums["slopes"] - population.precision * population.means
    steps = [
        _solve(sums["curvature"][k] + np.diag(population.precision[k]), slopes[k])
        for k in range(population.n_clusters)
    ]
    return population.means + np.array(steps)


def _em_means(population, sums):
    """Means by a step of EM, which never lowers the likelihood."""
    covariance = population.full_covariance()
    steps = []
    for k in range(population.n_clusters):
        A = sums["counts"][k] * np.eye(len(covariance)) + covariance * population.precision[k]
        b = sums["deviations"][k] - covariance @ (population.precision[k] * population.means[k])
        steps.append(np.linalg.solve(A, b) if sums["counts"][k] > 0 else np.zeros_like(b))
    return population.means + np.array(steps)


def step(population, sums, options, newton=True):
    """The population of a step: the faster one, or that of EM alone."""
    n = max(float(sums["counts"].sum()), 1e-300)
    root, squares, scatter = population.root, sums["squares"][0], float(sums["scatter"])
    if newton:
        means = _newton_means(population, sums)
        if root.ndim == 1 or _is_round(population):
            stretch, gain = _stretch(sums)
            scatter = max(scatter - population.dispersion * gain, 0.0)
            squares = squares * (stretch**2 if root.ndim == 1 else stretch[:, None] * stretch)
    else:
        means = _em_means(population, sums)
    squares = squares * root**2 if root.ndim == 1 else root @ squares @ root.T
    if not newton:
        # About the new means.
        move, away, counts = means - population.means, sums["deviations"], sums["counts"]
        if root.ndim == 1:
            squares = squares + (counts[:, None] * move**2 - 2 * away * move).sum(axis=0)
        else:
            cross = away.T @ move
            squares = squares - cross - cross.T + (counts[:, None] * move).T @ move
    weights = np.maximum(sums["counts"] / n, LEAST_WEIGHT)
    dispersion = population.dispersion
    if not options.scale_known:
        least = LEAST_DISPERSION * float(population.unit.max())
        dispersion = max(scatter / max(float(sums["weight"]), 1e-300), least)
    return replace(
        population,
        means=means,
        covariance=population.shaped(squares, n),
        weights=weights / weights.sum(),
        dispersion=dispersion,
    )


def _is_round(population):
    """Whether no principal axis of the covariance is far shorter than another."""
    axes = (population.root**2 / population.unit[:, None]).sum(axis=0)
    return axes.min() > ROUND * axes.max()


def _stretch(sums):
    """Factors of the coordinates that raise the expected log-density most, and twice by how much.

    Parameter expansion (Liu, Rubin and Wu 1998): a variance that the rows know little of, which
    EM changes by little, moves by what they know.
    """
    G, c = sums["coupling"], sums["pull"]
    move = np.maximum(_solve(G, c - G.sum(axis=1)), SHRUNK - 1.0)
    return 1.0 + move, float(move @ (2.0 * c - G @ (2.0 + move)))


def pooled(pool, options, kind):
    """Population of one cluster without variance: one model for all clients.

    The fit starts from that with the variances of one row's worth.
    """
    p = pool.n_params
    constant = np.where(options.free, 0.0, 1e300)
    population = Population(
        kind,
        np.zeros((1, p)),
        np.zeros((p, p) if kind == "full" else p),
        np.ones(1),
        1.0,
        constant[None],
        np.ones(p),
    )
    size = _noise(evaluate(pool, population).sums)
    current, n_iter = _newton(pool, population, options)
    h = np.diag(current.sums["curvature"][0]) / max(float(current.sums["weight"]), 1e-300)
    dispersion = 1.0
    if not options.scale_known:
        # Of a constant, but for the rounding of targets that are all alike.
        dispersion = max(_noise(current.sums), ROUNDING**1.5 * size) or 1.0
    unit = dispersion / np.where(h > 0, h, 1.0)
    variance = dispersion if options.prior == "auto" else options.prior
    precision = np.where(options.free, 0.0, 1.0 / variance)[None]
    population = replace(current.population, dispersion=dispersion, unit=unit, precision=precision)
    current, more = _newton(pool, population, options)
    population = current.population
    n_iter += more
    if not options.scale_known:
        floor = LEAST_DISPERSION * dispersion
        dispersion = max(_noise(current.sums), floor)
        unit = unit * (dispersion / population.dispersion)
    population = replace(population, dispersion=dispersion, unit=unit)
    return population, n_iter


def _noise(sums):
    """Dispersion that explains the scatter of the rows."""
    return float(sums["scatter"] / max(float(sums["weight"]), 1e-300))


def _newton(pool, population, options):
    """The mean of a population without variance, by Newton's method with halving."""
    current, n_iter = evaluate(pool, population), 1
    for _ in range(1 if pool.quadratic else POOLED_STEPS):
        ahead = _newton_means(current.population, current.sums) - current.population.means
        slopes = current.sums["slopes"] - current.population.precision * current.population.means
        gain, length = float((slopes * ahead).sum()), 1.0
        for _ in range(HALVINGS):
            means = current.population.means + length * ahead
            trial = evaluate(pool, replace(current.population, means=means))
            n_iter += 1
            slack = ROUNDING * (1.0 + abs(current.value))
            if np.isfinite(trial.value) and trial.value >= current.value - slack:
                break
            length *= 0.5
        else:
            return current, n_iter
        current = trial
        if gain <= options.tol:
            break
    return current, n_iter


def _priors(population, sums, options):
    """Variance of each cluster's slopes, by empirical Bayes: (K, 1)."""
    slopes = ~options.free
    spread = np.einsum("kpp->kp", mean_covariances(population, sums))
    expected = population.means**2 + spread
    return np.maximum(expected[:, slopes].mean(axis=1, keepdims=True), 1e-300)


def _told(population, variances, options):
    """The population with other variances of the prior."""
    return replace(population, precision=np.where(options.free, 0.0, 1.0 / variances))


def maximise(pool, population, options, max_iter=None):
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

    Returns
    -------
    fit : Fit
    """
    max_iter = options.max_iter if max_iter is None else max_iter
    automatic = options.prior == "auto" and not options.free.all()
    current, n_iter = evaluate(pool, population), 1
    trail = [(current.loglik, current.value)]
    points, gains, priors, done = [current.population.coordinates()], [], 0, False
    n = max(float(current.sums["counts"].sum()), 1.0)
    while n_iter < max_iter:
        candidates = [step(current.population, current.sums, options)]
        if len(points) == 2:
            last = candidates[0].coordinates()
            first, second = points[1] - points[0], last - points[1]
            bend = second - first
            size = np.linalg.norm(bend)
            length = np.linalg.norm(first) / size if size > 0 else 1.0
            if length > 1.0:
                ahead = points[0] + 2.0 * length * first + length**2 * bend
                ahead = last + np.clip(ahead - last, -FARTHEST, FARTHEST)
                candidates.insert(0, candidates[0].at(ahead))
        candidates.append(step(current.population, current.sums, options, newton=False))
        slack = ROUNDING * (1.0 + abs(current.value))
        for candidate in candidates:
            trial = evaluate(pool, candidate)
            n_iter += 1
            lost = pool.answered is not None
            if lost or trial.value >= current.value - slack:
                break
        else:
            trial = None
        if trial is None:
            done = True
        else:
            gains.append(trial.value - current.value)
            current = trial
            trail.append((current.loglik, current.value))
            if options.verbose:
                print(f"exchange {n_iter}: log-likelihood {current.loglik:.6f}")
            at = current.population.coordinates()
            points = [at] if len(points) == 2 else [*points, at]
            done = len(gains) >= 3 and sum(gains[-3:]) <= options.tol * n
        cycle = len(gains) % 3 == 0 and priors < MAX_PRIORS
        if automatic and (done or cycle) and priors < 2 * MAX_PRIORS:
            new = _priors(current.population, current.sums, options)
            old = 1.0 / current.population.precision[:, ~options.free].max(axis=1, keepdims=True)
            priors += 1
            if np.abs(np.log(new / old)).max() > SETTLED:
                current = replace(current, population=_told(current.population, new, options))
                gains, done = [], False
        if done:
            break
    return replace(current, n_iter=n_iter, converged=done, trail=trail)
