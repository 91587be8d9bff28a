"""Partial pooling: random coefficients, in clusters or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .._checks import NOT_NEGATIVE, Count
from .._typing import ClassWeight, RandomState, Unseen
from ..base.everyday import everyday
from ..base.everyday_models import ClassifierMixin, RegressorMixin
from ..base.posterior_predictions import MAX_COVARIANCES, PosteriorPredictions, posterior_std
from ..federation.result import Result
from ..models import LinearModel
from ..numerics.memory import require
from ..numerics.newton import MAX_DENSE
from ..pooling.components import fit_population
from ..pooling.criteria import bic
from ..pooling.deviations import deviations
from ..pooling.em import Options
from ..pooling.population import COVARIANCES
from ..pooling.stacking import stacked
from ..reports.evidence import centred

if TYPE_CHECKING:
    from ..models import LocalModel


# Square matrices of all parameters that a fit holds at once, besides three for each cluster: sums
# over the clients, and those of the client whose turn it is.
MATRICES = 12


class _Everyday:
    """The local model is linear; the population takes the place of its penalty."""

    def _local_model(self):
        return LinearModel(
            loss=self.loss,
            alpha=0.0,
            fit_intercept=self.fit_intercept,
            standardize=self.standardize,
            class_weight=getattr(self, "class_weight", None),
        )


def _of_classifier(
    *,
    loss: Literal["log_loss"] = "log_loss",
    fit_intercept: bool = True,
    standardize: bool = True,
    class_weight: ClassWeight = None,
) -> None:
    """Parameters in place of the local model, which has no penalty."""


class _Classifier(_Everyday, ClassifierMixin):
    _parameters: Any = _of_classifier

    _parameter_constraints = {"loss": [StrOptions({"log_loss"})]}
    _doc_parameters = {
        "loss": """\
            {"log_loss"}
            Loss of the model: logistic regression, multinomial with more than two classes.""",
    }


def _of_regressor(
    *,
    loss: Literal["squared_error", "poisson", "gamma"] = "squared_error",
    fit_intercept: bool = True,
    standardize: bool = True,
) -> None:
    """Parameters in place of the local model, which has no penalty."""


class _Regressor(_Everyday, RegressorMixin):
    _parameters: Any = _of_regressor

    _parameter_constraints = {"loss": [StrOptions({"squared_error", "poisson", "gamma"})]}
    _doc_parameters = {
        "loss": """\
            {"squared_error", "poisson", "gamma"}
            Distribution of the target. "squared_error" is normal with a variance that is
            estimated. The others have a log link, the prediction is the exponential of the
            model's: "poisson" suits counts, y >= 0, and "gamma" amounts whose spread grows with
            them, y > 0, with a shape that is estimated by maximum likelihood.""",
    }


@everyday(classifier=_Classifier, regressor=_Regressor, networks=False)
class PartialPooling(PosteriorPredictions):
    """Partial pooling: per-client coefficients, drawn from one population.

    {use}

    The population is normal, or of clusters that are normal about their means with one
    covariance, the heterogeneity model of Verbeke and Lesaffre [1]_. With one cluster it is
    the mixed model with all coefficients random, fitted by maximum likelihood (lme4's ``y ~ x
    + (x | client)`` with ``covariance="full", prior=numpy.inf, df=numpy.inf``; by default
    several covariances are fitted, and clients' coefficients are means over them [4]_, and
    clients may have scales of their own, with t distributions [5]_), exactly for
    squared error and by Laplace's approximation for log loss, counts and amounts. Without
    variance it is one model for all, or one for each cluster; with much of it, a model for
    each client. Counts scatter as much as they do, not as Poisson's distribution has it
    (double Poisson [3]_). A client's prediction is by its posterior mean, which takes from the
    other clients what its rows do not determine.

    The clients send sums of what they know: number, shifts, curvatures and scatter of their
    posteriors. The clusters' means are found by generalised least squares, variances by
    parameter-expanded and extrapolated EM and, for squared error, quasi-Newton steps; the number
    of clusters by ICL [2]_.

    {parameters}

    {attributes}

    See Also
    --------
    PartialPoolingClassifier : The same with a linear classifier.
    PartialPoolingRegressor : The same with a linear regressor.
    ConvexClusteredFL : Crisp clusters, with proofs.

    References
    ----------
    .. [1] G. Verbeke, E. Lesaffre. "A Linear Mixed-Effects Model with Heterogeneity in the
       Random-Effects Population". Journal of the American Statistical Association, 1996.
    .. [2] C. Biernacki, G. Celeux, G. Govaert. "Assessing a Mixture Model for Clustering with the
       Integrated Completed Likelihood". IEEE Transactions on Pattern Analysis and Machine
       Intelligence, 2000.
    .. [3] B. Efron. "Double Exponential Families and Their Use in Generalized Linear Regression".
       Journal of the American Statistical Association, 1986.
    .. [4] L. Breiman. "Stacked Regressions". Machine Learning, 1996.
    .. [5] J. C. Pinheiro, C. Liu, Y. N. Wu. "Efficient Algorithms for Robust Estimation in Linear
       Mixed-Effects Models Using the Multivariate t Distribution". Journal of Computational and
       Graphical Statistics, 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import PartialPooling
    >>> rng = np.random.default_rng(0)
    >>> school = np.repeat(np.arange(40), 8)
    >>> x = rng.normal(size=320)
    >>> slope = 2 + 0.5 * rng.normal(size=40)[school]
    >>> y = slope * x + rng.normal(size=320)
    >>> model = PartialPooling().fit(x[:, None], y, groups=school)
    >>> model.n_clusters_
    1
    >>> print(model.summary())
    PartialPooling, loss squared_error, covariance stacked
    320 rows of 40 clients, 1 cluster
    log-likelihood -463.688   BIC 945.820   (covariance diag)
    stacking shares diag 0.00, full 1.00, intercept 0.00, none 0.00
    <BLANKLINE>
    Random effects
                      Std. dev.  Corr
      x0                0.37484
      (Intercept)       0.13216  -0.17
      Residual          0.97608
    <BLANKLINE>
    Fixed effects
                       Estimate    Std. error         z
      x0                 2.0133      0.082267     24.47
      (Intercept)     0.0025553       0.06065      0.04
    <BLANKLINE>
    Slopes and their errors are shrunken by a prior, see prior_variance_.
    """

    _parameter_constraints = {
        "n_clusters": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "covariance": [StrOptions({"auto", "stacked", *COVARIANCES})],
        "random": [StrOptions({"all", "intercept"}), "array-like"],
        "prior": [StrOptions({"auto"}), Interval(Real, 0, np.inf, closed="right")],
        "dispersion": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "df": [StrOptions({"auto"}), Interval(Real, 2, np.inf, closed="right")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [NOT_NEGATIVE],
        "n_init": [Count(1, 10**6)],
    }

    _doc_parameters = {
        "n_clusters": """\
            "auto" or int
            Number of clusters. "auto" takes the one of least ICL, the integrated classification
            likelihood; one cluster is a continuum of clients, and several must beat it by 10,
            very strong evidence. A few clients that fit nowhere, beside several clusters, are a
            cluster each. The user guide has the details, :doc:`/partial_pooling`. More clusters
            than clients is an error.""",
        "covariance": """\
            {"stacked", "auto", "diag", "full", "spherical"}
            Covariance of the clients' parameters about their cluster's mean, which all clusters
            have in common. "diag" has a variance for each parameter (of standardised features),
            "full" correlations too, as lme4's ``(x | client)``, and "spherical" one variance.
            "auto" is "full" for one cluster where BIC prefers that, of up to 256 parameters, and
            else "diag"; ``covariance_type_`` says which. "stacked", the default, does not choose:
            one cluster is fitted with "diag", with "full" (of up to 256 parameters), with
            intercepts alone that differ, and with no differences at all, and each counts by its
            share of ``stacking_shares_``, which may be 0, in the parameters of each client. On
            real tables it predicts better than any of them; clusters, where several are found or
            asked for, have the covariance of "diag". Hypotheses are tested, and likelihoods
            compared, by one covariance, not by a stack. Memory grows like n_clients n_params^2
            for "full", and like n_clients n_params for the others with more than 256 parameters
            and fewer rows than that a client. Several clusters have none at all where that fits
            better. However narrow it is, a full one competes with several clusters, see
            ``n_clusters``.""",
        "random": """\
            {"all", "intercept"} or list of str or int
            What differs between clients: all coefficients, the intercept alone, or the intercept
            and the coefficients of the features listed, by name or by position among the features
            (the column of ``group_col`` left out). lme4 writes ``(1 | client)`` for "intercept"
            and ``(x | client)`` for ``["x"]``. The other coefficients are the same for all
            clients, in all clusters.""",
        "prior": """\
            "auto" or float
            Variance of a normal prior of the slopes of the clusters' means (of standardised
            features; intercepts are free). "auto" estimates it by empirical Bayes, one for each
            cluster, takes the means' degrees of freedom from those of the noise, and draws the
            correlations of a full covariance to zero by an inverse Wishart prior that is worth
            two clients without correlations for each parameter; ``numpy.inf`` is no prior, which
            is maximum likelihood.""",
        "dispersion": """\
            "auto" or float
            How much rows scatter about their expectation: the variance of the noise for squared
            error, one over the shape for the gamma loss. Of counts it is how many times the
            variance is that of Poisson's distribution: without it what is noise would be taken
            for differences between clients. "auto" estimates it, of counts no less than 1; 1 is
            Poisson's distribution, and the only one of classes.""",
        "df": """\
            "auto" or float
            Degrees of freedom of the clients' scales, of squared error. With a finite number,
            more than 2, each client has a scale of its own, which its noise and its distance from
            the population are multiplied by, and the rows of a client have a multivariate t
            distribution (Pinheiro, Liu and Wu 2001): wild clients count less in what all have in
            common, and do not change how far others are drawn to it. ``numpy.inf`` is the normal
            distribution, as lme4 has it, with one noise for all. "auto" estimates the degrees of
            freedom, 2.5 or more, and keeps the normal distribution unless BIC is less by 10
            without it, very strong evidence, with 6 or fewer. It is normal with fewer than 15
            clients, with more than 256 parameters, where clients are lost and come back, and for
            other losses, which have no scales. A client that is alone has none either.""",
        "max_iter": """\
            int
            Largest number of exchanges with the clients of the fit of one number of clusters,
            and of each part of a stack. A ``ConvergenceWarning`` says so when it was not
            enough.""",
        "tol": """\
            float
            The fit stops when the log-likelihood has gained less than ``tol`` a client in three
            steps.""",
        "n_init": """\
            int
            Starts of each number of clusters by k-means++ of the clients' posterior means,
            besides those that split a cluster of the fit before. All are tried for some steps and
            the best is fitted.""",
        "unseen": """\
            {"error", "average", "largest"}
            What to do in prediction about ids not seen in fit. "error" refuses them; "average"
            uses the mean of the population, ``mixture_weights_ @ cluster_params_``, which is what
            the model expects of a new client; "largest" uses the mean of the cluster with most
            clients. :meth:`adapt` gives a new client its posterior.""",
    }
    _doc_attributes = {
        "alpha_": """\
            float
            0: the population takes the place of a local penalty.""",
        "labels_": """\
            ndarray of shape (n_clients,)
            Most probable cluster of each client, in the order of ``groups_``. Clusters are
            numbered from 0 by decreasing number of clients, equal ones by their first client.""",
        "coef_": """\
            ndarray of shape (n_clients, n_features) or (n_clients, n_classes, n_features)
            Posterior mean of each client's coefficients.""",
        "cluster_coef_": """\
            ndarray of shape (n_clusters_, n_features) or (n_clusters_, n_classes, n_features)
            Coefficients of the clusters' means: fixed effects.""",
        "covariance_": """\
            ndarray of shape (n_params, n_params)
            Covariance of the clients' parameters about their cluster's mean, in the units of
            ``params_``: of each output the coefficients, then the intercept. Diagonal for
            standardised features need not be diagonal here. A sparse array with more than 256
            parameters, unless it is full. Of a stack the mean of its populations'.""",
        "covariance_type_": """\
            {"diag", "full", "spherical", "none", "stacked"}
            Kind of ``covariance_``: what ``covariance="auto"`` chose, and "none" for clusters
            without variance.""",
        "stacking_shares_": """\
            dict of str to float
            How much each fit counts in all parameters. With ``covariance="stacked"`` and one
            cluster "diag", "full", "intercept" and "none", as far as there are such: the shares
            for which the loss of the rows is least, each predicted by the posterior of its
            client's other rows, where each variance of a slope costs 1.5 units of the noise and
            each correlation and variance of an intercept a tenth. Else 1 for
            ``covariance_type_``. Of a stack ``loglik_``, ``bic_``, ``objective_`` and
            ``history_`` are of that one fit of the first two which has the lower BIC in
            ``bic_path_``; ``params_std_``, ``standard_errors_`` and predicted standard deviations
            are those of a mixture, which include what the fits differ by; ``params_``, the means
            of the population, ``covariance_``, ``dispersion_`` and ``prior_variance_`` are means
            over the shares.""",
        "params_std_": """\
            ndarray of shape (n_clients, n_params)
            Posterior standard deviations of ``params_``, given the variances: of a client about
            its cluster's mean, and of that mean, which is all there is where clusters have no
            variance inside. With more than 256 parameters of a covariance that is not full they
            are given the means too, and NaN for intercepts of centred features where the clients'
            covariances would take more than 256 MB.""",
        "mixture_weights_": """\
            ndarray of shape (n_clusters_,)
            Probabilities of the clusters.""",
        "responsibilities_": """\
            ndarray of shape (n_clients, n_clusters_)
            Probabilities of each client's cluster, given its rows.""",
        "dispersion_": """\
            float
            Variance of the noise for squared error; one over the shape for the gamma loss, the
            square of the coefficient of variation; for counts the variance as a multiple of the
            expectation; 1 for classes.""",
        "client_dispersion_": """\
            ndarray of shape (n_clients,)
            The dispersion of each client's rows, an expectation given its rows; ``dispersion_``
            for all where ``df_`` is infinite. Large ones are those of wild clients.""",
        "df_": """\
            float
            Degrees of freedom of the clients' scales; infinite where all have the same. A client
            of which nothing is known has ``df_ / (df_ - 2)`` times ``covariance_`` and
            ``dispersion_``. Of a stack that of the fit that ``loglik_`` is of.""",
        "loglik_": """\
            float
            Marginal log-likelihood of the rows with all constants, in the units of y; Laplace's
            approximation but for squared error. Of counts with a dispersion other than 1 that of
            the double Poisson distribution (Efron, 1986) without its normalising constant, which
            is nearly 1: an extended quasi-likelihood. Of a stack that of one fit, see
            ``stacking_shares_``.""",
        "bic_": """\
            float
            Bayesian information criterion of ``loglik_``, the clients being the sample.""",
        "bic_path_": """\
            dict of str to ndarray
            "n_clusters", "covariance_type", "loglik", "bic", "icl" and "n_iter" of each fit that
            was tried: several clusters with variance and without ("none"), one with a full
            covariance where that is part of a stack or a rival of several clusters. ICL is BIC
            with the rows as the sample of the clusters' means, plus twice the entropy of the
            responsibilities. It is infinite for what is no cluster: too many clients that are one
            each, no more clients than coefficients vary, of clusters without variance less than
            two rows for each coefficient, and gamma losses where most rows go into means.""",
        "standard_errors_": """\
            ndarray of shape (n_clusters_, n_params)
            Standard errors of ``cluster_params_``, given the covariance and the prior, which
            shrinks them with the means; those of maximum likelihood with ``prior=numpy.inf``. NaN
            with more than 256 parameters of a covariance that is not full, of which clients send
            no curvatures.""",
        "prior_variance_": """\
            ndarray of shape (n_clusters_,)
            Variance of the prior of each cluster mean's slopes, of standardised features;
            infinite without a prior.""",
        "objective_": """\
            float
            Minus the log-likelihood, plus the penalty of the prior.""",
        "history_": """\
            dict of str to ndarray
            "loglik" and "objective" after each step of the chosen fit.""",
        "n_iter_": """\
            int
            Exchanges of the chosen fit.""",
    }

    def __init__(
        self,
        model: LocalModel | None = None,
        n_clusters: int | Literal["auto"] = "auto",
        *,
        covariance: Literal["stacked", "auto", "diag", "full", "spherical"] = "stacked",
        random: Literal["all", "intercept"] | Sequence[str] | Sequence[int] = "all",
        prior: float | Literal["auto"] = "auto",
        dispersion: float | Literal["auto"] = "auto",
        df: float | Literal["auto"] = "auto",
        max_iter: int = 1000,
        tol: float = 1e-5,
        n_init: int = 3,
        group_col: str | int | None = None,
        unseen: Unseen = "error",
        n_jobs: int | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.n_clusters = n_clusters
        self.covariance = covariance
        self.random = random
        self.prior = prior
        self.dispersion = dispersion
        self.df = df
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _local_model(self):
        model = super()._local_model()
        automatic = getattr(model, "alpha", None) == "auto"
        return clone(model).set_params(alpha=0.0) if automatic else model

    def _open(self, federation, hello, header, groups, before=None):
        task = super()._open(federation, hello, header, groups, before)
        names = self._feature_names(header, hello.n_features)
        return replace(task, options={**task.options, "varying": self._varying(names)})

    def _places_absent(self):
        return True

    def _varying(self, names):
        """Which of the features' coefficients, and the intercept, differ: (n_features + 1,)."""
        varying = np.ones(len(names) + 1, dtype=bool)
        if isinstance(self.random, str):
            varying[:-1] = self.random == "all"
        else:
            varying[:-1] = False
            for entry in np.asarray(self.random, dtype=object).ravel():
                varying[self._position(entry, names)] = True
        if not varying[:-1].any() and not self._local_model().fit_intercept:
            raise ValueError(
                "random must name a coefficient that differs between clients where there is no "
                f"intercept; got random={self.random!r} with fit_intercept=False."
            )
        return varying

    def _position(self, entry, names):
        """Position of a feature of which a user gave the name or the position."""
        found = np.flatnonzero(names == entry) if isinstance(entry, str) else []
        if isinstance(entry, Integral) and not isinstance(entry, (bool, np.bool_)):
            found = [entry % len(names)] if -len(names) <= entry < len(names) else []
        if len(found) != 1:
            raise ValueError(
                "random must be 'all', 'intercept' or a list of features, names of "
                f"{names.tolist()} or their positions; got {entry!r} in it."
            )
        return found[0]

    def _solve(self, pool, varying):
        model = pool.model
        if not getattr(model, "is_likelihood", False):
            raise ValueError(
                f"{type(self).__name__} needs a linear model with a loss that is a "
                "log-likelihood: 'squared_error', 'log_loss', 'poisson' or 'gamma'; got "
                f"{type(pool.model).__name__} with loss={getattr(model, 'loss', None)!r}."
            )
        if model.alpha_ != 0.0:
            raise ValueError(
                f"alpha must be 'auto' or 0: the prior is estimated; got alpha={model.alpha_:g}."
            )
        loss = model.describe_loss()
        if loss.classifier and self.dispersion not in ("auto", 1):
            raise ValueError(
                f"dispersion must be 'auto' or 1 for classes; got dispersion={self.dispersion!r}."
            )
        estimated = self.dispersion == "auto" and (loss.unknown_scale or loss.overdispersed)
        self._require_memory(pool)
        free = np.zeros((model.n_outputs, model.n_columns), dtype=bool)
        free[:, model.n_features :] = True
        options = Options(
            max_iter=self.max_iter,
            tol=self.tol,
            prior=self.prior,
            free=free.ravel(),
            varying=np.tile(varying[: model.n_columns], model.n_outputs),
            dispersion_of=loss.dispersion_of if estimated else None,
            dispersion=1.0 if self.dispersion == "auto" else float(self.dispersion),
            df=self._df(loss),
        )
        fit, path, fits = fit_population(
            pool, self.covariance, self.n_clusters, self.n_init, options
        )
        return self._result(pool, fit, path, fits, options)

    def _df(self, loss):
        """Degrees of freedom of the clients' scales, "auto" where they are estimated."""
        if loss.quadratic:
            return self.df
        if self.df not in ("auto", np.inf):
            raise ValueError(
                "df must be 'auto' or numpy.inf but for squared error, with which rows have a t "
                f"distribution; got df={self.df!r} with loss={loss.name!r}."
            )
        return np.inf

    def _require_memory(self, pool):
        """Raise an error where curvatures do not fit in memory."""
        p = pool.n_params
        K = 1 if self.n_clusters == "auto" else self.n_clusters
        if self.covariance == "full":
            square, hint = p**2, 'covariance="diag"'
        else:
            square, hint = min(p**2, p * max(pool.n_clients, MAX_DENSE)), "fewer features"
        require(
            8 * square * (3 * K + MATRICES),
            f"{type(self).__name__}'s curvatures of {p} parameters",
            f"Use {hint}, or a method that needs no curvature of all parameters, such as FedAvg "
            "or ConvexClusteredFL.",
        )

    def _result(self, pool, fit, path, fits, options):
        stack, n_iter, unstacked = stacked(pool, fits)
        dense = self._keeps_covariances(pool)
        r, means, covariances, noise = stack.posteriors(pool, dense)
        labels = r.argmax(axis=1)
        # Numbered as published: by size, then by the first client.
        sizes = np.bincount(labels, minlength=r.shape[1])
        first = [np.argmax(labels == k) for k in range(r.shape[1])]
        order = np.lexsort((first, -sizes))
        stack = stack.ordered(order)
        user_map = pool.units.user_map()
        covariance = user_map @ stack.covariance @ user_map.T
        trail = np.array(fit.trail)
        extra = {
            "covariance_type": stack.names[0] if len(fits) == 1 else "stacked",
            "stacking_shares": dict.fromkeys(fits, 0.0)
            | dict(zip(stack.names, stack.shares.tolist(), strict=True)),
            "covariance": covariance.tocsr() if sparse.issparse(covariance) else covariance,
            "mixture_weights": stack.populations[0].weights,
            "responsibilities": r[:, order],
            "dispersion": stack.dispersion,
            "client_dispersion": noise,
            "df": fit.population.df,
            "loglik": fit.loglik,
            "bic": bic(fit, pool, options),
            "bic_path": path,
            "standard_errors": _standard_errors(stack, user_map),
            "prior_variance": stack.prior,
            "params_std": posterior_std(covariances, user_map),
            "state": (stack, covariances if dense else None, pool.n_samples),
            "population": fit.population,
        }
        shortfall = unstacked and f"{type(self).__name__}: {unstacked}"
        slow = [name for name in stack.names if not fits[name].converged]
        if slow:
            of = f" of the stack's {' and '.join(slow)} fit" if len(fits) > 1 else ""
            shortfall = (
                f"{type(self).__name__} stopped after max_iter={self.max_iter} exchanges{of} "
                f"while the log-likelihood still gained more than tol={self.tol} a client. "
                "Increase max_iter, or tol."
            )
        return Result(
            pool.model.centre(stack.means),
            np.argsort(order)[labels],
            pool.model.centre(means),
            objective=-fit.value,
            n_iter=fit.n_iter + n_iter,
            history={"loglik": trail[:, 0], "objective": -trail[:, 1]},
            converged=not shortfall,
            shortfall=shortfall,
            extra=extra,
        )

    def _keeps_covariances(self, pool):
        """Whether each client's covariance is asked for, which standard deviations need."""
        return 8 * pool.n_clients * pool.n_params**2 <= MAX_COVARIANCES

    def _publish(self, task, result):
        state = result.extra.pop("state")
        self._population = result.extra.pop("population")
        super()._publish(task, result)
        self._stack, self._covariances, self._n_rows = state
        # What is expected of a client of which nothing is known.
        self._average_params = self.mixture_weights_ @ self.cluster_params_

    def _deviations(self):
        population = self._population
        if population.n_clusters > 1:
            return None

        def measured(pool, common, centre, spread):
            transform = centred(pool.model, centre, spread)
            return deviations(pool, population, common, transform)

        return measured

    def summary(self, max_params: int = 50) -> str:
        """Table of the fit: means, their standard errors, and what differs between clients.

        Parameters
        ----------
        max_params : int, default=50
            Parameters that are shown at most: the intercepts, and the first of the others.

        Returns
        -------
        text : str
            As of lme4: standard deviations of the random effects, by parameter, with their
            correlations where the covariance is full, then the fixed effects of each cluster. In
            the user's units.

        Notes
        -----
        Under a prior of the means, ``prior="auto"`` or a number, the slopes of the fixed effects
        are drawn towards zero, and their standard errors, which are those of the shrunken means
        given the covariance and the prior, are less than of maximum likelihood: the text says so.
        Tests of hypotheses need ``prior=numpy.inf`` and one covariance: of a stack deviations,
        correlations and fixed effects are means over its shares, and the log-likelihood and BIC
        are of one of its fits, which the text names.
        """
        check_is_fitted(self)
        model = self.model_
        names = [*map(str, self.coef_names_), *["(Intercept)"] * bool(model.fit_intercept)]
        if model.n_outputs > 1:
            names = [f"{name} | {label}" for label in self.classes_ for name in names]
        shown = self._shown(len(names), max_params)
        names = [names[j] for j in shown]
        width = max(map(len, [*names, "(Intercept)"]))
        rows, new = int(self._n_rows), len(self.groups_) - self._n_fitted
        lines = [
            f"{type(self).__name__}, loss {model.loss}, covariance {self.covariance_type_}",
            f"{rows} rows of {self._n_fitted} clients, {self.n_clusters_} "
            f"cluster{'s' if self.n_clusters_ > 1 else ''}",
            *[f"and {new} newcomer{'s' if new > 1 else ''}, see adapt"] * bool(new),
            f"log-likelihood {self.loglik_:.3f}   BIC {self.bic_:.3f}{self._fit_text()}",
            *[f"stacking shares {self._shares_text()}"] * (len(self.stacking_shares_) > 1),
            *[f"dispersion {self.dispersion_:.5g}"] * model.describe_loss().overdispersed,
            *[f"degrees of freedom of scales {self.df_:.3g}"] * bool(np.isfinite(self.df_)),
            "",
            "Random effects",
        ]
        correlated = self.stacking_shares_.get("full", 0.0) > 0.0 and len(shown) > 1
        lines.append(f"  {'':{width}}  {'Std. dev.':>12}" + "  Corr" * correlated)
        spread = np.sqrt(self.covariance_.diagonal()[shown])
        correlations = self._correlations(shown) if correlated else [""] * len(shown)
        lines += [
            f"  {n:{width}}  {s:12.5g}{c}"
            for n, s, c in zip(names, spread, correlations, strict=True)
        ]
        if model.unknown_scale:
            lines.append(f"  {'Residual':{width}}  {np.sqrt(self.dispersion_):12.5g}")
        for k, (theta, errors) in enumerate(
            zip(self.cluster_params_[:, shown], self.standard_errors_[:, shown], strict=True)
        ):
            lines += ["", "Fixed effects"]
            if self.n_clusters_ > 1:
                lines[-1] += (
                    f" of cluster {k}: {self.cluster_sizes_[k]} clients, "
                    f"weight {self.mixture_weights_[k]:.3f}"
                )
            lines.append(f"  {'':{width}}  {'Estimate':>12}  {'Std. error':>12}  {'z':>8}")
            for name, value, error in zip(names, theta, errors, strict=True):
                z = value / error if error > 0 else np.nan
                lines.append(f"  {name:{width}}  {value:12.5g}  {error:12.5g}  {z:8.2f}")
        if np.isfinite(self.prior_variance_).all():
            lines += ["", "Slopes and their errors are shrunken by a prior, see prior_variance_."]
        if len(shown) < self.cluster_params_.shape[1]:
            total = self.cluster_params_.shape[1]
            lines += ["", f"{len(shown)} of {total} parameters, see max_params."]
        return "\n".join(line.rstrip() for line in lines)

    def _fit_text(self):
        """Whose likelihood that is, of a stack."""
        if len(self.stacking_shares_) == 1:
            return ""
        own = np.abs(self.bic_path_["loglik"] - self.loglik_).argmin()
        return f"   (covariance {self.bic_path_['covariance_type'][own]})"

    def _shares_text(self):
        return ", ".join(f"{name} {share:.2f}" for name, share in self.stacking_shares_.items())

    def _shown(self, n_params, max_params):
        """Positions of the parameters of a summary, in their order."""
        if not isinstance(max_params, Integral) or max_params < 1:
            raise ValueError(f"max_params must be an int of at least 1, got {max_params!r}.")
        order = np.arange(n_params)
        if self.model_.fit_intercept:
            column = order % self.model_.n_columns
            order = np.argsort(column != self.model_.n_columns - 1, kind="stable")
        return np.sort(order[:max_params])

    def _correlations(self, shown):
        """Of each of some parameters the correlations with those before it, as text."""
        block = self.covariance_[np.ix_(shown, shown)]
        spread = np.sqrt(np.diag(block))
        with np.errstate(divide="ignore", invalid="ignore"):
            R = block / (spread[:, None] * spread)
        texts = ("".join(f"{r:7.2f}" for r in row[:i]) for i, row in enumerate(R))
        return [text.replace("nan", "   ") for text in texts]


def _standard_errors(stack, user_map):
    """Of the clusters' means in the user's units, (K, p), NaN where they are not known."""
    errors = stack.mean_errors
    if errors is None:
        return np.full(stack.means.shape, np.nan)
    return posterior_std(errors, user_map)
