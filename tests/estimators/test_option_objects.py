"""Parameters that are objects: ``training``, ``record`` and ``aggregation``."""

import inspect
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import skcfl
from skcfl import CLoVERegressor, FedAvgRegressor, IFCARegressor, Record, Training
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.models import LinearModel
from skcfl.models.losses import Huber, Logistic, SquaredError
from skcfl.rounds.aggregation import Krum, Mean, TrimmedMean

DATA = make_clustered_regression(8, 2, 3, n_samples=20, random_state=0)
CLASSES = make_clustered_classification(8, 2, 3, n_samples=20, random_state=0)
ESTIMATORS = [
    cls
    for cls in (getattr(skcfl, name) for name in skcfl.__all__)
    if getattr(cls, "_option_classes", None)
]
#: A value other than the default of each option.
OTHERS = {
    Training: {
        "averaging": "model",
        "local_steps": 3,
        "optimizer": "momentum",
        "step_size": 0.01,
        "batch_size": 4,
        "participation": 0.5,
        "weights": "uniform",
        "polish": False,
        "hold_out": 0.2,
        "division": "all",
        "stable_rounds": 2,
    },
    Record: {"true_labels": [0, 1] * 4, "models": True},
}
#: Values that no method takes, by class and option.
WRONG = [
    (Training, "local_steps", 2.5),
    (Training, "step_size", np.nan),
    (Training, "participation", 1.5),
    (Record, "true_labels", "first"),
    (TrimmedMean, "trim", 0.5),
    (Krum, "trim", -0.1),
]
OWNERS = {Training: "training", Record: "record", TrimmedMean: "aggregation", Krum: "aggregation"}


def fit(model, data=DATA):
    return model.fit(data.X, data.y, groups=data.groups)


def refused(model, message):
    """Check the error of a fit, and that it came before anything was fitted."""
    before = dict(vars(model))
    with pytest.raises(ValueError, match=message):
        fit(model, CLASSES if type(model).__name__.endswith("Classifier") else DATA)
    assert vars(model) == before


def uses(cls, owner):
    """Names of the options that a class uses of an object."""
    kind = cls._option_classes[owner]
    return cls._option_names.get(owner, tuple(inspect.signature(kind).parameters))


def test_every_option_has_another_value_here():
    for kind, values in OTHERS.items():
        defaults = kind().get_params()
        assert values.keys() == defaults.keys()
        assert all(np.ndim(v) or v != defaults[name] for name, v in values.items())


@pytest.mark.parametrize("kind", OTHERS)
def test_objects_are_cloned_pickled_and_printed_with_what_is_not_default(kind):
    values = OTHERS[kind]
    made = kind(**values)
    for each in (made, clone(made), pickle.loads(pickle.dumps(made))):
        assert each.get_params() == values
    assert repr(kind()) == f"{kind.__name__}()"
    name, value = list(values.items())[-1]
    assert repr(kind(**{name: value})) == f"{kind.__name__}({name}={value!r})"


def test_operators_are_objects_of_options():
    assert repr(TrimmedMean(0.1)) == "TrimmedMean(trim=0.1)"
    assert clone(Krum(0.3)).get_params() == {"trim": 0.3}
    model = IFCARegressor(aggregation=TrimmedMean(0.1))
    assert clone(model).aggregation.trim == 0.1
    assert model.set_params(aggregation__trim=0.3).get_params()["aggregation__trim"] == 0.3


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_clones_have_objects_of_their_own(cls):
    for owner, kind in cls._option_classes.items():
        if kind not in OTHERS:
            continue
        name = uses(cls, owner)[0]
        model = cls().set_params(**{f"{owner}__{name}": OTHERS[kind][name]})
        copy = clone(model)
        mine, other = getattr(model, owner), getattr(copy, owner)
        assert isinstance(mine, kind) and mine is not other
        wanted = kind().get_params() | {name: OTHERS[kind][name]}
        assert mine.get_params() == other.get_params() == wanted
        assert f"{owner}={kind.__name__}({name}=" in repr(copy)
        # Not shared with other estimators, whose None is the object with default values.
        assert getattr(cls(), owner) is None
        assert cls()._option(owner).get_params() == kind().get_params()


def test_nested_names_set_options_of_none_and_of_an_object():
    model = IFCARegressor().set_params(training__local_steps=3, record__models=True)
    assert model.training.get_params() == Training(local_steps=3).get_params()
    assert model.record.models
    model.set_params(training__polish=False)
    assert (model.training.local_steps, model.training.polish) == (3, False)
    given = Training(hold_out=0.3)
    model.set_params(training=given, training__local_steps=7)
    assert model.training is given and given.local_steps == 7
    model.set_params(training=None, training__local_steps=9)
    assert model.training.get_params() == Training(local_steps=9).get_params()
    with pytest.raises(ValueError, match="Invalid parameter 'steps' for estimator Training"):
        model.set_params(training__steps=3)
    with pytest.raises(ValueError, match="Invalid parameter 'local_steps'"):
        model.set_params(local_steps=3)


