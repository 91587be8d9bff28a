"""Fits of clients that release noisy sums only, and what is left for the clients themselves."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from .._checks import caller_level
from .._typing import Array
from ..exceptions import PrivacyError, PrivacyWarning
from ..federation.privacy import EXAMPLE
from ..federation.private_sums import Releases
from ..rounds.local_training import solve_local
from ..search.alpha import alpha_unit, is_automatic, n_priors
from .newcomers import NewClients
from .of_clients import needs_single_answers
from .predicting import NotReleased

if TYPE_CHECKING:
    from ..federation.federation import Federation, Handshake
    from ..federation.pool import ClientPool
    from ..federation.result import Result
    from ..federation.summed_pool import SummedPool
    from ..models import LocalModel


# Private attributes of a fit that a fit of the other kind does not set.
OF_A_FIT = {"_how_sure", "_is_local", "_is_masked", "_is_private", "_n_asked"}
OF_A_FIT |= {"_n_fitted", "_n_rows"}
OF_A_FIT |= {"_seen_losses", "_seen_weights"}


@dataclass
class PrivatePlan:
    """How an estimator fits private clients.

    Attributes
    ----------
    n_releases : int
        Releases, which share the budget of the fit.
    n_exact : int
        Releases where sums are masked and exact, if there is no `exact`.
    n_clusters : int
        Number of models.
    solve : callable
        ``solve(releases)`` asks for them and returns a Result, in the units of the releases.
    local : callable
        ``local(releases)`` returns a Result without asking for any, where noise drowns all.
    noise : callable
        ``noise(releases)`` is the standard deviation of the noise of a coefficient of a common
        model, as a part of the spread of the clients' coefficients, known beforehand.
    most_noise : float
        Noise above which nothing is released.
    exact : callable, default=None
        ``exact(releases, pool)`` returns what a fit without masks finds, by exact masked sums.
    """

    n_releases: int
    n_exact: int
    n_clusters: int
    solve: Callable[[Releases], Result]
    local: Callable[[Releases], Result]
    noise: Callable[[Releases], float]
    most_noise: float
    exact: Callable[[Releases, SummedPool], Result] | None = None


class PrivateFits(NewClients):
    """Estimators that private clients may be fitted by."""

    # What a private fit publishes, besides the models that clients have in common.
    epsilon_: float
    delta_: float
    releases_: dict[str, Array]

    labels_ = NotReleased()
    cluster_sizes_ = NotReleased()
    responsibilities_ = NotReleased()
    params_std_ = NotReleased()
    client_dispersion_ = NotReleased()
    objective_ = NotReleased()
    loglik_ = NotReleased()
    bic_ = NotReleased()
    _how_sure = NotReleased()

    def _replace_attributes(self, header: Any, fitted: dict[str, Any]) -> None:
        # A private fit and another one on the same estimator leave nothing to each other.
        for name in OF_A_FIT & vars(self).keys():
            delattr(self, name)
        super()._replace_attributes(header, fitted)

    def _private_plan(self, model: LocalModel) -> PrivatePlan:
        """How this estimator fits private clients with a bound local model.

        Raises
        ------
        PrivacyError
            If it cannot.
        """
        raise needs_single_answers(self)

    def _refuse_privately(self, name: str, *allowed: Any) -> None:
        """Raise a PrivacyError unless a parameter has a value that a private fit knows."""
        value = getattr(self, name)
        if not any(type(value) is type(one) and value == one for one in allowed):
            values = " or ".join(map(repr, allowed))
            raise PrivacyError(
                f"{type(self).__name__}: {name} must be {values} where clients are private, got "
                f"{value!r}."
            )

    def _fit_privately(self, federation: Federation, hello: Handshake, header: Any) -> Self:
        """Fit clients that release noisy sums only."""
        model = self._private_model(hello)
        plan = self._private_plan(model)
        rng = check_random_state(self.random_state)
        terms: Any = hello.privacy
        is_exact = bool(np.isinf(terms["epsilon"]))
        if is_exact and plan.exact is None:
            self._need_bounds(terms, model.estimator_type)
        count = plan.n_exact if is_exact else plan.n_releases
        releases = Releases(federation, hello, model, count, rng)
        if plan.n_clusters > releases.n_clients:
            raise ValueError(
                f"n_clusters={plan.n_clusters} is more than the number of clients, "
                f"{releases.n_clients}. Every cluster needs a client."
            )
        drowned = self._is_drowned(federation, releases, plan)
        if is_exact and plan.exact is not None:
            pool = releases.pool()
            result = plan.exact(releases, pool)
            while not pool.steady:  # without the places that were lost, and their units
                pool = releases.pool()
                result = plan.exact(releases, pool)
        else:
            result = plan.local(releases) if drowned else plan.solve(releases)
        if not result.converged:
            warnings.warn(result.shortfall, ConvergenceWarning, stacklevel=caller_level())
        self._replace_attributes(header, self._released(header, hello, releases, result))
        self._is_local = drowned
        return self

    def _need_bounds(self, terms: dict[str, Any], kind: Any) -> None:
        """Raise a PrivacyError unless units are declared."""
        needed = {"features", "target"} if kind == "regressor" else {"features"}
        if missing := sorted(needed - terms.keys()):
            raise PrivacyError(
                f"{type(self).__name__}: masked rounds are in declared units, and bounds of "
                f"{' and '.join(missing)} are missing: declare {EXAMPLE}. PartialPooling with one "
                "cluster and FedAvg with a linear model measure units by masked sums instead."
            )

    def _private_model(self, hello: Handshake) -> LocalModel:
        terms: Any = hello.privacy
        model = self._local_model()
        if model.fits_whole:
            raise PrivacyError(
                "model: a SklearnModel sends fitted estimators, which know much of the rows: no "
                "noise makes them private. Private fits take models of parameters, such as "
                "LinearModel."
            )
        if getattr(model, "class_weight", None) is not None:
            raise PrivacyError("class_weight must be None where clients are private.")
        if hello.row_shape is not None:
            model = model.for_rows(hello.row_shape)
        n_classes = None if hello.classes is None else len(hello.classes)
        model = model.bind(hello.n_features, n_classes=n_classes, dtype=hello.dtype)
        if model.has_units and "target" in terms:
            low, high = map(float, terms["target"])
            model = model.in_units(0.5 * (low + high), 0.25 * (high - low))
        return model

    def _is_drowned(self, federation: Federation, releases: Releases, plan: PrivatePlan) -> bool:
        """Whether noise would drown what clients have in common, which is reported."""
        noise = plan.noise(releases)
        if noise <= plan.most_noise:
            return False
        terms = releases.terms
        text = (
            f"{type(self).__name__}: with {releases.n_clients} clients, "
            f"epsilon={terms['epsilon']:g} and delta={terms['delta']:g} the noise of the "
            f"coefficients that clients have in common would be {noise:.2f} of their spread over "
            f"clients, more than {plan.most_noise:g}"
        )
        if federation.on_noise == "error":
            raise PrivacyError(f"{text}. Nothing was released.")
        warnings.warn(
            f"{text}: nothing was released, and each client has a model of its own rows. More "
            "clients or a larger epsilon would help.",
            PrivacyWarning,
            stacklevel=caller_level(),
        )
        return True

    def _released(
        self, header: Any, hello: Handshake, releases: Releases, result: Result
    ) -> dict[str, Any]:
        """Fitted attributes: models that clients have in common, and what was released."""
        units, model = releases.units, releases.model
        theta = np.asarray(units.to_user(result.cluster_params), dtype=model.dtype)
        if not np.isfinite(theta).all():
            raise ValueError(self._divergence(result.n_iter))
        weights = np.asarray(result.extra.pop("shares", np.ones(len(theta))))
        order = np.argsort(-weights, kind="stable")
        theta, weights = theta[order], weights[order] / weights.sum()
        ledger = releases.ledger
        fitted = {
            "model_": model,
            "n_clusters_": len(theta),
            "cluster_params_": theta,
            "n_iter_": releases.count or result.n_iter,
            "history_": dict(result.history),
            "coef_names_": self._feature_names(header, model.n_features),
            "groups_": np.zeros(0, dtype=hello.ids.dtype),
            "missing_clients_": hello.ids[:0],
            "rejected_clients_": hello.ids[:0],
            "absences_": [],
            "floats_up_": ledger.up,
            "floats_down_": ledger.down,
            "calls_": ledger.calls,
            "client_calls_": ledger.client_calls,
            "wire_bytes_": ledger.wire_bytes,
            "_site_bytes": (ledger.shared_bytes, (0, 0)),
            "_envelopes": ledger.envelopes,
            "_n_asked": releases.n_clients,
            "_is_masked": bool(releases.terms["masked"]),
            "_scaling": releases.scaling,
            "_average_params": weights @ theta,
            "_shared_params": True,
            "_has_clusters": True,
            "_has_groups": True,
            "_row_shape": header._row_shape,
            "_is_private": True,
            **releases.published(),
        }
        if hasattr(model, "alpha_"):
            fitted["alpha_"] = model.alpha_
        if hello.classes is not None:
            fitted["classes_"] = hello.classes
        fitted.update({f"cluster_{k}_": v for k, v in model.coefficients(theta).items()})
        return fitted | result.extra

    # --------------------------------------------------------------------- at the clients

    def _for_clients(self) -> Self:
        """The private fit as clients use it with their rows: an estimator of no client yet."""
        made = copy.copy(self)
        K, p = self.cluster_params_.shape
        empty = {
            "labels_": np.zeros(0, dtype=np.intp),
            "params_": np.zeros((0, p), self.cluster_params_.dtype),
            "cluster_sizes_": np.zeros(K, dtype=np.intp),
            "_seen_weights": np.zeros(0),
            "_seen_losses": None,
            "_shared_params": False,
            "_is_private": False,
            # A client takes the model of least loss, as it did in the fit.
            "_mixes_newcomers": False,
        }
        for name, value in empty.items():
            setattr(made, name, value)
        return made

    def _models_of(self, pool: ClientPool) -> tuple[Array | None, Array]:
        """Clusters and models of new clients; see NewClients."""
        if not self._is_local:
            return super()._models_of(pool)
        if is_automatic(pool):
            pool = pool.penalised(n_priors(pool, pool.n_clients) * alpha_unit(pool))
        return np.zeros(pool.n_clients, dtype=np.intp), solve_local(pool).cluster_params

    def _personal_models(self, federation: Federation) -> Array:
        """Models of the clients of a federation, (n_clients, n_params), in the user's units."""
        hello = self._hello_of(federation, self._kind())
        if hello.privacy is not None:
            raise PrivacyError(
                "a client's predictions and scores are its own: ask the federation of its rows "
                "that is not private, where they are."
            )
        if hello.classes is not None:
            self._known_classes(hello.classes)
            hello = replace(hello, classes=self.classes_)
        pool = self._pool_of(federation, hello)
        _, params = self._for_clients()._models_of(pool)
        return np.asarray(pool.units.to_user(params), dtype=self.model_.dtype)
