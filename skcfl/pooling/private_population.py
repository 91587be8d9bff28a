"""A population of models from few noisy sums: partial pooling of private clients.

The clients' blocks are whitened by the last population (``skcfl/calls/releases.py``), so that
their bounds are known and nothing is tuned.  The means take Newton steps, the variances steps by
Henderson's ratio, both from noisy sums: eigenvalues of the information that are within the noise
are raised to twice the noise, and variances are shrunk to their mean as much as the noise of each
says.  The noise of the last means is known too: it is added to the population's covariance, with
which the clients find their posteriors.

Several clusters spend their first two releases on a start.  The first one measures
the mean and the covariance of the clients.  The second one compares some starts by likelihood, and
the fit takes the best one.  Half of the starts are random; the others are corners of a regular
simplex, turned at random, in the directions of the largest spread: there the means of clusters of
equal size are such corners, in units of the spread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array
from ..calls.releases import MOST_MODELS, PosteriorMoments, PosteriorSpread, StartScores
from .population import Population

if TYPE_CHECKING:
    from ..federation.private_sums import Releases

# Benchmark of the constants: benchmarks/private.py.
#: Releases of a fit of one cluster, and of several, of which two are for the start.
RELEASES, RELEASES_OF_CLUSTERS = 5, 10
#: Releases where sums are exact.
EXACT = 40
#: Standard deviation of the clients' coefficients to begin with, and the dispersion of squared
#: errors, in the declared units.
SPREAD, NOISE = 0.5, 0.5
#: Least and largest standard deviations and dispersions, in the declared units.
SPREADS, NOISES = (1e-3, 3.0), (1e-3, 4.0)
#: Least and largest factor of the variances in a step, and of the dispersion.
FACTORS, NOISE_FACTORS = (0.05, 20.0), (0.1, 5.0)
#: Largest step of a mean, in standard deviations of the clients' coefficients.
STEP = 3.0
#: Least information of a client, as a part of the most that there is.
LEAST_KNOWN = 0.02
#: Least share of all clients that a noisy count is taken for.
LEAST_SHARE = 0.5
#: Releases before the variances of several clusters move: clusters that have not parted yet would
#: be spread.
SETTLING = 2
#: Starts of several clusters that are compared.
STARTS = 16
#: Least variance of the centres of a start in a direction, in that of the clients' coefficients.
LEAST_APART = 0.1
#: Least and largest factor of the variances in a start.
START_FACTORS = (0.25, 4.0)
#: What a client's rows tell of its coefficients where the noise is judged before a fit.
USUAL_KNOWN = 0.6


@dataclass
class PrivateFit:
    """A population, and what its noise is known to be.

    Attributes
    ----------
    population : Population
        With the covariance of the clients' coefficients about the means of their clusters.
    errors : ndarray of shape (K, p)
        Variances of the errors of the means.
    """

    population: Population
    errors: Array

    @property
    def aware(self) -> Population:
        """The population as clients should take it: its covariance has the errors of the means."""
        extra = self.population.weights @ self.errors
        return replace(self.population, covariance=self.population.covariance + extra)


def expected_noise(releases: Releases, n_params: int, n_clusters: int) -> float:
    """Noise of a coefficient of a mean, as a part of the clients' standard deviation."""
    arguments = {"theta": np.zeros((n_clusters, n_params)), "scatters": True}
    block = PosteriorMoments.blocks(releases.model, arguments)["shifts"]
    sd = releases.multiplier * block.clip / np.sqrt(block.share)
    return float(sd / (USUAL_KNOWN * releases.n_expected / n_clusters))


def beginning(releases: Releases, n_clusters: int, dispersion: float | None) -> PrivateFit:
    """The population before anything is released, from declared bounds only.

    Parameters
    ----------
    releases : Releases
        The clients.
    n_clusters : int
        Several clusters begin at random means.
    dispersion : float or None
        The dispersion where it is known.
    """
    model = releases.model
    loss, p = model.describe_loss(), model.n_params
    unit = releases.spread if loss.link == "identity" else 1.0
    means = np.zeros((n_clusters, model.n_outputs, model.n_columns))
    if model.fit_intercept and not loss.classifier:
        means[:, :, -1] = loss.raw(releases.centre)
    means = means.reshape(n_clusters, p)
    if n_clusters > 1:
        means = means + SPREAD * unit * releases.random_state.standard_normal(means.shape)
    if dispersion is None:
        dispersion = NOISE * unit**2 if loss.unknown_scale else 1.0
    population = Population(
        "diag",
        means=means,
        covariance=np.full(p, (SPREAD * unit) ** 2),
        weights=np.full(n_clusters, 1.0 / n_clusters),
        dispersion=dispersion,
        prior=np.full(n_clusters, np.inf),
        unit=np.full(p, unit**2),
        free=np.zeros(p, dtype=bool),
        varying=np.ones(p, dtype=bool),
    )
    return PrivateFit(population, np.zeros_like(means))


