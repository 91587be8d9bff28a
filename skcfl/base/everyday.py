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
from typing import Any, dataclass_transform

from .._option_objects import constructor, parameters, parameters_of
from .docs import document
from .everyday_models import ClassifierMixin, NeuralMixin, RegressorMixin

PLACED = inspect.Parameter.POSITIONAL_OR_KEYWORD


@dataclass_transform()
def everyday(
    method: Any = None,
    *,
    classifier: type = ClassifierMixin,
    regressor: type = RegressorMixin,
    networks: bool = True,
    **defaults: Any,
) -> Any:
    """Make the classifier and the regressor of a method that takes any local model.

    The annotated attributes of the method are its parameters, see
    :func:`~skcfl._option_objects.parameters`.  The twins are in the module of the method, under
    its name and "Classifier" or "Regressor".

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
    if "__init__" not in vars(method):
        parameters(method)
    text = method.__doc__
    for kind, mixin in (("Classifier", classifier), ("Regressor", regressor)):
        mixins = (NeuralMixin, mixin) if networks else (mixin,)
        name = method.__name__ + kind
        twin = type(method)(
            name,
            (*mixins, method),
            {
                "__init__": constructor(_parameters_of_twin(method, mixins, defaults)),
                "__module__": method.__module__,
                "__doc__": text and _text_of_twin(text, method.__name__, kind),
            },
        )
        setattr(sys.modules[method.__module__], name, document(twin))
    return document(method)


def _parameters_of_twin(method: Any, mixins: Any, defaults: Any) -> list[inspect.Parameter]:
    """Parameters: what may be given by position after ``model`` may be, else the loss."""
    given = parameters_of(method)
    for name, default in defaults.items():
        given[name] = given[name].replace(default=default)
    _, *rest = given.values()
    placed = sum(parameter.kind is PLACED for parameter in rest)
    signatures = [inspect.signature(mixin._parameters) for mixin in reversed(mixins)]
    more = [one for signature in signatures for one in signature.parameters.values()]
    if not placed:
        more[0] = more[0].replace(kind=PLACED)
    return [*rest[:placed], *more, *rest[placed:]]


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
>>> data = make_clustered_{task}(4, 2, n_features=2, n_samples=20, random_state=0)
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
