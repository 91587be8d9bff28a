"""Shared descriptions of parameters and attributes."""

import inspect
import re

import numpy as np
import pytest
from numpydoc.docscrape import NumpyDocString
from trials import one_a_method

import skcfl
from skcfl.base import BaseFederated
from skcfl.base.docs import Optional, Shared, document

ESTIMATORS = [
    thing
    for thing in (getattr(skcfl, name) for name in skcfl.__all__)
    if inspect.isclass(thing) and issubclass(thing, BaseFederated)
]


class Base:
    """A base.

    Parameters
    ----------
    alpha : Real
        The base's.

    Attributes
    ----------
    coef_, intercept_ : None
    gap_ : float
        The gap.
    suspicion_
    """


Base.__module__ = "skcfl.base"  # texts come from classes of the package


def test_names_and_defaults_come_from_the_signature():
    @document
    class Method(Base):
        """Does ``{1: 2}``, and {parameters} in a sentence is only that.

        Parameters
        ----------
        extra : dict
            A *
              - list.
        """

        __module__ = "skcfl.base"

        def __init__(self, extra, *, alpha=0.5, unseen="largest", group_col=None):
            pass

    assert inspect.getdoc(Method) == Method.__doc__.rstrip()
    doc = NumpyDocString(Method.__doc__)
    assert [(p.name, p.type) for p in doc["Parameters"]] == [
        ("extra", "dict"),
        ("alpha", "Real, default=0.5"),
        ("unseen", '{"error", "average", "largest"}, default="largest"'),
        ("group_col", "str, int or None, default=None"),
    ]
    assert doc["Parameters"][1].desc == ["The base's."]
    assert doc["Parameters"][0].desc == ["A *", "  - list."]
    assert doc["Summary"] == ["Does ``{1: 2}``, and {parameters} in a sentence is only that."]


def test_attributes_are_inherited_and_removed():
    @document
    class Method(Base):
        """Does.

        {parameters}

        Attributes
        ----------
        labels_ : list
            Mine.
        """

        __module__ = "skcfl.base"

        def __init__(self):
            pass

    doc = {p.name: p for p in NumpyDocString(Method.__doc__)["Attributes"]}
    assert "coef_" not in doc and "intercept_" not in doc
    assert doc["suspicion_"].desc == NumpyDocString(Optional.__doc__)["Attributes"][0].desc
    assert doc["gap_"].desc == ["The gap."]
    assert doc["labels_"].type == "list"
    assert "coef_ :" in Shared.__doc__  # the table itself is not changed
    assert "Mine." not in Shared.__doc__


def test_undocumented_parameter_is_an_error():
    with pytest.raises(TypeError, match="'colour' of Method has no description"):

        @document
        class Method:
            """Does.

            {parameters}
            """

            def __init__(self, alpha=1.0, colour="red"):
                pass


def test_without_docstrings():
    """As under ``python -OO``."""

    class Method:
        def __init__(self, alpha=1.0):
            pass

    Method.__doc__ = None
    assert document(Method).__doc__ is None


SHARED = NumpyDocString(inspect.cleandoc(Shared.__doc__))
OPTIONAL = NumpyDocString(inspect.cleandoc(Optional.__doc__))


@pytest.mark.parametrize(
    "entry",
    [*SHARED["Parameters"], *SHARED["Attributes"], *OPTIONAL["Attributes"]],
    ids=lambda entry: entry.name,
)
def test_entries(entry):
    assert entry.type.strip() and not entry.type.endswith(".")
    assert "\n".join(entry.desc).strip().endswith(".")
    assert "default" not in entry.type  # comes from the signature


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_estimators_are_documented_in_full(cls):
    doc = NumpyDocString(inspect.getdoc(cls))
    assert [p.name for p in doc["Parameters"]] == list(inspect.signature(cls).parameters)
    for parameter in [*doc["Parameters"], *doc["Attributes"]]:
        assert parameter.desc, parameter.name
    text = "".join(doc["Summary"] + doc["Extended Summary"])
    assert "{parameters}" not in text and "{attributes}" not in text
    assert doc["Examples"]
    cited = set(re.findall(r"\[(\d+)\]_", cls.__doc__))
    assert cited <= set(re.findall(r"^\.\. \[(\d+)\] ", "\n".join(doc["References"]), re.M))
    method = getattr(skcfl, re.sub("Classifier$|Regressor$", "", cls.__name__), cls)
    inherited = NumpyDocString(inspect.getdoc(method))["Attributes"]
    assert {p.name for p in inherited} <= {p.name for p in doc["Attributes"]} | {"classes_"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", one_a_method(cls.__name__ for cls in ESTIMATORS))
def test_fitted_attributes_are_documented(name):
    """What a fit publishes is what the docstring lists, but for names X does not have."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(40, 2)), np.arange(40) % 4
    target = X[:, 0] + rng.normal(size=40)  # no classes that can be separated
    cls = getattr(skcfl, name)
    y = target > 0 if "Classifier" in name else target
    estimator = cls()
    few = {"random_state": 0, "max_iter": 5, "n_init": 2, "search": skcfl.LamSearch(n_lams=2)}
    estimator.set_params(**{k: v for k, v in few.items() if k in estimator.get_params()})
    estimator.fit(X, y, groups)
    published = {name for name in vars(estimator) if name.endswith("_")}
    published |= {name for name in ("params_", "coef_", "intercept_") if hasattr(estimator, name)}
    documented = {p.name for p in NumpyDocString(inspect.getdoc(cls))["Attributes"]}
    assert published <= documented
    # Names X or y does not have, and what options ask for.
    rare = {"feature_names_in_", "classes_", "search_", "round_params_", "round_labels_"}
    rare |= {"suspicion_", "lams_", "cv_scores_", "best_index_", "feature_importances_"}
    rare |= {"lam_search_"} if name == "FedPACClassifier" else set()  # of networks
    assert documented - published <= rare
