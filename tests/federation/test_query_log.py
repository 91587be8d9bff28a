"""What a site has answered is kept in a file, for hosts that come after."""

import sqlite3

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from private_clients import where
from scipy import sparse

from skcfl import DittoRegressor, FedAvgRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import FederationError
from skcfl.federation import InProcessFederation, SitePolicy
from skcfl.federation.query_log import row_keys
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.rows import merged
from skcfl.federation.sites import Refused
from skcfl.models import LinearModel

MODEL = LinearModel(alpha=0.1, standardize=False).bind(2)
N = 30, 300


def table(seed=0):
    """Rows of two clients, some of them equal: X, y and the clients."""
    rng = np.random.RandomState(seed)
    X = rng.normal(size=(sum(N), 2))
    X[3:6] = X[3]
    return X, np.where(np.arange(sum(N)) < 9, 1.0, X.sum(axis=1)), np.repeat(["a", "b"], N)


def host(path, rows=None, **limits):
    """Rows of a host that is made anew, in the first fit."""
    policy = SitePolicy(**{"min_rows": 10, **limits}, query_log=path)
    X, y, groups = table() if rows is None else rows
    federation = InProcessFederation(X, y, groups, policy=policy)
    return federation.rows_at(np.arange(len(federation.ids)), MODEL, np.dtype(float), None)


def answered(site):
    """Clients that answer."""
    answers = site.answer("losses", {"theta": np.ones((1, 3))})
    return answers.get("answered", np.ones(site.n_clients, dtype=bool)).tolist()


def test_no_sums_of_many_hosts_together_tell_of_few_rows(tmp_path):
    """Each host deals the rows to other halves: forty gave every row by linear equations."""
    for path, well in ((tmp_path / "log", True), (None, False)):
        told, masks = [], []
        for seed in range(20):
            for half in host(path).site(MODEL).held_out(0.5, seed):
                told.append(answered(half))
                masks.append(np.isin(np.arange(sum(N)), half.site.row_ids))
        told, masks = np.array(told), np.array(masks)
        assert told[:2].all() and told[:, 1].sum() > 4
        for k, owned in enumerate((slice(0, N[0]), slice(N[0], None))):
            parts = masks[told[:, k], owned]
            assert (np.unique(parts, axis=1, return_counts=True)[1].min() >= 10) == well


def test_rows_are_known_again_in_any_order(tmp_path):
    X, y, groups = table()
    assert all(map(all, map(answered, host(tmp_path / "log").site(MODEL).held_out(0.5, 0))))
    order = np.random.RandomState(1).permutation(len(y))
    for rows in (
        (X[order], y[order], groups[order]),
        (pd.DataFrame(X, columns=["u", "v"]), pd.Series(y), groups.astype(object)),
    ):
        site = host(tmp_path / "log", rows).site(MODEL)
        assert answered(site) == [True, True]
        # The same halves of the same rows, and then others.
        assert all(map(all, map(answered, site.held_out(0.5, 0))))
        assert [part.client_sizes[0] for part in site.held_out(0.5, 1)] == [30, 30]
    keys = row_keys(X, y, np.array(["a", "b"]), (groups == "b").astype(int))
    assert len(set(keys)) == len(y)
    # Numbers of any type, and zeros of any kind, are the same; other weights are not.
    X[20:30, 0], ids, codes = 0.0, np.array([1, 2]), (groups == "b").astype(int)
    about = X, np.arange(len(y)) % 2, ids, codes
    wanted = row_keys(*about)
    stored = sparse.csr_array(np.where(X == 0, 1.0, X))
    stored.data[X[stored.nonzero()] == 0] = 0.0  # zeros that have a place
    for other in (
        (sparse.csr_array(X), *about[1:]),
        (stored, *about[1:]),
        (np.where(X == 0, -0.0, X), about[1] == 1, ids.astype(float), codes),
        (*about, np.ones(len(y), dtype=int)),
    ):
        assert row_keys(*other) == wanted
    assert not set(row_keys(*about, np.full(len(y), 2.0))) & set(wanted)


