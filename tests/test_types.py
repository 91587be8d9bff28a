"""Type hints: complete where users call, and as true as the validation of parameters."""

import ast
import collections.abc
import importlib
import inspect
import runpy
import types
import typing
from numbers import Integral, Real
from pathlib import Path

from sklearn.utils._param_validation import Interval, Options

import skcfl
from skcfl import _typing
from skcfl.base import BaseFederated
from skcfl.fusion.solvers import FPFCRounds, Solver
from skcfl.graphs.generators import GraphLike
from skcfl.models import LocalModel
from skcfl.models.losses import Loss
from skcfl.penalties import ConcavePenalty, Penalty
from skcfl.rounds.record_options import Record
from skcfl.rounds.training_options import Training

ROOT = Path(__file__).resolve().parents[1]
ESTIMATORS = [cls for name in skcfl.__all__ if hasattr(cls := getattr(skcfl, name), "fit")]
NAMES = {
    **vars(typing),
    **vars(collections.abc),
    **vars(_typing),
    **dict(BaseFederated=BaseFederated, GraphLike=GraphLike),
    **dict(ConcavePenalty=ConcavePenalty, FPFCRounds=FPFCRounds, Solver=Solver),
    **dict(LamSearch=skcfl.LamSearch, LocalModel=LocalModel, Loss=Loss, Penalty=Penalty),
    **dict(Record=Record, SplineBasis=skcfl.SplineBasis, Training=Training),
    **dict(TreeBasis=skcfl.TreeBasis),
}
# Packages whose public names all have hints.
HINTED = [
    *("datasets", "graphs", "model_selection", "certificates", "penalties"),
    *("inspection", "testing", "federation", "models"),
]
# Of these the constructors only: their methods are the interface of servers and kernels.
CONSTRUCTORS = {
    *("LinearModel", "SklearnModel", "TorchModel", "MLP", "Autoencoder"),
    *("Location", "LocalModel"),
}


def test_stub_of_the_everyday_classes():
    """Made from the sources when the package is built: it says what the classes have."""
    stubs = runpy.run_path(str(ROOT / ".ci" / "stubs.py"))
    text = stubs["text"]()
    made = {n.name: n.body[0].args for n in ast.parse(text).body if isinstance(n, ast.ClassDef)}
    assert len(made) > 30
    for name, arguments in made.items():
        parameters = inspect.signature(getattr(skcfl, name)).parameters
        assert [a.arg for a in (*arguments.args[1:], *arguments.kwonlyargs)] == list(parameters)
        values = [ast.literal_eval(v) for v in (*arguments.defaults, *arguments.kw_defaults)]
        assert values == [p.default for p in parameters.values()]
    written = stubs["STUB"]
    assert not written.exists() or written.read_text(encoding="utf-8") == text, (
        "run python .ci/stubs.py"
    )


def without_hints(function):
    """Names of the parameters of a function that have no hint, and "return"."""
    hints = function.__annotations__
    names = [p.name for p in inspect.signature(function).parameters.values()]
    return [n for n in [*names, "return"] if n not in {"self", "cls", *hints}]


def functions_of(thing):
    """A public function, or the public methods of a class that skcfl defines, by name."""
    if inspect.isfunction(thing):
        yield thing.__name__, inspect.unwrap(thing)
    for base in getattr(thing, "__mro__", ()):
        if not base.__module__.startswith("skcfl"):
            continue
        for name, member in vars(base).items():
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if not inspect.isfunction(member) or (name.startswith("_") and name != "__init__"):
                continue
            if name == "__init__" or thing.__name__ not in CONSTRUCTORS:
                yield f"{base.__name__}.{name}", inspect.unwrap(member)


def test_public_functions_and_methods_have_hints():
    modules = [importlib.import_module(f"skcfl.{name}") for name in HINTED]
    public = [getattr(module, name) for module in modules for name in module.__all__]
    found = {n: f for thing in [*public, *ESTIMATORS] for n, f in functions_of(thing)}
    assert len(found) > 300
    wrong = {n: missing for n, f in found.items() if (missing := without_hints(f))}
    assert not wrong


def members(hint):
    """Types of a union, unions inside included."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {m for part in typing.get_args(hint) for m in members(part)}
    return {hint}


def unlike_validation(cls):
    """Parameters whose hints and validation do not allow the same."""
    hints = cls.__init__.__annotations__
    assert list(hints) == [*inspect.signature(cls).parameters, "return"]
    wrong = []
    for name, constraints in cls._parameter_constraints.items():
        if name not in hints or "array-like" in constraints or name == "random_state":
            continue  # arrays may be numbers, too; a random state has the constraint of a name
        found = members(eval(hints[name], dict(NAMES)))
        options = {o for m in found if typing.get_origin(m) is typing.Literal for o in m.__args__}
        allowed = set().union(*(c.options for c in constraints if isinstance(c, Options)))
        numbers = {c.type for c in constraints if isinstance(c, Interval)}
        numbers |= {c for c in constraints if c is Integral}
        checks = {
            "names": (options, allowed),
            "None": (type(None) in found or None in found, None in constraints),
            "bool": (bool in found, "boolean" in constraints),
            "int": (int in found, Integral in numbers or "verbose" in constraints),
            "float": (float in found, Real in numbers),
        }
        wrong += [
            f"{cls.__name__}, {name}: {what} {got} is not {expected}"
            for what, (got, expected) in checks.items()
            if got != expected
        ]
    return wrong


def test_hints_of_parameters_are_what_validation_allows():
    """Names, None, bool and numbers: each in the hint if and only if the validation takes it."""
    wrong = [each for cls in ESTIMATORS for each in unlike_validation(cls)]
    assert not wrong, "\n".join(wrong)
