"""Models of many parameters: fewer fits in a search."""

from skcfl import FPFCRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.search import judges

DATA = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)


def test_few_fits_where_each_is_dear(monkeypatch):
    """Of few values of lam one has all clients alone and the next all in one cluster.

    The clusters between these two are found.
    """

    def fit():
        return FPFCRegressor(random_state=0).fit(DATA.X, DATA.y, groups=DATA.groups)

    usual = fit()
    monkeypatch.setattr(judges, "LARGE", 1)
    few = fit()
    assert few.n_clusters_ == usual.n_clusters_ == 3
    assert len(few.lam_search_["lam"]) < 0.6 * len(usual.lam_search_["lam"])
    assert few.floats_up_ < 0.75 * usual.floats_up_
