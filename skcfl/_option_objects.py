"""Parameters that are objects, estimators that take them, and links of both to their pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY
from functools import cache
from importlib import metadata
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import InvalidParameterError

_T = TypeVar("_T", bound=type)
NAMED = Parameter.KEYWORD_ONLY

# Modules with a page for each class; representations link to these.
DOCUMENTED = {
    "skcfl.fusion.solvers",
    "skcfl.models",
    "skcfl.models.losses",
    "skcfl.penalties",
    "skcfl.rounds.aggregation",
}


@cache
def documentation_site() -> str | None:
    """Address of the documentation: "Documentation" of the project's URLs, None without one."""
    try:
        urls = metadata.metadata("skcfl").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # the sources, not installed
        return None
    named = dict(url.split(", ", 1) for url in urls)
    return named["Documentation"].rstrip("/") if "Documentation" in named else None


def constructor(parameters: Iterable[Parameter]) -> Callable[..., None]:
    """A constructor that sets its parameters, which `inspect.signature` and help show.

    Their types are in ``__annotations__`` only, for help to remain readable.
    """
    hints = {parameter.name: parameter.annotation for parameter in parameters}
    plain = [parameter.replace(annotation=Parameter.empty) for parameter in parameters]
    shown = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *plain])

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = shown.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}.__init__() {error}") from None
        given.apply_defaults()
        for name, value in list(given.arguments.items())[1:]:
            setattr(self, name, value)

    __init__.__annotations__ = hints | {"return": "None"}
    __init__.__signature__ = shown  # type: ignore[attr-defined]
    return __init__


def parameters_of(cls: type) -> dict[str, Parameter]:
    """Parameters of a class's constructor, with their types."""
    made = vars(cls)["__init__"]
    hints = made.__annotations__
    given = list(signature(made).parameters.items())[1:]
    return {name: one.replace(annotation=hints.get(name, "")) for name, one in given}


@dataclass_transform()
def parameters(cls: _T) -> _T:
    """Write the constructor of a class, which keeps its parameters under their names.

    The parameters are the annotated attributes of the class and of its base, as in a dataclass:
    by keyword only after ``_: KW_ONLY``.  They are no attributes of the class itself.
    """
    base = next(base for base in cls.__mro__[1:] if "__init__" in vars(base))
    inherited = parameters_of(base) if hasattr(vars(base)["__init__"], "__signature__") else {}
    found, kind = {}, Parameter.POSITIONAL_OR_KEYWORD
    for name, hint in vars(cls).get("__annotations__", {}).items():
        if hint in ("KW_ONLY", KW_ONLY):
            kind = NAMED
        elif not name.startswith("_"):
            default = vars(cls).get(name, Parameter.empty)
            found[name] = Parameter(name, kind, default=default, annotation=hint)
            if name in vars(cls):
                delattr(cls, name)
    placed = [one for one in (inherited | found).values() if one.kind is not NAMED]
    named = [one for one in (found | inherited | found).values() if one.kind is NAMED]
    cls.__init__ = constructor(placed + named)  # type: ignore[misc]
    return cls


class DocLinkMixin:
    """Links from the HTML representation to the pages of this documentation, left of the bases."""

    _doc_link_module = "skcfl"

    @property
    def _doc_link_template(self) -> str:
        site = documentation_site()
        return "" if site is None else f"{site}/generated/{{name}}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        path = type(self).__module__
        # Estimators and their options are public at the top of the package.
        homes = (home for home in (path, path.rpartition(".")[0]) if home in DOCUMENTED)
        module = next(homes, "skcfl")
        return {"name": f"{module}.{type(self).__name__}"}


class Options(DocLinkMixin, BaseEstimator):
    """Base of objects that hold options of an estimator, and check them when it is fitted."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {}


class TakesOptions:
    """Estimators with such objects as parameters; left of ``BaseEstimator``."""

    #: Parameters of which None stands for an object with default values: the objects' classes.
    _option_classes: ClassVar[dict[str, type[Options]]] = {}
    #: Options of such an object that the estimator uses, where it does not use all of them.
    _option_names: ClassVar[dict[str, tuple[str, ...]]] = {}

    def _option(self, name: str) -> Any:
        """The object of a parameter, that with default values for None."""
        given = getattr(self, name)
        return self._option_classes[name]() if given is None else given

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also those of objects that are None so far.

        Parameters
        ----------
        **params : dict
            Values by name, ``training__local_steps`` for those of an object.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ValueError
            If there is no such parameter, or the name of an object is given where parameters of
            the object are set.
        """
        for name in {key.partition("__")[0] for key in params if "__" in key}:
            value = params.get(name, getattr(self, name, None))
            if isinstance(value, str):
                raise ValueError(
                    f"{name}={value!r} is a name, which has no parameters to set: give {name} an "
                    "object in its place."
                )
            if name in self._option_classes and value is None:
                params = {**params, name: self._option_classes[name]()}
        return super().set_params(**params)  # type: ignore[misc]

    def _validate_params(self) -> None:
        super()._validate_params()  # type: ignore[misc]
        for name, value in vars(self).items():
            if isinstance(value, Options):
                try:
                    value._validate_params()
                except InvalidParameterError as error:
                    raise InvalidParameterError(f"{name}: {error}") from None
                self._check_used(name, value)

    def _used(self, name: str) -> tuple[str, ...]:
        """Options of an object that the estimator uses; none if it takes no such object."""
        if name not in self._option_classes:
            return ()
        return self._option_names.get(name, tuple(self._option_classes[name]().get_params()))

    def _check_used(self, name: str, options: Options) -> None:
        """Raise an InvalidParameterError if an option is set that the estimator does not use."""
        if name not in self._option_names:
            return
        used, default = self._used(name), type(options)().get_params(deep=False)
        for option, value in options.get_params(deep=False).items():
            if option not in used and (np.ndim(value) or value != default[option]):
                raise InvalidParameterError(
                    f"{name}: {type(self).__name__} does not use {option}, got {value!r}. It uses "
                    f"{', '.join(used)}."
                )
