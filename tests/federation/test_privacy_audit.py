"""An audit by membership: what releases show of a client is less than what is promised."""

import numpy as np
import pytest
from private_clients import moves, places_of
from scipy.stats import beta

from skcfl.calls.releases import Moves, PosteriorMoments, PosteriorSpread, StartScores, noisy
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.numerics.gaussian_mechanism import multiplier_of

DELTA, N_DRAWS = 1e-5, 20_000
MODEL = LinearModel(alpha=0.0, standardize=False).bind(2)


def sums_with_and_without(release, arguments):
    """Sums of a release without the most extreme client, and what it adds."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 2)), rng.standard_normal(300), np.repeat(range(30), 10)
    more = np.full((10, 2), 50.0), np.full(10, 1e4), np.full(10, 30)
    both = [np.concatenate(pair) for pair in zip(rows, more, strict=True)]
    sites = [places_of(InProcessFederation(*r), MODEL)[0].site(MODEL) for r in (rows, both)]
    out, inside = (release.sums(site, arguments) for site in sites)
    return out, {name: inside[name] - out[name] for name in out}


def shown(statistics):
    """Epsilon that statistics without and with the client show, at 95 % confidence."""
    out, inside = (np.sort(values) for values in statistics)
    found, half = 0.0, N_DRAWS // 2
    # Thresholds by one half of the draws, rates by the other one.
    for sign in (1, -1):
        for share in (0.5, 0.9, 0.99, 0.999):
            level = np.quantile(sign * out[::2], share)
            false, true = (np.count_nonzero(sign * v[1::2] > level) for v in (out, inside))
            least = beta.ppf(0.025 / 8, true, half - true + 1) if true else 0.0
            most = beta.ppf(1 - 0.025 / 8, false + 1, half - false)
            if least > DELTA:
                found = max(found, float(np.log((least - DELTA) / most)))
    return found


def audited(release, arguments, multiplier, epsilon):
    """Epsilon that the best test of a release shows: the ratio of the two likelihoods."""
    sums, part = sums_with_and_without(release, arguments)
    noise = release.noise(release.blocks(MODEL, arguments), multiplier)
    rng, statistics = np.random.default_rng(1), []
    for there in (0.0, 1.0):
        values = np.zeros(N_DRAWS)
        for name, sd in noise.items():
            total = np.broadcast_to(sums[name] + there * part[name], (N_DRAWS, *sums[name].shape))
            away = noisy(total, sd, rng) - sums[name]
            values += (away * part[name]).reshape(N_DRAWS, -1).sum(axis=1) / sd**2
        statistics.append(values)
    return shown(statistics)


POSTERIORS = dict(theta=np.zeros((1, 3)), root=np.full(3, 0.5), weights=np.ones(1))
POSTERIORS |= {"dispersion": 0.5, "scatters": True}
SPREAD = {name: value for name, value in POSTERIORS.items() if name != "weights"}
STARTS = dict(theta=np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), root=np.full(3, 0.5))
STARTS |= {"dispersion": 0.5, "n_starts": 2}


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
@pytest.mark.parametrize(
    "release, arguments",
    [
        (Moves, moves()),
        (PosteriorMoments, POSTERIORS),
        (PosteriorSpread, SPREAD),
        (StartScores, STARTS),
    ],
    ids=["moves", "moments", "spread", "starts"],
)
def test_a_release_shows_less_than_is_promised(release, arguments, epsilon):
    z = multiplier_of(epsilon, DELTA)
    assert audited(release, arguments, z, epsilon) < epsilon
    # The test would find too little noise.
    assert audited(release, arguments, z / 8, epsilon) > epsilon