@pytest.mark.parametrize("change, allowed", [(1, False), (9, False), (10, True)])
def test_a_few_new_or_lost_rows(tmp_path, change, allowed):
    """Sums with and without them would tell of few rows; of the other client nothing changes."""
    X, y, groups = table()
    kept = np.arange(len(y)) >= change
    few, every = (X[kept], y[kept], groups[kept]), (X, y, groups)
    for name, (first, second) in {"new": (few, every), "lost": (every, few)}.items():
        assert answered(host(tmp_path / name, first).site(MODEL)) == [True, True]
        assert answered(host(tmp_path / name, second).site(MODEL)) == [allowed, True]
        # What was refused is not taken for answered.
        assert answered(host(tmp_path / name, first).site(MODEL)) == [True, True]
    # So of two parts of one place.
    parts = [where(every, groups == name) for name in "ab"]
    both = merged([host(tmp_path / "parts", part) for part in parts])
    assert answered(both.site(MODEL)) == [True, True]
    one = where(few, few[2] == "a")
    assert answered(host(tmp_path / "parts", one).site(MODEL)) == [allowed]


def test_hosts_at_once_and_calls_and_caps_of_all(tmp_path):
    limits = {"max_calls": 3, "min_clients": 2}
    first, second = (host(tmp_path / "log", **limits) for _ in range(2))
    theta = {"theta": np.ones((1, 3))}
    first.site(MODEL).answer("losses", theta)
    second.site(MODEL).answer("losses", theta)
    capped = first.capped(20.0)
    with pytest.raises(Refused, match="weights that have another cap"):
        second.capped(25.0)
    second.capped(20.0)
    capped.site(MODEL).answer("losses", theta)
    for rows in (first, second, host(tmp_path / "log", **limits)):
        with pytest.raises(Refused, match="it has answered max_calls=3 calls"):
            rows.site(MODEL).answer("losses", theta)
    # Halves that one host has dealt bind the other one, which had read the file before.
    one, other = (host(tmp_path / "halves").site(MODEL) for _ in range(2))
    assert answered(one) == answered(other) == [True, True]
    assert [answered(part)[0] for part in one.held_out(0.5, 0)] == [True, True]
    assert [part.client_sizes[0] for part in other.held_out(0.5, 1)] == [30, 30]
    assert [part.client_sizes[0] for part in other.held_out(0.5, 0)] == [15, 15]


def test_fits_of_sites(tmp_path):
    """Job after job: the same fit as without a file, until rows would be cut otherwise."""
    data = make_clustered_regression(6, 2, n_samples=40, random_state=0)
    parts = parts_of(data, 2)

    def fitted(seed, *names):
        hosts = []
        for name, part in zip(names or (None, None), named(parts), strict=True):
            log = None if name is None else tmp_path / name
            policy = SitePolicy(min_rows=8, query_log=log)
            hosts.append(PickledHost([part], policy=policy))
        model = DittoRegressor(lam="auto", random_state=seed)
        return model.fit_federation(RemoteFederation(hosts))

    wanted = fitted(0)
    for _ in range(2):
        assert_array_equal(fitted(0, "first", "second").params_, wanted.params_)
    assert not np.array_equal(fitted(1).params_, wanted.params_)
    with pytest.raises(FederationError, match="no client holds rows out: .* than before"):
        fitted(1, "first", "second")


def test_files_that_cannot_be(tmp_path):
    (tmp_path / "text").write_text("some notes of a colleague, which stay as they are" * 40)
    for path in (tmp_path / "text", tmp_path / "away" / "log", tmp_path):
        with pytest.raises(ValueError, match="query_log must be a file that a policy has made"):
            SitePolicy(query_log=path)
    assert (tmp_path / "text").read_text().startswith("some notes")
    rows = host(tmp_path / "log")
    with sqlite3.connect(tmp_path / "log") as file:
        file.execute("DROP TABLE rows")
    with pytest.raises(Refused, match="it cannot write its query_log: no such table"):
        rows.site(MODEL)
    federation = InProcessFederation(*table(), policy=SitePolicy(query_log=str(tmp_path / "one")))
    assert FedAvgRegressor().fit_federation(federation).score(*table()[:2], groups=table()[2]) > 0
    assert (tmp_path / "one").stat().st_mode & 0o077 == 0
