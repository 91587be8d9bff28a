"""Parameters that are objects, estimators that take them, and links of both to their pages."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import InvalidParameterError

__all__ = ["DocLinkMixin", "Options", "TakesOptions"]


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
