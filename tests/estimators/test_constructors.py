"""Constructors of the everyday classes, which are made from those of the generic ones."""

import contextlib
import inspect
import pickle
import pydoc

import pytest
from sklearn.base import clone
from sklearn.utils._param_validation import generate_invalid_param_val, make_constraint

import skcfl
from skcfl import (
    IFCA,
    ConvexClusteredFL,
    ConvexClusteredFLRegressor,
    FedAvg,
    FedAvgClassifier,
    FPFCRegressor,
    IFCAClassifier,
    IFCARegressor,
)
from skcfl.base.everyday import everyday
from skcfl.fusion import solvers
from skcfl.rounds import aggregation

ALL = [getattr(room, name) for room in (skcfl, solvers, aggregation) for name in room.__all__]
CHECKED = [cls for cls in ALL if hasattr(cls, "_parameter_constraints")]


def parameters(cls):
    return inspect.signature(cls).parameters


def test_everyday_classes_take_the_local_models_parameters_in_place_of_model():
    linear = ["alpha", "fit_intercept", "standardize"]
    network = ["hidden_layer_sizes", "activation"]
    _, clusters, *rest = parameters(IFCA)
    assert list(parameters(IFCARegressor)) == [clusters, "loss", *linear, *network, *rest]
    local = [*linear, "class_weight", *network]
    assert list(parameters(IFCAClassifier)) == [clusters, "loss", *local, *rest]
    assert list(parameters(ConvexClusteredFLRegressor))[1:5] == ["loss", *linear]
    assert "hidden_layer_sizes" not in parameters(ConvexClusteredFLRegressor)
    model, *rest = parameters(FedAvg)
    assert model == "model" and list(parameters(FedAvgClassifier))[-len(rest) :] == rest


def test_defaults_are_the_generic_classes_where_nothing_else_is_said():
    generic, everyday = parameters(ConvexClusteredFL), parameters(ConvexClusteredFLRegressor)
    differ = {n for n in everyday if n in generic and everyday[n].default != generic[n].default}
    assert differ == {"graph", "penalty"}
    assert FedAvgClassifier().loss == "log_loss" and IFCARegressor().loss == "squared_error"


def test_one_parameter_may_be_given_by_position():
    assert IFCAClassifier(3).n_clusters == 3
    assert FedAvgClassifier("squared_hinge").loss == "squared_hinge"
    assert FPFCRegressor(7.0).lam == 7.0
    for cls in (IFCAClassifier, FedAvgClassifier, FPFCRegressor):
        with pytest.raises(TypeError, match=rf"{cls.__name__}\.__init__\(\) too many positional"):
            cls(2, 3)


@pytest.mark.parametrize("cls", [IFCARegressor, FPFCRegressor])
def test_unknown_keywords_are_refused_by_name(cls):
    expected = rf"{cls.__name__}\.__init__\(\) got an unexpected keyword argument 'n_cluster'"
    with pytest.raises(TypeError, match=expected):
        cls(n_cluster=3)


class OwnConstructor(IFCARegressor):
    def __init__(self, n_clusters=4, *, tol=1e-3, extra="no"):
        super().__init__(n_clusters, tol=tol)
        self.extra = extra


class SameConstructor(IFCAClassifier):
    pass


def refused(allowed):
    """Values of no kind that a parameter may have, and beyond its bounds and names."""
    allowed = [make_constraint(each) for each in allowed]
    values = [object()]
    for each in allowed:
        with contextlib.suppress(NotImplementedError):
            values.append(generate_invalid_param_val(each))
    return [v for v in values if not any(each.is_satisfied_by(v) for each in allowed)]


@pytest.mark.parametrize("cls", CHECKED, ids=lambda cls: cls.__name__)
def test_what_is_not_declared_is_refused_by_name(cls):
    for name in parameters(cls).keys() & cls._parameter_constraints.keys():
        for value in refused(cls._parameter_constraints[name]):
            message = f"The '{name}' parameter of {cls.__name__} must be"
            with pytest.raises(ValueError, match=message):
                cls(**{name: value})._validate_params()


def test_users_may_derive_from_them():
    own = clone(OwnConstructor(extra="yes"))
    assert own.get_params() == {"n_clusters": 4, "tol": 1e-3, "extra": "yes"}
    assert own.max_iter == "auto" and own.verbose == 0
    same = pickle.loads(pickle.dumps(clone(SameConstructor(2, alpha=0.5))))
    assert same.get_params() == IFCAClassifier(2, alpha=0.5).get_params()


def test_help_shows_the_parameters():
    text = pydoc.plain(pydoc.render_doc(IFCARegressor))
    text = "".join(text.replace("|", "").split())  # from Python 3.13 on a parameter a line
    assert "IFCARegressor(n_clusters='auto',*,loss='squared_error',alpha='auto'" in text
    assert "__init__(self,n_clusters='auto',*,loss='squared_error'" in text


def test_a_default_of_no_parameter_is_a_mistake():
    with pytest.raises(KeyError, match="grap"):
        everyday(ConvexClusteredFL, grap="knn")
