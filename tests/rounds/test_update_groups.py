"""Groups of clients by their updates: FlexCFL and FL+HC."""

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import cosine_similarity

from skcfl import FlexCFLRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.rounds.update_groups import absolute_differences, cosines, decomposed_cosines

DATA = make_clustered_regression(16, 4, 6, n_samples=(30, 50), random_state=0)
IDS = np.unique(DATA.groups)


def fit(model, data=DATA):
    return model.fit(data.X, data.y, groups=data.groups)


def test_embeddings_are_the_papers():
    U = np.random.RandomState(0).standard_normal((9, 20))
    C = cosine_similarity(U)
    np.testing.assert_allclose(cosines(U, U), C, atol=1e-12)
    n, M = len(C), np.zeros_like(C)
    for i in range(n):
        for j in range(n):
            others = [z for z in range(n) if z not in (i, j)]
            M[i, j] = np.abs(C[i, others] - C[j, others]).mean() if i != j else 0.0
    np.testing.assert_allclose(absolute_differences(C), M, atol=1e-12)
    directions = TruncatedSVD(3, algorithm="arpack", random_state=0).fit(U).components_
    wanted = cosine_similarity(U, directions)
    np.testing.assert_allclose(np.abs(decomposed_cosines(U, 3)), np.abs(wanted), atol=1e-10)
    assert not cosines(np.zeros((1, 4)), np.ones((1, 4))).any()


@pytest.mark.parametrize("options", [{}, {"embedding": "madc"}, {"embedding": "flhc"}])
def test_newcomers_go_by_direction(options):
    """Clients not drawn, and new ones, are where those with alike updates are."""
    model = fit(FlexCFLRegressor(4, n_pretrain=13, random_state=0, **options))
    assert adjusted_rand_score(DATA.labels, model.labels_) == 1.0
    known = fit(FlexCFLRegressor(4, random_state=0, **options))
    np.testing.assert_array_equal(known.assign(DATA.X, DATA.y, DATA.groups), known.labels_)
    rows = ~np.isin(DATA.groups, IDS[:3])
    some = FlexCFLRegressor(4, random_state=0, **options)
    some.fit(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    new = some.adapt(DATA.X[~rows], DATA.y[~rows], DATA.groups[~rows])
    assert adjusted_rand_score(DATA.labels, new.labels_) == 1.0


def test_direction_and_not_loss():
    """A client of other size of the same slopes: its direction is a group's, its loss nobody's."""
    model = fit(FlexCFLRegressor(4, standardize=False, fit_intercept=False, random_state=0))
    here = DATA.groups == IDS[0]
    scaled = model.assign(DATA.X[here], 0.05 * DATA.y[here])
    assert scaled == model.labels_[0]
    assert model.cluster_losses(DATA.X[here], 0.05 * DATA.y[here]).argmin() != scaled


def test_a_threshold_finds_the_number():
    for unit in (1.0, 1e3):
        model = FlexCFLRegressor(
            embedding="flhc", linkage="average", distance_threshold=0.5, random_state=0
        ).fit(DATA.X, unit * DATA.y, groups=DATA.groups)
        assert model.n_clusters_ == 4
    with pytest.raises(ValueError, match="distance_threshold cuts the tree of embedding='flhc'"):
        fit(FlexCFLRegressor(distance_threshold=0.5))
    with pytest.raises(ValueError, match="linkage='ward' is with metric='euclidean' only"):
        fit(FlexCFLRegressor(4, embedding="flhc", metric="cosine"))
