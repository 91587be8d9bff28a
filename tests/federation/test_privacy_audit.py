"""An audit by membership: what releases show of a client is less than what is promised."""

import secrets

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from private_clients import moves, places_of
from scipy.stats import beta, kstest, norm

from skcfl.calls.releases import (
    RELEASES,
    Moves,
    PosteriorMoments,
    PosteriorSpread,
    StartScores,
    noisy,
)
from skcfl.federation import InProcessFederation
from skcfl.federation.secret_numbers import SecretNumbers
from skcfl.models import MLP, LinearModel
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
SPREAD = {"dispersion": 0.5, "scatters": True} | POSTERIORS
del SPREAD["weights"]
POSTERIORS |= {"dispersion": 0.5, "scatters": True, "sizes": None}
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


def test_noise_without_a_seed_is_of_the_generator_for_cryptography(monkeypatch):
    """A state that goes on from number to number is found from numbers of known sums."""
    clients = InProcessFederation(np.zeros((30, 2)), np.zeros(30), np.arange(30))
    bounds = {"features": (-2, 2), "target": (-2, 2)}
    rng = clients.private(1.0, bounds=bounds)._account.rng
    for drawn, law in ((rng.standard_normal((50, 400)), "norm"), (rng.uniform(20_000), "uniform")):
        assert kstest(drawn.ravel(), law).pvalue > 1e-6
    assert_array_equal(np.unique(rng.integers(3, 1000)), range(3))
    for byte in (b"\x00", b"\xff"):  # the largest numbers are finite
        monkeypatch.setattr(secrets, "token_bytes", byte.__mul__)
        assert np.abs(rng.standard_normal((2,))).max() < 9.0 and 0.0 <= rng.uniform(1)[0] < 1.0


def test_noise_is_of_fresh_bytes_and_signs_have_bits_of_their_own(monkeypatch):
    first, second = SecretNumbers(), SecretNumbers()
    drawn = first.standard_normal((400, 500))
    for again in (first, second):
        assert not np.isin(drawn, again.standard_normal((400, 500))).any()
    assert abs(drawn.mean()) < 0.015 and abs(drawn.var() - 1.0) < 0.02
    for some in (np.abs(drawn) < 0.1, np.abs(drawn) > 1.5):
        assert abs((drawn[some] < 0).mean() - 0.5) < 0.03
    bits = np.random.default_rng(0).integers(2**52, size=100, dtype=np.uint64) << np.uint64(12)
    for sign in (0, 1):
        given = bits | np.uint64(sign)
        monkeypatch.setattr(secrets, "token_bytes", lambda size, given=given: given.tobytes())
        drawn = first.standard_normal((100,))
        assert_allclose(norm.sf(np.abs(drawn)), bits / 2.0**65, rtol=1e-9)
        assert (np.signbit(drawn) == (sign == 1)).all()


# ------------------------------------------------------------------ clients by themselves


MOMENTS = dict(weights=np.ones(2), scatters=True, sizes=None)


def asked(name, p, root):
    """Arguments of a release by its name: what a server that wants to learn most might send."""
    theta = 0.3 * np.random.default_rng(2).standard_normal((2, p))
    about = {"root": np.full(p, root), "dispersion": 0.5}
    rounding = moves(p) | {"unit": 1e-15, "theta": theta}
    head = {k: v for k, v in rounding.items() if k not in ("known", "sizes")}
    head |= {"shared": np.arange(p) > 0, "head_steps": 1, "theta": theta[:1]}
    return {
        "posterior_moments": about | MOMENTS | {"theta": theta},
        "posterior_spread": about | dict(theta=theta[:1], scatters=True),
        "start_scores": about | dict(theta=theta, n_starts=2),
        "moves": rounding,
        "shared_moves": head,
    }[name]


def rows_of(loss, scale, n_rows, client, weight=1.0):
    """Rows of a client: features, targets, ids and weights."""
    rng = np.random.default_rng(10 + client)
    X = scale * rng.standard_normal((n_rows, 2))
    y = X @ [1.0, -0.5] + scale * rng.standard_normal(n_rows)
    y = {"log_loss": y > 0, "poisson": np.round(np.abs(y)), "gamma": np.abs(y) + 0.1}.get(loss, y)
    return X, np.asarray(y, dtype=float), np.full(n_rows, client), np.full(n_rows, weight)


def private_site(model, clients):
    """What a private place computes releases of."""
    bounds = {"features": (-2, 2), "target": (0.5, 4), "classes": [0.0, 1.0]}
    clients = InProcessFederation(*(np.concatenate(part) for part in zip(*clients, strict=True)))
    private = clients.private(1.0, bounds=bounds, random_state=0)
    kind = model.estimator_type
    return private.rows(model, private.hello(kind))[0]._clients()


# Scale and number of the rows of the client that is added, and what each weighs.
ADDED = {"ordinary": (1.0, 50), "one row": (1.0, 1), "large": (5.0, 2), "huge": (1e30, 3)}
ADDED |= {"without weight": (1.0, 4, 0.0)}


@pytest.mark.parametrize("name", sorted(RELEASES))
@pytest.mark.parametrize("loss", ["squared_error", "log_loss", "poisson", "network"])
def test_no_client_changes_what_others_add(name, loss):
    if loss == "network" and "moves" not in name:
        pytest.skip("networks have no posteriors")
    model = MLP((3,), loss="squared_error") if loss == "network" else LinearModel(loss, alpha=0.0)
    model = model.bind(2, 2) if loss == "log_loss" else model.bind(2)
    others = [rows_of(loss, 1.0, n_rows, k) for k, n_rows in enumerate([2, 2, 3])]
    release = RELEASES[name]
    for root in (0.5, 2e7) if "moves" not in name else (0.5,):
        arguments = asked(name, model.n_params, root)
        release.check(model, arguments)
        blocks, site = release.blocks(model, arguments), private_site(model, others)
        alone = [release.sums(site, arguments, True, np.arange(3) == k) for k in range(3)]
        out = release.sums(site, arguments)
        for scale, n_rows, *weight in ADDED.values():
            site = private_site(model, [rows_of(loss, scale, n_rows, -1, *weight), *others])
            for k, own in enumerate(alone):
                inside = release.sums(site, arguments, True, np.arange(-1, 3) == k)
                assert all(np.array_equal(own[key], inside[key]) for key in blocks)
            inside = release.sums(site, arguments)
            sizes = {key: np.linalg.norm(inside[key] - out[key]) / blocks[key].clip for key in out}
            assert sum(blocks[key].share * sizes[key] ** 2 for key in sizes) <= 1 + 1e-9
