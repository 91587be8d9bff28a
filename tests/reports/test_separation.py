"""Reports of clusterers of points and of rows: how separate clusters are, and what is between."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import make_blobs

from skcfl import KFED, ConvexClustering
from skcfl.federation import Faults, InProcessFederation
from skcfl.reports.separation import Separation


def test_separation_by_hand():
    points = np.array([[0.0, 1.0], [2.0, 1.0], [10.0, 1.0]])
    found = Separation.of(points, np.array([0, 0, 1]), np.array([1.0, 3.0, 2.0]), 2)
    assert_allclose(found.means, [[1.5, 1.0], [10.0, 1.0]])
    assert_allclose(found.spreads, [np.sqrt((1.5**2 + 3 * 0.5**2) / 4), 0.0], atol=1e-15)
    assert_allclose(found.silhouettes, [(10 - 1.5) / 10, (8 - 0.5) / 8, 0.0])
    means = Separation.of(points, np.array([0, 0, 1]), np.array([1.0, 3.0, 2.0]), 2, single=False)
    assert_allclose(means.silhouettes, [(10 - 1.5) / 10, (8 - 0.5) / 8, 1.0])
    mean = (6 + 20) / 6
    total = mean**2 + 3 * (2 - mean) ** 2 + 2 * (10 - mean) ** 2
    assert found.explained == pytest.approx(1 - (1.5**2 + 3 * 0.5**2) / total)
    # Neither units nor an origin far away change what is said of shape.
    far = Separation.of(1e3 * points + 1e9, np.array([0, 0, 1]), np.array([1.0, 3.0, 2.0]), 2)
    assert far.spreads[1] == 0.0
    assert_allclose(far.silhouettes, found.silhouettes, rtol=1e-6)
    assert far.explained == pytest.approx(found.explained, rel=1e-6)


def test_points():
    X, labels = make_blobs(90, centers=[[0, 0, 0], [20, 0, 0], [0, 20, 0]], random_state=0)
    X[7] = X[labels != labels[7]].mean(axis=0) / 2 + X[labels == labels[7]].mean(axis=0) / 2
    report = ConvexClustering().fit(np.delete(X, 7, axis=0)).report()
    find = report.findings
    assert find["n_clusters"] == 3 and find["optimal"] is True and not find["not_settled"]
    assert find["silhouette"] > 0.8 and find["explained"] > 0.95
    text = str(report)
    assert "3, clearly separate" in text and "89 points" in text
    # x2 differs least.
    lines = [line.split()[0] for line in text.splitlines() if line.startswith("  x")]
    assert lines[-1] == "x2"
    assert "<table>" in report._repr_html_()


def test_one_cluster_has_nothing_to_be_separate_from():
    report = ConvexClustering(1e9).fit(np.random.RandomState(0).normal(size=(30, 2))).report()
    assert report.findings["n_clusters"] == 1 and "unsure" not in report.findings
    assert np.isnan(report.findings["silhouette"]) and "one cluster" in str(report)
    same = ConvexClustering().fit(np.ones((5, 2))).report()
    assert same.findings["explained"] == 0.0


def test_rows_of_clients_elsewhere():
    X, _ = make_blobs(120, centers=[[0, 0], [9, 0], [0, 9]], random_state=0)
    groups = np.array(list("abcd"))[np.arange(120) % 4]
    # A few rows of a client are between two clusters.
    keep = (groups != "d") | (np.arange(120) < 20)
    X[groups == "d"] = [4.0, 0.0] + 0.01 * np.random.RandomState(0).normal(size=(30, 2))
    X, groups = X[keep], groups[keep]
    faults = Faults(dead=["a"])
    model = KFED(3, n_local=3, random_state=0)
    report = model.fit_federation(InProcessFederation(X, None, groups, faults=faults)).report()
    assert report.findings["unsure"][0] == "d" and report.findings["n_clusters"] == 3
    assert report.findings["not_settled"] == [
        "what the rows of client 'a' say, which took no part"
    ]
    assert "What was not settled?" in str(report)
