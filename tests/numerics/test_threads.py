"""Small work starts no threads, and leaves those of others as they were."""

from contextlib import nullcontext
from threading import Barrier

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from skcfl import FedAvgRegressor
from skcfl.federation.hosted_parts import ROOT, Host, HostedParts
from skcfl.numerics import kmeans
from skcfl.numerics.once import once
from skcfl.numerics.threads import BLAS, at_once, one_thread


def threads(kind="blas"):
    """Threads by library; some libraries never have more than they began with."""
    found = threadpool_info()
    return {each["filepath"]: each["num_threads"] for each in found if each["user_api"] == kind}


def of_one(found):
    return set(found.values()) == {1}


def test_few_vectors_are_clustered_in_one_thread(monkeypatch):
    seen, means = [], kmeans.KMeans

    class Noted(means):
        def fit(self, *args, **kwargs):
            seen.extend(library["num_threads"] for library in threadpool_info())
            return super().fit(*args, **kwargs)

    monkeypatch.setattr(kmeans, "KMeans", Noted)
    vectors = np.repeat(np.eye(3), 4, axis=0) * 9.0 + np.random.RandomState(0).normal(size=(12, 3))
    with threadpool_limits(2):
        found = kmeans.long_kmeans(vectors, 3, np.random.RandomState(0))
    assert set(seen) == {1}
    wanted = means(3, n_init=10, random_state=np.random.RandomState(0)).fit(vectors)
    assert (found.labels_ == wanted.labels_).all()


@pytest.mark.parametrize("n_jobs", [None, 1, 3])
def test_results_are_in_the_order_of_the_items(n_jobs):
    assert at_once(lambda item: item**2, list(range(50)), n_jobs) == [k**2 for k in range(50)]
    assert at_once(abs, [], n_jobs) == []


@pytest.mark.parametrize("fails", [False, True])
def test_fits_keep_blas_to_one_thread_and_give_it_back(fails, monkeypatch):
    seen, solve = [], FedAvgRegressor._solve

    def noted(self, pool):
        seen.append(threads())
        if fails:
            raise RuntimeError("no model")
        return solve(self, pool)

    monkeypatch.setattr(FedAvgRegressor, "_solve", noted)
    X, y, groups = np.eye(6), np.arange(6.0), np.repeat([0, 1], 3)
    with threadpool_limits(2, "blas"):
        before = threads()
        with pytest.raises(RuntimeError, match="no model") if fails else nullcontext():
            FedAvgRegressor().fit(X, y, groups=groups)
        assert threads() == before and not of_one(before)
    assert [of_one(each) for each in seen] == [True]


def test_sites_compute_in_one_thread(monkeypatch):
    monkeypatch.setattr(HostedParts, "look", lambda self: threads(), raising=False)
    host = Host([(0, "part", (np.eye(2), np.arange(2.0), np.zeros(2)))])
    with threadpool_limits(2, "blas"):
        before = threads()
        word, found = host.ask(ROOT, [], [], "look", ())
        assert word == "done" and of_one(found)
        assert threads() == before and not of_one(before)


def test_those_who_leave_first_take_no_threads_from_others():
    """Two fits at the same time, of which the first one ends first."""
    with threadpool_limits(2, "blas"):
        before, first, second = threads(), one_thread(), BLAS
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert of_one(threads())
        second.__exit__(None, None, None)
        assert threads() == before and not of_one(before)


def test_properties_of_two_objects_are_computed_at_the_same_time():
    """Such as those of two folds that take turns: neither ends before the other begins."""
    both = Barrier(2, timeout=20)

    class Found:
        @once
        def value(self):
            return both.wait()

    found = [Found(), Found()]
    assert sorted(at_once(lambda each: each.value, found, 2)) == [0, 1]
    assert sorted(each.value for each in found) == [0, 1]
