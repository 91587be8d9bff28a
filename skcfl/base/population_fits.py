"""The fit of partial pooling: which coefficients vary, the population, what is published."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from ..federation.presence import comparing
from ..federation.result import Result
from ..models import LinearModel
from ..models._levelled import LevelledModel
from ..numerics.by_cluster import numbered_by_size
from ..numerics.memory import require
from ..numerics.newton import MAX_DENSE
from ..pooling.basis_options import SplineBasis, TreeBasis
from ..pooling.boosting import grown
from ..pooling.components import fit_population
from ..pooling.criteria import bic, n_parameters
from ..pooling.crossed import best_crossed, fit_crossed, nested_effects, population_of
from ..pooling.crossed_modes import fit_modes
from ..pooling.deviations import deviations
from ..pooling.em import SUMMED, Options, evaluate
from ..pooling.stacking import constants, stacked, without
from ..reports.differences import centred
from .basis_choices import Competition, OtherBasis, bases_compete
from .designs import grouped, made
from .level_effects import LevelEffects
from .population_table import population_table
from .posterior_predictions import MAX_COVARIANCES, posterior_std
from .predicting import needs_all_clients
from .private_fits import PrivatePlan
from .private_plans import of_stack, pooling_plan, shortfall_of
from .table_columns import positions_of
from .tree_effects import TreeEffects, check_trees, cuts_of, in_units_of

if TYPE_CHECKING:
    from .posterior_predictions import PosteriorPredictions as Host
else:  # a mixin
    Host = object

# Square matrices of all parameters that a fit holds at once, besides three for each cluster: sums
# over the clients, and those of the client whose turn it is.
MATRICES = 12
# Covariances that are tried with crossed or nested groupings, by ``covariance``.
KINDS = {
    "stacked": ["diag", "full", "intercept", "none"],
    "auto": ["diag", "full"],
    "diag": ["diag"],
    "full": ["full"],
}
# Mean weight up to which the likelihood of any rows has a maximum with noise, and share of the
# noise that must be found beyond it.  Benchmark: 60 clients of 4 rows and coefficients: up to 1.1
# the noise is at least a third of what it is with weights of 1, and from 1.3 it is 1e-7.
MOST_WEIGHT, LEAST_SEEN = 1.1, 0.05
# Losses with Laplace's approximation over levels.
LAPLACE_LOSSES = {"log_loss", "poisson"}


class PopulationFits(Host):
    """Mixin of the estimator with clients' coefficients drawn from a population.

    It is left of PosteriorPredictions. The estimator has the parameters ``n_clusters``,
    ``covariance``, ``random``, ``basis``, ``prior``, ``dispersion``, ``df``, ``max_iter``, ``tol``
    and ``n_init``.

    Attributes
    ----------
    alpha_ : float
        0: the population takes the place of a local penalty.
    labels_ : ndarray of shape (n_clients,)
        Most probable cluster of each client, in the order of ``groups_``. Clusters are
        numbered from 0 by decreasing number of clients, equal ones by their first client.
    coef_ : ndarray of shape (n_clients, n_features) or (n_clients, n_classes, n_features)
        Posterior mean of each client's coefficients.
    cluster_coef_ : ndarray of shape (n_clusters_, n_features) or (n_clusters_, n_classes, \
    n_features)
        Coefficients of the clusters' means: fixed effects.
    covariance_ : ndarray of shape (n_params, n_params)
        Covariance of the clients' parameters about their cluster's mean, in the units of
        ``params_``: of each output the coefficients, then the intercept. Diagonal for
        standardised features need not be diagonal here. A sparse array with more than 256
        parameters, unless it is full. Of a stack the mean of its populations'.
    covariance_type_ : {"diag", "full", "spherical", "intercept", "none", "stacked"}
        Kind of ``covariance_``: what ``covariance="auto"`` chose, "none" for clusters without
        variance; with ``crossed`` or ``nested`` the one of least BIC, also where "stacked" was
        asked for.
    stacking_shares_ : dict of str to float
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
        over the shares.
    params_std_ : ndarray of shape (n_clients, n_params)
        Posterior standard deviations of ``params_``, given the variances: of a client about its
        cluster's mean, and of that mean, which is all there is where clusters have no variance
        inside. With ``crossed`` or ``nested`` they are given the effects of the levels, and less
        than the errors. With more than 256 parameters (1024 where a typical client has a row for
        each) of a covariance that is not full they are given the means too. If the clients'
        covariances would take more than 256 MB they are NaN for intercepts of centred features,
        and too large with three or more classes, as they include the variance of a vector added to
        all classes.
    mixture_weights_ : ndarray of shape (n_clusters_,)
        Probabilities of the clusters.
    responsibilities_ : ndarray of shape (n_clients, n_clusters_)
        Probabilities of each client's cluster, given its rows.
    dispersion_ : float
        Variance of the noise for squared error; one over the shape for the gamma loss, the
        square of the coefficient of variation; for counts the variance as a multiple of the
        expectation; 1 for classes.
    client_dispersion_ : ndarray of shape (n_clients,)
        The dispersion of each client's rows, an expectation given its rows; ``dispersion_``
        for all where ``df_`` is infinite. Large ones are those of wild clients.
    df_ : float
        Degrees of freedom of the clients' scales; infinite where all have the same. A client
        of which nothing is known has ``df_ / (df_ - 2)`` times ``covariance_`` and
        ``dispersion_``. Of a stack that of the fit that ``loglik_`` is of.
    loglik_ : float
        Marginal log-likelihood of the rows with all constants, in the units of y; Laplace's
        approximation but for squared error. Of counts with a dispersion other than 1 that of
        the double Poisson distribution (Efron, 1986) without its normalising constant, which
        is nearly 1: an extended quasi-likelihood. Of a stack that of one fit, see
        ``stacking_shares_``.
    bic_ : float
        Bayesian information criterion of ``loglik_``, the clients being the sample. Each
        correlation counts ``n / (n + s)``, as its prior is worth s clients: two for each
        coefficient that varies, none with ``prior=numpy.inf``.
    bic_path_ : dict of str to ndarray
        "n_clusters", "covariance_type", "df", "loglik", "bic", "icl" and "n_iter" of each fit that
        was tried: several clusters with variance and without ("none"), one with a full covariance
        where that is part of a stack or a rival of several clusters, the stack's other parts
        ("intercept", "none") where they are rivals. ICL is BIC with the rows as the sample of the
        clusters' means, plus twice the entropy of the responsibilities. It is infinite for what is
        no cluster: too many clients that are one each, no more clients than coefficients vary, of
        clusters without variance less than two rows for each coefficient, and gamma losses where
        most rows go into means.
    standard_errors_ : ndarray of shape (n_clusters_, n_params)
        Standard errors of ``cluster_params_``, given the covariance and the prior, which
        shrinks them with the means; those of maximum likelihood with ``prior=numpy.inf``. NaN
        with more than 256 parameters (1024 where a typical client has a row for each) of a
        covariance that is not full, as clients send no curvatures then.
    basis_ : {"linear", "splines", "shared splines", "trees"}
        What predictions are a sum of: straight lines, each client's curves, curves that all
        clients share, or straight lines and trees.
    feature_importances_ : ndarray of shape (n_features,)
        With trees: the part of each feature in the sum of squares that they explain; of other
        losses in what the splits gain by Newton's method.
    basis_losses_ : dict of str to float
        With ``basis="auto"``: mean loss of a row held out inside the clients, of straight
        lines, of curves that all share, of the clients' own, and of trees, as far as they
        competed; empty where straight lines left nothing to explain.
    crossed_effects_ : dict of str to dict
        With ``crossed``: for each grouping the effect of each level, an expectation given the
        rows. A level not seen in fit has the effect 0 in predictions, and is noise in ``adapt``
        and ``update``.
    crossed_effects_std_ : dict of str to dict
        Standard deviation of the error of each of these effects, given the variances. It includes
        the error of the fixed effects.
    nested_effects_ : dict of str to dict
        With ``nested``: for each grouping the effect of each (client, level).
    level_variances_ : dict of str to float
        With ``crossed`` or ``nested``: the variance of each grouping's effects.
    prior_variance_ : ndarray of shape (n_clusters_,)
        Variance of the prior of each cluster mean's slopes, of standardised features;
        infinite without a prior.
    objective_ : float
        Minus the log-likelihood, plus the penalty of the prior.
    history_ : dict of str to ndarray
        "loglik" and "objective" after each step of the chosen fit.
    n_iter_ : int
        Exchanges of the chosen fit.
    """

    n_clusters: Any
    covariance: Any
    random: Any
    prior: Any
    dispersion: Any
    df: Any
    max_iter: int
    tol: float
    n_init: int

    def _local_model(self) -> Any:
        model = super()._local_model()
        automatic = getattr(model, "alpha", None) == "auto"
        return clone(model).set_params(alpha=0.0) if automatic else model

    def _open(
        self, federation: Any, hello: Any, header: Any, groups: Any, before: Any = None
    ) -> Any:
        named = {"linear": None, "splines": SplineBasis(), "trees": TreeBasis()}
        basis: Any = (
            named.get(self.basis, self.basis) if isinstance(self.basis, str) else self.basis
        )
        draft = header._draft
        if draft.federation is None:
            draft.federation, draft.hello, draft.groups = federation, hello, groups
        federation, hello, draft.before = draft.federation, draft.hello, before
        if before is not None:  # the fit starts again without some clients
            draft.quantiles = None
        basis = basis if draft.chosen is None else draft.chosen
        competes = isinstance(basis, str)
        if competes:
            competes, basis = bases_compete(self, federation, hello), None
        if isinstance(basis, TreeBasis):
            check_trees(self)
            hello = replace(hello, dtype=np.dtype(float))
            if draft.grown is None:
                draft.cuts = cuts_of(self, draft, basis)
        task = self._opened(*made(self, hello, header, basis), header, basis)
        if competes:
            task.options["competition"] = Competition(self, task)
        return task

    def _opened(self, federation: Any, hello: Any, header: Any, basis: Any) -> Any:
        """What a fit is about, with the columns of the fit."""
        draft, columns = header._draft, header._design.columns
        is_tree = isinstance(basis, TreeBasis)
        draft.basis = basis if is_tree or columns is not None else None
        task = super()._open(federation, hello, header, draft.groups, draft.before)
        draft.book(task.pool)
        names = self._feature_names(header, task.pool.model.n_features)
        varying, blocks = self._varying(names, header), None
        if columns is not None and columns.is_curve.any():
            curves, sources = columns.is_curve, columns.sources
            at = {source: k for k, source in enumerate(sources[~curves])}
            first = np.array([at[source] for source in sources])
            random = varying[:-1][first] & (~curves | (basis.random == "all"))
            varying = np.append(random, varying[-1])
            # The parts of a curve share a variance.
            blocks = np.append(first + len(first) * curves, 2 * len(first))
        about = {"varying": varying, "blocks": blocks}
        if is_tree:
            about["trees"] = basis, in_units_of(task.pool, draft.cuts), draft.grown
            draft.grown = None
        return replace(task, options={**task.options, **about})

    def _model_of(self, hello: Any) -> Any:
        model = super()._model_of(hello)
        if not grouped(self):
            return model
        if type(model) is not LinearModel:
            raise ValueError(
                "crossed and nested need a LinearModel, with rows that are dense, got "
                f"{type(model).__name__}."
            )
        about = model.loss, model.fit_intercept, model.standardize, model.class_weight
        return LevelledModel(*about, *getattr(hello, "levels", ((), ())))

    def _places_absent(self) -> Any:
        return True

    def _varying(self, names: Any, header: Any) -> Any:
        """Which of the features' coefficients, and the intercept, differ: (n_features + 1,)."""
        varying = np.ones(len(names) + 1, dtype=bool)
        if isinstance(self.random, str):
            varying[:-1] = self.random == "all"
        else:
            varying[:-1] = False
            for entry in np.asarray(self.random, dtype=object).ravel():
                varying[positions_of(header, entry, names, "random")] = True
        if not varying[:-1].any() and not self._local_model().fit_intercept:
            raise ValueError(
                "random must name a coefficient that differs between clients where there is no "
                f"intercept; got random={self.random!r} with fit_intercept=False."
            )
        return varying

    def _private_plan(self, model: Any) -> PrivatePlan:
        return pooling_plan(self, model, self._dispersion_of(model))

    def _dispersion_of(self, model: Any) -> Any:
        """Dispersion as a function of the mean deviance, None where it is known."""
        if not getattr(model, "is_likelihood", False):
            raise ValueError(
                f"{type(self).__name__} needs a linear model with a loss that is a "
                "log-likelihood: 'squared_error', 'log_loss', 'poisson' or 'gamma'; got "
                f"{type(model).__name__} with loss={getattr(model, 'loss', None)!r}."
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
        return loss.dispersion_of if estimated else None

    def _solve_task(self, task: Any) -> Any:
        try:
            return super()._solve_task(task)
        except OtherBasis:
            ledger = task.pool.ledger
            about = task.federation, task.hello, task.header, task.groups
            vars(task).update(vars(self._open(*about)))
            task.pool.ledger.take_over([ledger])
            return super()._solve_task(task)

    def _solve(self, pool: Any, **options: Any) -> Any:
        trees, competition = options.pop("trees", None), options.pop("competition", None)
        options = self._fit_options(pool, **options)
        if isinstance(pool.model, LevelledModel):
            return self._solve_levels(pool, options)
        effects = []
        if trees is not None:
            basis, cuts, forest = trees
            forest = grown(pool, cuts, basis, options) if forest is None else forest
            pool = pool.without_effects("without_trees", forest.trees, cuts)
            effects = [TreeEffects(forest, pool.scaling)]
        with comparing(pool, by_sums=True):
            fit, path, fits = fit_population(
                pool, self.covariance, self.n_clusters, self.n_init, options, competition
            )
        if competition is not None:
            draft = competition.lines.header._draft
            draft.losses, draft.chosen = competition.losses, competition.chosen
            if competition.chosen is not None:
                raise OtherBasis
        result = self._result(pool, fit, path, fits, options)
        result.extra["effects"] = effects
        return result

    def _fit_options(self, pool: Any, varying: Any, blocks: Any = None) -> Any:
        """How the population of some clients is fitted."""
        model = pool.model
        dispersion_of = self._dispersion_of(model)
        self._require_memory(pool)
        free = np.zeros((model.n_outputs, model.n_columns), dtype=bool)
        free[:, model.n_features :] = True
        if blocks is not None:
            shifts = (blocks.max() + 1) * np.arange(model.n_outputs)[:, None]
            blocks = (blocks[: model.n_columns] + shifts).ravel()
        options = Options(
            max_iter=self.max_iter,
            tol=self.tol,
            prior=self.prior,
            free=free.ravel(),
            varying=np.tile(varying[: model.n_columns], model.n_outputs),
            dispersion_of=dispersion_of,
            dispersion=1.0 if self.dispersion == "auto" else float(self.dispersion),
            df=self._df(model.describe_loss()),
            blocks=blocks,
            correlated=blocks is None or self.covariance == "full",
        )
        # Models with levels are asked when it is known that they can be fitted.
        return options if isinstance(model, LevelledModel) else _able_to_vary(pool, options)

    def _solve_levels(self, pool: Any, options: Any) -> Any:
        """Fit of one cluster with crossed and nested groupings."""
        loss, exact = pool.model.describe_loss(), pool.model.quadratic
        known = exact or loss.name in LAPLACE_LOSSES
        if not known or pool.model.n_outputs > 1:
            raise ValueError(
                "loss must be squared_error, log_loss of two classes or poisson with crossed or "
                f"nested groupings, got loss={pool.model.loss!r} with {pool.model.n_outputs} "
                "outputs."
            )
        scatter = ("'auto'", ("auto",)) if exact else ("'auto' or 1", ("auto", 1))
        allowed = (
            ("n_clusters", self.n_clusters, "'auto' or 1", ("auto", 1)),
            ("df", self.df, "'auto' or numpy.inf", ("auto", np.inf)),
            ("dispersion", self.dispersion, *scatter),
            ("prior", self.prior, "'auto' or numpy.inf", ("auto", np.inf)),
            ("covariance", self.covariance, "no 'spherical'", KINDS),
        )
        for name, given, text, values in allowed:
            if given not in values:
                raise ValueError(
                    f"{name} must be {text} with crossed or nested groupings, got "
                    f"{name}={given!r}."
                )
        options = _able_to_vary(pool, options)
        about = options.varying, options.free, self.prior, self.max_iter, options.blocks
        how = fit_crossed if exact else fit_modes
        # Correlations of all bends of curves are more than rows can say, as without levels.
        kinds = [kind for kind in KINDS[self.covariance] if kind != "full" or options.correlated]
        with comparing(pool, by_sums=True):
            fits = best_crossed(pool, kinds, *about, fit=how)
        best, n = fits[0], int((~pool.without_rows).sum())
        arguments = best.root, best.spreads, best.effects
        plain = pool.without_effects("without_levels" if exact else "linearised", *arguments)
        if not exact:
            options = replace(options, dispersion_of=None, dispersion=1.0)
        fit = evaluate(plain, population_of(best, plain, options))
        trail = [(value, value) for value in best.trail]
        fit = replace(fit, n_iter=len(trail), converged=best.converged, trail=trail)
        path = {
            "n_clusters": np.ones(len(fits), dtype=int),
            "covariance_type": np.array([each.kind for each in fits]),
            "df": np.full(len(fits), np.inf),
            "loglik": np.array([each.loglik for each in fits]),
            "bic": np.array([each.criterion(n) for each in fits]),
            "icl": np.array([each.criterion(n) for each in fits]),
            "n_iter": np.array([len(each.trail) for each in fits]),
        }
        d = len(best.root)
        errors = without(options.constant, best.dispersion * best.errors[None, :d, :d])
        result = self._result(plain, fit, path, {best.kind: fit}, options, errors)
        result.model, result.objective = pool.model.plain_of(), -best.loglik
        result.extra |= {"loglik": best.loglik, "bic": best.criterion(n)}
        result.extra["n_parameters"] = best.n_parameters
        result.extra["effects"] = []
        if pool.model.n_groupings:
            inside = nested_effects(pool, best)
            result.extra["effects"] = [LevelEffects(pool.model, best, arguments, inside)]
        return result

    def _df(self, loss: Any) -> Any:
        """Degrees of freedom of the clients' scales, "auto" where they are estimated."""
        if loss.quadratic:
            return self.df
        if self.df not in ("auto", np.inf):
            raise ValueError(
                "df must be 'auto' or numpy.inf but for squared error, with which rows have a t "
                f"distribution; got df={self.df!r} with loss={loss.name!r}."
            )
        return np.inf

    def _require_memory(self, pool: Any) -> Any:
        """Raise an error where curvatures do not fit in memory."""
        p = pool.n_params
        K = 1 if self.n_clusters == "auto" else self.n_clusters
        if self.covariance == "full":
            square, hint = p**2, 'covariance="diag"'
        else:
            most = max(pool.n_clients, SUMMED * MAX_DENSE)
            square, hint = min(p**2, p * most), "fewer features"
        require(
            8 * square * (3 * K + MATRICES),
            f"{type(self).__name__}'s curvatures of {p} parameters",
            f"Use {hint}, or a method that needs no curvature of all parameters, such as FedAvg "
            "or ConvexClusteredFL.",
        )

    def _result(
        self, pool: Any, fit: Any, path: Any, fits: Any, options: Any, errors: Any = None
    ) -> Any:
        if options.held:
            warnings.warn(
                "sample_weight counts rows more than once, and clients have hardly more rows than "
                "coefficients that may vary: these would explain any targets without noise, and "
                f"{'only intercepts vary' if options.varying.any() else 'nothing varies'}. Divide "
                "sample_weight by its mean, if it counts no rows, or name fewer coefficients in "
                "random.",
                UserWarning,
                stacklevel=2,
            )
        with comparing(pool, by_sums=True):
            stack, n_iter, unstacked = stacked(pool, fits, options.constant)
        if errors is not None:
            stack = replace(stack, errors=[errors])
        # Standard deviations need each client's covariance.
        dense = 8 * pool.n_clients * pool.n_params**2 <= MAX_COVARIANCES
        r, means, covariances, noise = stack.posteriors(pool, dense)
        # Numbered as published: by size, then by the first client. Clusters that are no client's
        # most likely one are left out.
        used, labels = _by_size(pool, r)
        if len(used) < r.shape[1]:
            stack = stack.ordered(np.sort(used))
            r, means, covariances, noise = stack.posteriors(pool, dense)
            used, labels = _by_size(pool, r)
        stack = stack.ordered(used)
        user_map, trail = pool.units.user_map(), np.array(fit.trail)
        extra = {
            **of_stack(stack, fits, user_map),
            "mixture_weights": stack.populations[0].weights,
            "responsibilities": r[:, used],
            "client_dispersion": noise,
            "df": fit.population.df,
            "loglik": fit.loglik,
            "bic": bic(fit, pool, options),
            "bic_path": path,
            "params_std": posterior_std(covariances, user_map),
            "state": (stack, covariances if dense else None, pool.n_samples),
            "population": fit.population,
            "n_parameters": sum(n_parameters(fit.population, pool, options)),
        }
        shortfall = shortfall_of(self, stack, fits, unstacked)
        return Result(
            pool.model.centre(stack.means),
            labels,
            pool.model.centre(means),
            objective=-fit.value,
            n_iter=fit.n_iter + n_iter,
            history={"loglik": trail[:, 0], "objective": -trail[:, 1]},
            shortfall=shortfall,
            extra=extra,
        )

    def _publish(self, task: Any, result: Any) -> None:
        state, effects = result.extra.pop("state"), result.extra.pop("effects")
        self._population = result.extra.pop("population")
        self._n_parameters = result.extra.pop("n_parameters")
        super()._publish(task, result)
        self._stack, self._covariances, self._n_rows = state
        header, draft = task.header, task.header._draft
        self._design, self._effects = header._design, effects
        self.basis_, self.basis_losses_ = _basis_name(draft.basis), draft.losses
        none = "crossed_effects_", "crossed_effects_std_", "nested_effects_", "level_variances_"
        self.__dict__.update({name: {} for name in none})
        for effect in effects:
            self.__dict__.update(effect.attributes(self, header))
        # What is expected of a client of which nothing is known.
        self._average_params = self.mixture_weights_ @ self.cluster_params_

    def _deviations(self) -> Any:
        population = self._population
        if population.n_clusters > 1:
            return None

        def measured(pool: Any, common: Any, centre: Any, spread: Any) -> Any:
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
            the user's units. Beside crossed or nested groupings also the shares of variance at the
            mean row, if this is known: ``standardize`` and ``fit_intercept`` are True, or the
            clients were asked for a report.

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
        needs_all_clients(self, "summary")
        return population_table(self, max_params)


def _by_size(pool: Any, r: Any) -> Any:
    """Clusters by the number of clients with known posteriors, and the labels of all clients."""
    known = ~pool.presence.unfinished[pool.places]
    used, numbers = numbered_by_size(r[known].argmax(axis=1))
    labels = r[:, used].argmax(axis=1)
    labels[known] = numbers
    return used, labels


def _able_to_vary(pool: Any, options: Any) -> Any:
    """Options in which coefficients vary that the rows can tell from others and from noise.

    Slopes of constants are a part of the intercept.  If clients have hardly more rows than
    coefficients that vary, deviations explain any targets without noise, and the likelihood of
    rows that count more than once has no maximum.
    """
    with_levels = isinstance(pool.model, LevelledModel)
    constant = np.tile(constants(pool, with_levels), pool.model.n_outputs)
    varying = options.varying & ~constant
    held = options.dispersion_of is not None and _explains_all(pool, varying)
    if held:
        varying = varying & options.free
        varying &= not _explains_all(pool, varying)
    return replace(options, varying=varying, constant=constant, held=held)


def _explains_all(pool: Any, varying: Any) -> bool:
    """Whether deviations leave little of the noise of rows that count more than once.

    The fewer rows a client has beyond coefficients that vary, the less: a variance of 1 would be
    estimated as the share of these rows, over the share that their weights say.
    """
    rows = getattr(pool, "client_sizes", None)  # places behind masks do not say
    if rows is None:
        return False
    n, weight = rows.sum(), pool.client_weights.sum()
    beyond = np.maximum(rows - np.count_nonzero(varying) / pool.model.n_outputs, 0.0).sum()
    seen = (weight - n + beyond) / weight
    return bool(weight > MOST_WEIGHT * n and beyond / n < LEAST_SEEN * seen)


def _basis_name(basis: Any) -> str:
    """What a fit is a sum of, as published."""
    if basis is None:
        return "linear"
    if isinstance(basis, TreeBasis):
        return "trees"
    return "splines" if basis.random == "all" else "shared splines"