def fit_privately(
    releases: Releases, n_clusters: int, dispersion_of: Any, dispersion: float | None
) -> PrivateFit:
    """Population of greatest likelihood, as far as noisy sums know it.

    Parameters
    ----------
    releases : Releases
        The clients.
    n_clusters : int
        Number of clusters.
    dispersion_of : callable or None
        Dispersion of greatest likelihood, of the mean deviance; None where it is known.
    dispersion : float or None
        The dispersion where it is known.

    Returns
    -------
    fit : PrivateFit
    """
    fit = beginning(releases, n_clusters, dispersion)
    if n_clusters > 1:
        fit = best_start(releases, fit, dispersion_of)
    while releases.left > 0:
        population = fit.population
        about: dict[str, Any] = {
            "theta": population.means,
            "root": np.sqrt(population.covariance),
            "weights": population.weights,
            "dispersion": float(population.dispersion),
            "scatters": dispersion_of is not None,
            "sizes": None,
        }
        if n_clusters > 1 and releases.multiplier == 0.0:
            # Exact sums are of clusters of enough clients only, which have to be counted first.
            counted = releases.ask(PosteriorMoments, counts=False, **about)
            about["sizes"] = None if counted is None else counted[0]["counts"]
        answer = releases.ask(PosteriorMoments, **about)
        if answer is None:
            break
        sums, noise = answer
        moves = n_clusters == 1 or releases.count > SETTLING
        total = number_of_clients(releases, sums)
        fit = step(fit, sums, noise, total, dispersion_of, moves)
    return fit


def number_of_clients(releases: Releases, sums: dict[str, Array]) -> float:
    """Number of clients in sums: that of all is public, and places may be lost."""
    least = LEAST_SHARE * releases.n_expected
    return float(np.clip(sums["counts"].sum(), least, releases.n_clients))


