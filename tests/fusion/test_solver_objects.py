"""Solvers and penalties given as objects: equal to their names, validated, nested parameters."""

import numpy as np
import pytest
from sklearn.base import clone

from skcfl import ConvexClusteredFLRegressor, FPFCRegressor, GTVRegressor, LamSearch
from skcfl.datasets import make_clustered_regression
from skcfl.fusion.solvers import ADMM, PDMM, FPFCRounds, InexactPrimalDual, PrimalDual
from skcfl.penalties import L2, MCP, SCAD

DATA = make_clustered_regression(8, 2, 3, n_samples=20, random_state=0)


def fit(model):
    return model.fit(DATA.X, DATA.y, groups=DATA.groups)


@pytest.mark.parametrize(
    "name, given", [("admm", ADMM()), ("primal_dual", PrimalDual()), ("pdmm", PDMM())]
)
def test_objects_with_default_values_are_their_names(name, given):
    options = {"graph": "complete", "random_state": 0}
    one = fit(ConvexClusteredFLRegressor(0.05, solver=name, **options))
    other = fit(ConvexClusteredFLRegressor(0.05, solver=clone(given), **options))
    np.testing.assert_array_equal(one.fusion_params_, other.fusion_params_)
    assert one.n_iter_ == other.n_iter_


@pytest.mark.parametrize("solver", [ADMM, PrimalDual, PDMM, InexactPrimalDual, FPFCRounds])
def test_options_are_nested_parameters(solver):
    cls = FPFCRegressor if solver is FPFCRounds else GTVRegressor
    model = clone(cls(solver=solver()))
    for name, value in solver().get_params().items():
        assert model.get_params()[f"solver__{name}"] == value
        with pytest.raises(ValueError, match=f"'{name}' parameter of {solver.__name__}"):
            fit(cls(0.1).set_params(solver=solver(**{name: "much"})))


def test_rounds_of_none_take_values():
    model = FPFCRegressor().set_params(solver__n_iter_no_change=3)
    assert model.solver.n_iter_no_change == 3
    with pytest.raises(ValueError, match="The 'solver' parameter of FPFC"):
        fit(FPFCRegressor(solver="admm"))


@pytest.mark.parametrize("name, given", [("scad", SCAD()), ("mcp", MCP()), ("scad", SCAD(5.0))])
def test_concave_penalties_by_name_and_object(name, given):
    """The lam of the estimator takes the place of that of the object."""
    one, other = fit(FPFCRegressor(0.5, penalty=name)), fit(FPFCRegressor(0.5, penalty=given))
    np.testing.assert_array_equal(one.fusion_params_, other.fusion_params_)
    assert one.penalty_scale_ == other.penalty_scale_


def test_scale_and_shape_of_a_concave_penalty():
    usual = fit(FPFCRegressor(0.5))
    weak = SCAD(scale=0.01 * usual.penalty_scale_)
    scaled = fit(FPFCRegressor(0.5, penalty=weak))
    assert scaled.penalty_scale_ == weak.scale and scaled.penalty is weak
    assert scaled.n_clusters_ > usual.n_clusters_
    same = fit(FPFCRegressor(0.5, penalty=SCAD(scale=usual.penalty_scale_)))
    np.testing.assert_allclose(same.fusion_params_, usual.fusion_params_, rtol=1e-12)
    assert same.objective_ == pytest.approx(usual.objective_)
    wide = fit(FPFCRegressor(0.5, penalty=SCAD(a=30.0)))
    assert wide.objective_ != usual.objective_


def test_penalties_are_published_by_name():
    model = fit(ConvexClusteredFLRegressor(0.05, penalty=L2()))
    assert model.penalty_ == "l2"
    fpfc = FPFCRegressor(alpha=0.01, search=LamSearch(lams=[0.5]))
    assert set(fit(fpfc).lam_search_["penalty"]) == {"scad"}
    fpfc.set_params(penalty=SCAD(a=4.0))
    assert set(fit(fpfc).lam_search_["penalty"]) == {"SCAD(a=4.0)"}
