"""Constructors of classes whose parameters are those of another class, but for some.

The generic class of a method spells its constructor out; the everyday classes, and the classes
that choose lam by cross-validation, say in what theirs differ.
"""

import inspect

__all__ = ["cv_constructor", "everyday_constructor"]

NAMED, PLACED = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD

# Parameters of the search of lam, with their defaults, and those that they take the place of.
SEARCHED = {"n_lams": 30, "lams": None, "lam_min_ratio": None, "cv": 5, "scoring": None}
REPLACED = {"lam", "criterion", "client_loss", "warm_start"}


def everyday_constructor(generic, *flavours, **defaults):
    """Constructor of an everyday class: parameters of its local model in place of ``model``.

    Parameters
    ----------
    generic : type
        The class of the same method that takes any local model, ``model`` first.
    *flavours : type
        Mixins of the class, whose ``_model_parameters`` are those of the local model.
    **defaults
        Defaults that differ from those of `generic`.

    Returns
    -------
    __init__ : function
        What may be given by position after ``model`` may be, else the loss.
    """
    own, _, *rest = inspect.signature(generic.__init__).parameters.values()
    placed = sum(parameter.kind is PLACED for parameter in rest)
    parameters = {parameter.name: parameter for parameter in rest}
    for name, default in defaults.items():
        parameters[name] = parameters[name].replace(default=default)
    rest = list(parameters.values())
    more = _named({k: v for mixin in flavours for k, v in mixin._model_parameters.items()})
    if not placed:
        more[0] = more[0].replace(kind=PLACED)
    return _constructor([own, *rest[:placed], *more, *rest[placed:]])


def cv_constructor(single, **search):
    """Constructor of a CV class: that of the class with one lam, the search in place of lam.

    Parameters
    ----------
    single : type
        The class that fits at one lam.
    **search
        Parameters of the search besides `SEARCHED`, or with other defaults.

    Returns
    -------
    __init__ : function
        The first parameter of the search may be given by position, as ``lam`` of `single`.
    """
    own, *rest = inspect.signature(single.__init__).parameters.values()
    first, *others = _named({**SEARCHED, **search})
    kept = [p.replace(kind=NAMED) for p in rest if p.name not in REPLACED]
    return _constructor([own, first.replace(kind=PLACED), *others, *kept])


def _named(defaults):
    """Parameters to be given by name."""
    return [inspect.Parameter(name, NAMED, default=value) for name, value in defaults.items()]


def _constructor(parameters):
    """A constructor that sets its parameters, which `inspect.signature` and help show."""
    signature = inspect.Signature(parameters)

    def __init__(self, *args, **kwargs):
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}.__init__() {error}") from None
        given.apply_defaults()
        for name, value in list(given.arguments.items())[1:]:
            setattr(self, name, value)

    __init__.__signature__ = signature
    return __init__