def best_start(releases: Releases, fit: PrivateFit, dispersion_of: Any) -> PrivateFit:
    """Population of several clusters to begin with, by two releases.

    Parameters
    ----------
    releases : Releases
        The clients.
    fit : PrivateFit
        Of :func:`beginning`.
    dispersion_of : callable or None
        As of :func:`fit_privately`.
    """
    population = fit.population
    K, p = population.means.shape
    centre = beginning(releases, 1, population.dispersion).population.means
    root = np.sqrt(population.covariance)
    answer = releases.ask(
        PosteriorSpread,
        theta=centre,
        root=root,
        dispersion=float(population.dispersion),
        scatters=dispersion_of is not None,
    )
    if answer is None:
        return fit
    sums, noise = answer
    total = number_of_clients(releases, sums)
    dispersion = new_dispersion(population, sums, total, dispersion_of)
    shift, directions, rest = spread_of_clients(
        sums, noise, total, dispersion / population.dispersion, min(K - 1, p)
    )
    rng, n_starts = releases.random_state, max(min(STARTS, MOST_MODELS // K), 1)
    starts = np.empty((n_starts, K, p))
    for start in starts:
        turned = np.linalg.qr(rng.standard_normal((K - 1, K - 1)))[0][:, : len(directions)]
        start[:] = shift + simplex(K) @ turned @ directions
    n_random = n_starts // 2
    starts[:n_random] = shift + rng.standard_normal((n_random, K, p))
    starts = centre + root * starts
    covariance = scaled_variances(population, rest)
    answer = releases.ask(
        StartScores,
        theta=starts.reshape(-1, p),
        root=np.sqrt(covariance),
        dispersion=float(dispersion),
        n_starts=n_starts,
    )
    best = 0 if answer is None else int(answer[0]["scores"].argmax())
    new = replace(population, means=starts[best], covariance=covariance, dispersion=dispersion)
    return replace(fit, population=new)


def spread_of_clients(
    sums: dict[str, Array], noise: dict[str, float], total: float, ratio: float, n_directions: int
) -> tuple[Array, Array, float]:
    """Mean of the clients' whitened coefficients, and directions in which they spread most.

    If the whitened coefficients have the covariance S and all clients the same W, the posterior
    means have the covariance ``W S W + ratio (W - W W)``.

    Parameters
    ----------
    sums, noise : dict
        Of :class:`~skcfl.calls.releases.PosteriorSpread`.
    total : float
        Number of clients in the sums.
    ratio : float
        The dispersion over that of the posteriors.
    n_directions : int
        Number of directions.

    Returns
    -------
    shift : ndarray of shape (p,)
        The mean.
    directions : ndarray of shape (n_directions, p)
        Directions, each as long as the standard deviation of the clients in it.
    rest : float
        Mean variance in other directions.
    """
    p = len(sums["shifts"])
    information = symmetric(sums["information"][None], p)[0]
    values, vectors, shift = known_shift(information, sums["shifts"], noise, total)
    known = values / total
    W, half = (vectors * known) @ vectors.T, (vectors / np.sqrt(known)) @ vectors.T
    mean = sums["shifts"] / total
    excess = symmetric(sums["products"][None], p)[0] / total - np.outer(mean, mean)
    # Noise drowns S in directions of little information, which therefore count for less.
    excess = half @ (excess - ratio * (W - W @ W)) @ half
    variances, axes = np.linalg.eigh(excess)
    sizes = np.sqrt(np.maximum(variances[-n_directions:], LEAST_APART))
    directions = (half @ (axes[:, -n_directions:] * sizes)).T
    # The noise of a variance is no less than what can be seen of the rest.
    rest = float(np.maximum(variances[:-n_directions], 0.0).sum() / known.sum())
    rest = max(rest, noise["products"] / total / known.mean() ** 2)
    return shift, directions, float(np.clip(rest, *START_FACTORS))


def simplex(K: int) -> Array:
    """Corners (K, K - 1) of a regular simplex about 0, of variance one in each direction."""
    basis = np.linalg.qr((np.eye(K) - 1.0 / K)[:, : K - 1])[0]
    return np.sqrt(K) * basis


def new_dispersion(
    population: Population, sums: dict[str, Array], total: float, dispersion_of: Any
) -> float:
    """Dispersion after a release; that of the population where it is known."""
    if dispersion_of is None:
        return float(population.dispersion)
    factor = np.clip(sums["scatter"][0] / total, *NOISE_FACTORS)
    scale = float(population.unit.max())
    dispersion = float(dispersion_of(float(factor) * population.dispersion))
    return float(np.clip(dispersion, NOISES[0] * scale, NOISES[1] * scale))


def step(
    fit: PrivateFit,
    sums: dict[str, Array],
    noise: dict[str, float],
    total: float,
    dispersion_of: Any,
    variances_move: bool,
) -> PrivateFit:
    """The population after one release.

    Parameters
    ----------
    fit : PrivateFit
        The population that it was about.
    sums, noise : dict
        Of :class:`~skcfl.calls.releases.PosteriorMoments`.
    total : float
        Number of clients in the sums.
    dispersion_of : callable or None
        As of :func:`fit_privately`.
    variances_move : bool
        Whether the variances move.
    """
    population = fit.population
    K, p = population.means.shape
    root = np.sqrt(population.covariance)
    information = symmetric(sums["information"], p)
    means, errors = population.means.copy(), np.empty((K, p))
    for k in range(K):
        about = sums["shifts"][k], noise, total / K
        values, vectors, shift = known_shift(information[k], *about)
        means[k] += root * shift
        spread = noise["shifts"] ** 2 / values**2 + 1.0 / values
        errors[k] = root**2 * (vectors**2 @ spread)
    covariance = population.covariance
    if variances_move:
        known = np.maximum(np.einsum("kjj->j", information), LEAST_KNOWN * total)
        factors = shrunk_ratios(sums["squares"], known, noise["squares"])
        covariance = scaled_variances(population, factors)
    dispersion = new_dispersion(population, sums, total, dispersion_of)
    weights = np.maximum(sums["counts"], 1.0)
    new = replace(
        population,
        means=means,
        covariance=covariance,
        weights=weights / weights.sum(),
        dispersion=dispersion,
    )
    return PrivateFit(new, errors)


def known_shift(
    information: Array, shifts: Array, noise: dict[str, float], n_clients: float
) -> tuple[Array, Array, Array]:
    """Eigenvalues of the information, no less than noise; eigenvectors; the step of a mean."""
    values, vectors = np.linalg.eigh(information)
    values = np.maximum(values, max(2.0 * noise["information"], LEAST_KNOWN * n_clients))
    shift = vectors @ ((vectors.T @ shifts) / values)
    return values, vectors, np.clip(shift, -STEP, STEP)


def scaled_variances(population: Population, factors: Any) -> Array:
    """The variances times factors, within the bounds of the declared units."""
    low, high = SPREADS
    unit = np.sqrt(population.unit)
    return np.clip(population.covariance * factors, (low * unit) ** 2, (high * unit) ** 2)


def symmetric(triangles: Array, p: int) -> Array:
    """Matrices (K, p, p) from upper triangles (K, p (p + 1) / 2) of equal norm."""
    upper = np.triu_indices(p)
    values = triangles / np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    out = np.zeros((len(triangles), p, p))
    out[:, upper[0], upper[1]] = values
    out[:, upper[1], upper[0]] = values
    return out


def shrunk_ratios(squares: Array, known: Array, noise: float) -> Array:
    """Factors of the variances, drawn to their mean as far as noise may explain their spread."""
    ratios = np.clip(squares / known, *FACTORS)
    mean = np.clip(squares.sum() / known.sum(), *FACTORS)
    error = (noise / known) ** 2
    between = max(float(((ratios - mean) ** 2 - error).mean()), 0.0)
    if between > 0.0:
        ratios = mean + between / (between + error) * (ratios - mean)
    else:
        ratios = np.full_like(ratios, mean)
    return np.clip(ratios, *FACTORS)
