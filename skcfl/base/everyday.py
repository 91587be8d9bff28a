"""The everyday classes of a method: classifiers and regressors with a fixed local model.

A method is one class, which takes any local model as ``model``; :func:`everyday` makes its two
twins, with the parameters of a linear model or a network in place of it::

    @everyday
    class FedAvg(BaseFederated): ...

    FedAvgClassifier, FedAvgRegressor  # are in the same module
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from .docs import document
from .everyday_models import ClassifierMixin, NeuralMixin, RegressorMixin

NAMED = inspect.Parameter.KEYWORD_ONLY
PLACED = inspect.Parameter.POSITIONAL_OR_KEYWORD


def everyday(
    method: Any = None,
    *,
    classifier: type = ClassifierMixin,
    regressor: type = RegressorMixin,
    networks: bool = True,
    **defaults: Any,
) -> Any:
    """Make the classifier and the regressor of a method that takes any local model.

    They are in the module of the method, under its name and "Classifier" or "Regressor".

    Parameters
    ----------
    method : type
        The method; its docstring is completed, see :func:`~skcfl.base.docs.document`.
    classifier, regressor : type
        Mixins that make the local model; the parameters of their ``_parameters`` take the place
        of ``model``.
    networks : bool
        True if the local model may be a network, too.
    **defaults
        Defaults of the twins that differ from those of the method.

    Returns
    -------
    method : type
    """
    if method is None:
        return lambda cls: everyday(
            cls, classifier=classifier, regressor=regressor, networks=networks, **defaults
        )
    text = method.__doc__
    for kind, mixin in (("Classifier", classifier), ("Regressor", regressor)):
        mixins = (NeuralMixin, mixin) if networks else (mixin,)
        name = method.__name__ + kind
        twin = type(method)(
            name,
            (*mixins, method),
            {
                "__init__": _constructor(_parameters_of_twin(method, mixins, defaults)),
                "__module__": method.__module__,
                "__doc__": text and _text_of_twin(text, method.__name__, kind),
            },
        )
        setattr(sys.modules[method.__module__], name, document(twin))
    return document(method)


def _parameters_of_twin(method: Any, mixins: Any, defaults: Any) -> list[inspect.Parameter]:
    """Parameters: what may be given by position after ``model`` may be, else the loss."""
    parameters = dict(inspect.signature(method.__init__).parameters)
    for name, default in defaults.items():
        parameters[name] = parameters[name].replace(default=default)
    own, _, *rest = parameters.values()
    placed = sum(parameter.kind is PLACED for parameter in rest)
    signatures = [inspect.signature(mixin._parameters) for mixin in reversed(mixins)]
    more = [one for signature in signatures for one in signature.parameters.values()]
    if not placed:
        more[0] = more[0].replace(kind=PLACED)
    return [own, *rest[:placed], *more, *rest[placed:]]


def _constructor(parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """A constructor that sets its parameters, which `inspect.signature` and help show.

    Their types are in ``__annotations__`` only, for help to remain readable, and in the stub that
    is made with the package for type checkers, which do not run code.
    """
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    signature = inspect.Signature(plain)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}.__init__() {error}") from None
        given.apply_defaults()
        for name, value in list(given.arguments.items())[1:]:
            setattr(self, name, value)

    __init__.__annotations__ = {p.name: p.annotation for p in parameters[1:]} | {"return": "None"}
    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


TWIN = """\
{summary}

{body}

{{parameters}}

{{attributes}}

See Also
--------
{name} : The same with any local model, and notes on the method.

{references}

Examples
--------
>>> from skcfl import {name}{kind}
>>> from skcfl.datasets import make_clustered_{task}
>>> data = make_clustered_{task}(n_clients=12, n_clusters=2, random_state=0)
>>> model = {name}{kind}().fit(data.X, data.y, groups=data.groups)
>>> model.predict(data.X[:3], groups=data.groups[:3]).shape
(3,)
"""


def _text_of_twin(text: str, name: str, kind: str) -> str:
    """Docstring of a twin, from that of the method."""
    text = inspect.cleandoc(text)
    first, *sections = re.split(r"\n\n(?=.+\n-+\n)", text)
    first = re.sub(r"\n\n\{\w+\}(?=\n|$)", "", first)
    summary, _, body = first.partition("\n\n")
    summary = re.sub(r",? (with )?(any (convex )?local model|of any kind)", "", summary)
    references = [one for one in sections if one.startswith("References")]
    made = TWIN.format(
        summary=f"{summary.removesuffix('.')}, as a {kind.lower()}.",
        body=body,
        name=name,
        kind=kind,
        task="classification" if kind == "Classifier" else "regression",
        references="".join(references),
    )
    return re.sub(r"\n{3,}", "\n\n", made)