@pytest.mark.parametrize("name", ["loss", "aggregation", "init"])
def test_names_have_no_parameters_to_set(name):
    model = skcfl.IFCARegressor()
    with pytest.raises(ValueError, match=f"{name}='.*' is a name, which has no parameters"):
        model.set_params(**{f"{name}__size": 1})
    assert model.get_params() == skcfl.IFCARegressor().get_params()


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_an_option_that_a_method_does_not_use_is_refused_by_name(cls):
    for owner, kind in cls._option_classes.items():
        if kind not in OTHERS:
            continue
        for name, value in OTHERS[kind].items():
            model = cls(**{owner: kind(**{name: value})})
            message = rf"^{owner}: {cls.__name__} does not use {name}, got .* It uses "
            if name in uses(cls, owner):
                model._validate_params()
                continue
            refused(model, message)


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
@pytest.mark.parametrize("cls", [IFCARegressor, CLoVERegressor])
def test_invalid_values_name_the_object_and_the_parameter(cls, kind, name, value):
    owner = OWNERS[kind]
    message = rf"^{owner}: The '{name}' parameter of {kind.__name__} must be "
    refused(cls(2, **{owner: kind(**{name: value})}), message)


@pytest.mark.parametrize("steps", ["exact", [1] * 8])
def test_steps_that_only_fpfc_takes(steps):
    training = Training(averaging="model", local_steps=steps)
    refused(IFCARegressor(2, training=training), "training: local_steps must be 'auto' or one")


def test_a_fit_leaves_the_objects_as_they_were():
    objects = {"training": Training(), "aggregation": TrimmedMean(), "record": Record()}
    before = {name: thing.get_params() for name, thing in objects.items()}
    fit(IFCARegressor(2, random_state=0, **objects))
    assert {name: thing.get_params() for name, thing in objects.items()} == before
    named, given = (
        fit(FedAvgRegressor(aggregation=each)).params_ for each in ("trimmed_mean", TrimmedMean())
    )
    assert_array_equal(named, given)


@pytest.mark.parametrize(
    ("name", "step"),
    [("FlexCFL", 10**30), ("FedALA", 1e60)],
)
def test_steps_that_are_too_long_are_named(name, step):
    model = getattr(skcfl, f"{name}Regressor")(training=Training(step_size=step), random_state=0)
    with pytest.raises(ValueError, match=f"{name}Regressor diverged: .*step_size=1.* is too long"):
        model.fit(DATA.X, DATA.y, groups=DATA.groups)


def test_steps_of_per_fedavg_that_are_too_long_are_halved():
    near, far = (
        skcfl.PerFedAvgRegressor(training=training, personal_steps=3)
        .fit(DATA.X, DATA.y, groups=DATA.groups)
        .cluster_params_
        for training in (Training(), Training(step_size=1e60))
    )
    assert_allclose(far, near, atol=1e-5)


@pytest.mark.parametrize("name, loss", [("Regressor", Logistic()), ("Classifier", Huber())])
def test_losses_of_the_other_kind_are_refused(name, loss):
    data = CLASSES if name == "Classifier" else DATA
    with pytest.raises(ValueError, match=f"'loss' parameter of FedAvg{name} .* {name.lower()}"):
        getattr(skcfl, f"FedAvg{name}")(loss).fit(data.X, data.y, groups=data.groups)


def test_clients_are_dealt_to_models_that_are_all_the_same():
    """Losses would send all of them to the first."""
    how = {"init": "same", "n_init": 1, "max_iter": 1, "random_state": 0}
    brief = {"training": Training(polish=False), "record": Record(models=True)}
    with pytest.warns(ConvergenceWarning):
        model = fit(IFCARegressor(2, **how, **brief))
    assert np.bincount(model.round_labels_[0]).tolist() == [4, 4]


class Width:
    """Of a user, the parameter has no default."""

    def __init__(self, width):
        self.width = width


class ScaledSquares(Width, SquaredError):
    """A user's loss."""


class ScaledMean(Width, Mean):
    """A user's operator."""


def test_objects_of_a_user_need_no_default_values():
    loss = ScaledSquares(2.0)
    model = fit(FedAvgRegressor(loss=loss, aggregation=ScaledMean(2.0), random_state=0))
    assert model.model_.kernel.width == 2.0
    generic = fit(skcfl.FedAvg(LinearModel(loss=loss), random_state=0))
    assert_array_equal(generic.coef_, fit(FedAvgRegressor(random_state=0)).coef_)
