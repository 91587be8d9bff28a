"""Models of many parameters: fewer fits in a search."""

import pytest
from trials import some

from skcfl import ConvexClusteredFLRegressor, FPFCRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.search import judges

DATA = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)


DEAR = [(FPFCRegressor, 1), (ConvexClusteredFLRegressor, 3)]


@pytest.mark.parametrize(("kind", "seeds"), some(DEAR, 1))
def test_few_fits_where_each_is_dear(kind, seeds, monkeypatch):
    """The number of values of lam depends on the draw of the folds."""

    def fits():
        options = [{"random_state": seed} for seed in range(seeds)]
        return [kind(**own).fit(DATA.X, DATA.y, groups=DATA.groups) for own in options]

    usual = fits()
    monkeypatch.setattr(judges, "LARGE", 1)
    few = fits()
    assert {fit.n_clusters_ for fit in usual + few} == {3}
    tried = [sum(len(fit.lam_search_["lam"]) for fit in some) for some in (few, usual)]
    assert tried[0] < 0.6 * tried[1]
    assert sum(fit.floats_up_ for fit in few) < 0.75 * sum(fit.floats_up_ for fit in usual)


def test_clusters_between_two_of_few_values_are_found(monkeypatch):
    """Four values of lam, of which one has all clients alone and the next all in one cluster."""
    monkeypatch.setattr(judges, "LARGE", 1)
    fits = [FPFCRegressor(random_state=seed) for seed in some(range(6), 2)]
    found = [fit.fit(DATA.X, DATA.y, groups=DATA.groups).n_clusters_ for fit in fits]
    assert found == [3] * len(fits)
