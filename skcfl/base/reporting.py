"""How sure a fit is: reports in words, and coefficients as a table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._checks import needs
from .._typing import Array, FloatArray
from ..calls.curvatures import HessianDiagonals
from ..calls.first_order import Losses
from ..numerics.matrices import slices
from ..reports.evidence import gather, if_answered, marginals
from ..reports.words import effects_of, report_of
from .predicting import needs_all_clients

if TYPE_CHECKING:
    from ..federation.pool import ClientPool
    from ..inspection import ClusterStability
    from ..reports.report import Report
    from .predicting import Predictions as Host
else:  # a mixin
    Host = object


# Losses of clients under clusters that a fit keeps for `update`.
MOST_SEEN = 10**6
# Most clients in one call for curvatures, which answers every block with a row for each client.
CLIENTS_AT_ONCE = 1000


class Reports(Host):
    """Mixin of estimators that say how sure they are of their clients, beside Predictions."""

    _how_sure: Any
    _seen_weights: FloatArray
    _seen_losses: FloatArray | None
    _seen_marginals: FloatArray | None
    _seen_curvatures: FloatArray | None
    #: If True, `update` needs the curvature of linear models' old rows.
    _keeps_curvatures = True

    def _gather(
        self, pool: ClientPool, n_clients: int, elsewhere: bool, rows: ClientPool | None = None
    ) -> None:
        """Ask the clients, after a fit, what a report needs to know of them.

        Those in other places are asked only if `elsewhere`. `rows` are the clients with the
        weights of their rows, if those of `pool` are others.
        """
        # Rows are judged by ensembles before these are boosted.
        theta = pool.units.from_user(self.cluster_params_[:, : pool.n_params])
        params = None if self._shared_params else self.params_
        posterior = self._cluster_posterior()
        about = self._deviations(), elsewhere, rows, posterior
        # Asked first: clients that overflow at a report's common model answer nothing more.
        self._seen_curvatures = None
        linear = pool.can_answer("prox") and hasattr(pool.model, "kernel")
        if linear and params is not None and self._keeps_curvatures and not pool.travels:
            models = pool.units.from_user(params)
            self._seen_curvatures = if_answered(curvatures_of, pool.lane(), models)
        evidence = gather(pool, self.labels_, theta, params, *about)
        evidence.ids = self.groups_[evidence.clients]
        evidence.weights = pool.client_weights[evidence.clients]
        self._how_sure, self._n_fitted = evidence, n_clients
        self._seen_weights = pool.client_weights
        complete = len(evidence.clients) == n_clients
        self._seen_losses = evidence.cluster_losses if complete else None
        self._seen_marginals = evidence.marginals if complete else None
        several = self._has_clusters and 1 < len(theta) <= MOST_SEEN / pool.n_clients
        whole = pool.model.fits_whole
        if several and self._seen_losses is None and (whole or not pool.travels):
            ask = partial(pool.lane().ask, whole=whole)
            self._seen_losses = if_answered(ask, Losses, theta)
            if evidence.models is not None:
                shares = 0.0 if posterior is None else posterior[1]
                found = if_answered(marginals, pool.lane(), evidence.models, shares)
                if found is not None:
                    found[evidence.clients] = evidence.marginals
                self._seen_marginals = found

    def _deviations(self) -> Any:
        """Measure of differences of coefficients, see :func:`skcfl.reports.evidence.gather`."""
        return None

    def _cluster_posterior(self) -> Any:
        """Models of the clusters and responsibilities, see `gather`, of mixtures of clients."""
        return None

    def _client_effects(self) -> tuple[list[str], Array, Array | None]:
        """Effects at the mean row, and of a standard deviation of each feature.

        Names (p,), values (n_clients, p), and posterior standard deviations where there are some.
        """
        names, transform, effects = effects_of(self)
        covariances = getattr(self, "_covariances", None)
        if covariances is None:
            return names, self.params_ @ transform.T, None
        variances = np.einsum("ip,cpq,iq->ci", effects, covariances, effects, optimize=True)
        return names, self.params_ @ transform.T, np.sqrt(np.maximum(variances, 0.0))

    def _cluster_effects(self) -> Array:
        """The same of the clusters, (n_clusters_, p)."""
        return self.cluster_params_ @ effects_of(self)[1].T

    def report(self, stability: ClusterStability | None = None) -> Report:
        """Say in plain words what the fit found, and how sure it is.

        Do clients differ, and in what? How many clusters are there, and who is in which? Which
        clients are served worst, which are outliers, what is not settled? Rows are not needed: the
        clients sent sums at the end of the fit, at most 2000 clients, and 500 for the draws of the
        tests. See the page "How sure?" of the user guide.

        Parameters
        ----------
        stability : ClusterStability, default=None
            Result of :func:`skcfl.inspection.cluster_stability` about the clusters, to be a part
            of the report.

        Returns
        -------
        report : Report
            ``print(report)`` shows it as text, a notebook as HTML. ``report.findings`` has the
            numbers by name, such as "p_no_difference".

        Raises
        ------
        ValueError
            If ``stability`` is about other clients or clusters.

        Notes
        -----
        The tests need a linear model of up to 256 parameters. They compare the clients' scores
        at a common model with drawn ones that vary as the rows show (a wild bootstrap): neither
        the distribution of the noise nor its size has to be known. With squared error and fewer
        than two rows for each parameter noise is taken to be normal and of one size.

        Examples
        --------
        >>> from skcfl import IFCARegressor
        >>> from skcfl.datasets import make_clustered_regression
        >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
        >>> model = IFCARegressor(random_state=0).fit(data.X, data.y, groups=data.groups)
        >>> model.report().findings["p_no_difference"] < 0.01
        True
        """
        check_is_fitted(self)
        needs_all_clients(self, "report")
        return report_of(self, stability)

    def to_frame(self) -> Any:
        """Coefficients of the clients as a table of pandas.

        Returns
        -------
        frame : DataFrame of shape (n_clients, ...)
            A row for each client, named by its id, with its "cluster", its coefficients by the
            names of their features and the "intercept"; of several classes by (class, feature).

        Raises
        ------
        ImportError
            If pandas is not installed.
        ValueError
            If the local model has no coefficients.

        Examples
        --------
        >>> from skcfl import LocalModelsRegressor
        >>> from skcfl.datasets import make_clustered_regression
        >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
        >>> model = LocalModelsRegressor().fit(data.X, data.y, groups=data.groups)
        >>> model.to_frame().shape
        (6, 12)
        """
        check_is_fitted(self)
        if not len(self.groups_):
            needs_all_clients(self, "to_frame")
        with needs(
            f"{type(self).__name__}.to_frame needs pandas, which is not installed. Install it: "
            "python -m pip install pandas."
        ):
            import pandas as pd
        if not hasattr(self, "coef_"):
            raise ValueError(
                f"{type(self).__name__}.to_frame needs a local model with coefficients, got "
                f"{type(self.model_).__name__}. The parameters of each client are in params_."
            )
        columns: dict[Any, Array] = {}
        with_intercept = getattr(self.model_, "fit_intercept", False)
        names = list(map(str, self.coef_names_))
        taken = {"intercept"} if with_intercept else set()
        taken |= {"cluster"} if self.coef_.ndim == 2 else set()
        twice = sorted({name for name in names if name in taken or names.count(name) > 1})
        if twice:
            raise ValueError(
                f"to_frame has columns of its own, or of curves, named {', '.join(twice)}: give "
                "the features of X other names."
            )
        if self.coef_.ndim == 2:
            columns["cluster"] = self.labels_
            columns |= dict(zip(names, self.coef_.T, strict=True))
            if with_intercept:
                columns["intercept"] = self.intercept_
        else:
            columns["cluster", ""] = self.labels_
            for c, label in enumerate(self.classes_):
                pairs = zip(names, self.coef_[:, c].T, strict=True)
                columns |= {(label, name): values for name, values in pairs}
                if with_intercept:
                    columns[label, "intercept"] = self.intercept_[:, c]
        return pd.DataFrame(columns, index=pd.Index(self.groups_, name="client"))


def curvatures_of(pool: ClientPool, models: Array) -> Array:
    """Second derivatives of the clients' objectives in each parameter of their models.

    They are NaN for clients that do not answer.
    """
    found = np.empty(models.shape)
    for some in slices(pool.n_clients, CLIENTS_AT_ONCE):
        part, mine = pool.subset(np.arange(pool.n_clients)[some]), np.arange(len(models[some]))
        found[some] = part.ask(
            HessianDiagonals, models[some], mine, np.ones(len(mine)), whole=False
        )
        if part.answered is not None:
            found[some][~part.answered] = np.nan
    return found
