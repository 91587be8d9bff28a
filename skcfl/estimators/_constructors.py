"""Constructors of classes whose parameters are those of another class, but for some.

The generic class of a method spells its constructor out; the everyday classes, and a method that
is another with other defaults, say in what theirs differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

__all__ = ["everyday_constructor"]

NAMED, PLACED = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def everyday_constructor(generic: Any, *flavours: Any, **defaults: Any) -> Any:
    """Constructor of an everyday class: parameters of its local model in place of ``model``.

    Parameters
    ----------
    generic : type
        The class of the same method that takes any local model, ``model`` first.
    *flavours : type
        Mixins of the class, whose ``_model_parameters`` are those of the local model, and whose
        annotations their types.
    **defaults
        Defaults that differ from those of `generic`.

    Returns
    -------
    __init__ : function
        What may be given by position after ``model`` may be, else the loss.
    """
    own, _, *rest = _parameters_of(generic, defaults)
    placed = sum(parameter.kind is PLACED for parameter in rest)
    more = [parameter for mixin in flavours for parameter in _of_model(mixin)]
    if not placed:
        more[0] = more[0].replace(kind=PLACED)
    return _constructor([own, *rest[:placed], *more, *rest[placed:]])


def _parameters_of(cls: Any, defaults: Any = MappingProxyType({})) -> list[inspect.Parameter]:
    """Parameters of a constructor with their types, also of one that is made here."""
    parameters = dict(inspect.signature(cls.__init__).parameters)
    for name, hint in cls.__init__.__annotations__.items():
        if name != "return":
            parameters[name] = parameters[name].replace(annotation=hint)
    for name, default in defaults.items():
        parameters[name] = parameters[name].replace(default=default)
    return list(parameters.values())


def _of_model(mixin: Any) -> list[inspect.Parameter]:
    """Parameters of the local model that a mixin stands for."""
    return list(inspect.signature(mixin._parameters).parameters.values())


def _named(defaults: dict[str, Any], hints: dict[str, Any]) -> list[inspect.Parameter]:
    """Parameters to be given by name."""
    return [
        inspect.Parameter(name, NAMED, default=value, annotation=hints[name])
        for name, value in defaults.items()
    ]


def _constructor(parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """A constructor that sets its parameters, which `inspect.signature` and help show.

    Their types are in ``__annotations__`` only, for help to remain readable, and in the stub
    ``estimators/__init__.pyi`` for type checkers, which do not run code.
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
