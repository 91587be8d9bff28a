"""Constructors that are written from the annotated attributes of a class."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import KW_ONLY

import pytest
from sklearn.base import BaseEstimator, clone

from skcfl._option_objects import parameters


@parameters
class Base(BaseEstimator):
    tried: dict[str, int]  # no default
    _: KW_ONLY
    seed: int | None = None


@parameters
class Method(Base):
    """A method."""

    _kind: str = "a method"  # no parameter
    loss: str = "huber"
    _: KW_ONLY
    tol: float = 1e-4
    seed: int | None = 7


def test_parameters_are_the_annotated_attributes_and_those_of_the_base():
    shown = "(tried, loss='huber', *, tol=0.0001, seed=7)"
    assert str(inspect.signature(Method)) == shown
    assert Method.__init__.__annotations__["tol"] == "float"
    model = Method({}, "l2", tol=1)
    assert vars(model) == {"tried": {}, "loss": "l2", "tol": 1, "seed": 7}
    assert repr(model) == "Method(loss='l2', tol=1, tried={})"
    assert vars(clone(model)) == vars(model) == vars(pickle.loads(pickle.dumps(model)))
    # They are no attributes of the class.
    assert not hasattr(Method, "tol") and not hasattr(Base, "seed")
    assert Method._kind == "a method"


@pytest.mark.parametrize(
    "arguments, named, message",
    [
        ((), {}, "missing a required argument: 'tried'"),
        (({}, "l2", 1.0), {}, "too many positional arguments"),
        (({},), {"alpha": 1}, "got an unexpected keyword argument 'alpha'"),
    ],
)
def test_errors_name_the_class(arguments, named, message):
    with pytest.raises(TypeError, match=rf"^Method\.__init__\(\) {message}"):
        Method(*arguments, **named)
