"""scikit-learn's common checks on every public estimator; with linear models all pass."""

import inspect

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from trials import THOROUGH, one_a_method

import skcfl
from skcfl import Training
from skcfl.base import BaseFederated
from skcfl.estimators._base_personal import PersonalMethod
from skcfl.models import LinearModel

ESTIMATORS = [
    thing
    for thing in (getattr(skcfl, name) for name in skcfl.__all__)
    if hasattr(thing, "fit") and not inspect.isabstract(thing)
]
NEURAL = [cls for cls in ESTIMATORS if "hidden_layer_sizes" in inspect.signature(cls).parameters]
# With one client, as the checks are, these are FedAvg, whose networks are checked.
RIVALS = {"RobustClusteredFL", "FeSEM", "OneShot", "FlexCFL", "PACFL", "CFL"}
RIVALS |= {"IFCA", "CLoVE", "OracleClusters"}
# One method by rounds, where not all networks are checked.
TRAINED = {"FedAvg"}
# With them networks learn what the checks ask in a few rounds.
LONG_STEPS = Training(step_size=0.05)


def networks():
    """One everyday class of each method with networks, classifiers and regressors in turn.

    Twins share their code, and the classes that search lam fit the ones that do not.
    """
    methods = sorted({cls.__name__.partition("Classifier")[0] for cls in NEURAL})
    methods = [name for name in methods if "Regressor" not in name and name not in RIVALS]
    methods = [name for name in methods if THOROUGH or name in TRAINED]
    for i, name in enumerate(methods):
        twin = None if i % 2 else getattr(skcfl, name + "Regressor", None)
        yield twin or getattr(skcfl, name + "Classifier")


# What the checks ask is the same code for all methods of a family: one class of each is checked in
# every run, all with HYPOTHESIS_PROFILE=thorough.
CHECKED = {
    *("FedAvgClassifier", "LocalModelsRegressor", "PerFedAvgRegressor", "FedProtoClassifier"),
    *("FedEMRegressor", "PartialPoolingClassifier"),
    *("ConvexClusteredFLClassifier", "GTV", "ConvexClustering", "KFED"),
}
SHORT = {"FedProtoClassifier": {"max_iter": 5}}
# Formats of sparse rows become csr where rows are checked, which is the same for all.
FORMATS = {cls.__name__ for cls in ESTIMATORS} if THOROUGH else {"FedAvgClassifier", "GTV"}


def is_checked(cls):
    """Whether a class is checked with its defaults in this run."""
    return THOROUGH or cls.__name__ in CHECKED


def instances():
    """Every estimator with its defaults, and some generic ones as classifiers and networks."""
    for cls in filter(is_checked, ESTIMATORS):
        yield cls(**({} if THOROUGH else SHORT.get(cls.__name__, {})))
    # What a loss of classes makes of a generic class is the same code for all.
    for cls in (skcfl.IFCA, skcfl.ConvexClusteredFL, skcfl.PartialPooling) * THOROUGH:
        yield cls(LinearModel(loss="log_loss"))
    yield skcfl.IFCA(LinearModel(loss="squared_hinge"))
    for cls in networks():
        # Fusion methods train for as long as they are let.
        if issubclass(cls, PersonalMethod):
            # One for all: on one client they train as FedAvg does.
            if cls.__name__.startswith("FedRep"):
                yield cls(hidden_layer_sizes=(4,), max_iter=15, training=LONG_STEPS)
            continue
        fused = "lam" in inspect.signature(cls).parameters
        short = {} if THOROUGH else {"max_iter": 8, "training": LONG_STEPS}
        short = {"max_iter": 4} if fused else short
        yield cls(hidden_layer_sizes=(16,) if THOROUGH else (4,), **short)


def expected_failures(estimator):
    """Checks that networks and Per-FedAvg need not pass.

    A row of weight two is twice the row but for the rounding of single precision, of which Adam
    makes steps of full length where a gradient should be zero. In double precision the check
    passes: tests/models/test_mlp.py.
    """
    if isinstance(estimator, skcfl.PerFedAvgClassifier) and not estimator.hidden_layer_sizes:
        reason = "rounds that end at max_iter, on fifteen rows nearly without a penalty"
        return {"check_sample_weight_equivalence_on_sparse_data": reason}
    if not np.size(getattr(estimator, "hidden_layer_sizes", ())):
        return {}
    kinds = ("dense", "sparse")
    return {
        f"check_sample_weight_equivalence_on_{kind}_data": "single precision" for kind in kinds
    }


def test_estimators_were_found():
    assert {"LocalModels", "LocalModelsClassifier", *CHECKED} <= {c.__name__ for c in ESTIMATORS}


OTHERS = {cls.__name__ for cls in ESTIMATORS if hasattr(cls, "predict")} - CHECKED


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.SingleClientWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", one_a_method(OTHERS))
def test_rows_without_groups_are_one_client(name):
    """Of every method, as the checks fit them."""
    X = np.random.RandomState(0).normal(size=(30, 2))
    y = X[:, 0] > 0.3 if name.endswith("Classifier") else X[:, 0]
    cls = getattr(skcfl, name)
    short = {"max_iter": 5} if name.endswith(("FedPACClassifier", "FedRepClassifier")) else {}
    model = cls(**short).fit(X, y)
    assert model.labels_.tolist() == [0]
    assert np.mean(model.predict(X) == y) > 0.8 or np.abs(model.predict(X) - y).max() < 0.1


# The checks fit without groups, and some on data that no solver can finish.
@pytest.mark.filterwarnings("ignore::skcfl.exceptions.SingleClientWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(list(instances()), expected_failed_checks=expected_failures)
def test_scikit_learns_checks(estimator, check):
    name = getattr(check, "func", check).__name__
    if name.startswith("check_estimator_sparse_") and type(estimator).__name__ not in FORMATS:
        pytest.skip("HYPOTHESIS_PROFILE=thorough runs it; csr is checked of all that take weights")
    try:
        check(estimator)
    except AssertionError:
        # The fixed point of pFedMe's rounds is where the objective stops to fall: its models are
        # known to the root of the precision, 1e-8, and one of 45 numbers here is asked to 4e-9.
        weights = name.startswith("check_sample_weight_equiv")
        if weights and isinstance(estimator, skcfl.PFedMeClassifier):
            pytest.xfail("models are known to the root of the precision")
        raise


@pytest.mark.parametrize(
    "cls",
    [cls for cls in ESTIMATORS if issubclass(cls, BaseFederated)],
    ids=lambda cls: cls.__name__,
)
def test_common_parameters(cls):
    defaults = {name: p.default for name, p in inspect.signature(cls).parameters.items()}
    expected = dict(group_col=None, unseen="error", n_jobs=None, random_state=None, verbose=0)
    assert expected.items() <= defaults.items()
    unchecked = set(defaults) - set(cls._parameter_constraints)
    assert not unchecked, f"no constraint for {sorted(unchecked)}"
