"""From a formula of lme4 to partial pooling, and its table back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Real
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln
from sklearn.base import BaseEstimator
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._checks import needs
from ..base.designs import grouped
from ..estimators import PartialPoolingClassifier, PartialPoolingRegressor
from ..federation.wrong_columns import DATES, days_of, kind_of

# Estimators by family.
FAMILIES = {
    "gaussian": (PartialPoolingRegressor, "squared_error"),
    "binomial": (PartialPoolingClassifier, "log_loss"),
    "poisson": (PartialPoolingRegressor, "poisson"),
    "gamma": (PartialPoolingRegressor, "gamma"),
}
# What makes the fit that of lme4 by maximum likelihood.
AS_LME4 = {"n_clusters": 1, "prior": np.inf, "df": np.inf, "basis": "linear"}
# Families that Laplace's approximation fits as glmer does, and what makes another fit.
BY_LAPLACE = {"binomial", "poisson"}
NOT_AS_LME4 = {*AS_LME4, "covariance", "dispersion", "loss"}
# Functions that formulas may call, also as formulae's users write them: np.log(x).
FUNCTIONS = {
    name: getattr(np, name)
    for name in ("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "abs", "sin", "cos")
}
NAMES = {**FUNCTIONS, "np": SimpleNamespace(**FUNCTIONS)}
# Kinds of numpy that are numbers, True and False included.
NUMBERS = "biuf"
TINY = np.finfo(float).tiny
# Column of zeros where a formula has no fixed effect but the intercept.
NOTHING = "0"
# Singular value of columns of length 1 that are collinear, as in lme4.
COLLINEAR = 1e-7
NO_EFFECTS = "it has no group-specific term, such as (1 | school)"
# Functions of formulae that look for a level in each frame; and text in quotes.
STATELESS, QUOTED = r"\b(binary|B)\s*\(", r"([`'\"]).*?\1"
EACH_FRAME = "it looks for its success in each frame; write C(x), T(x, 'level') or target[level]"


@dataclass
class _Plan:
    """What a formula asks for.

    Attributes
    ----------
    response, common : str
        The target, and the fixed effects as a formula.
    success : str or None
        Level of the target that is the success, if the formula names one.
    client : str
        Grouping with random slopes, or the first one.
    slopes : list of str
        Terms with slopes that differ between its levels.
    correlated : bool
        If True, slopes and intercepts are correlated.
    groupings : list of tuple of str
        Variables of the other groupings; last are those with the client's, inside it.
    features, targets : list of str
        Variables that prediction needs, and those of the target.
    """

    response: str
    success: str | None
    common: str
    client: str
    slopes: list[str]
    correlated: bool
    groupings: list[tuple[str, ...]]
    features: list[str]
    targets: list[str]


def fit(
    formula: str,
    data: Any,
    family: Literal["gaussian", "binomial", "poisson", "gamma"] = "gaussian",
    *,
    client: str | None = None,
    **parameters: Any,
) -> FormulaModel:
    """Fit a mixed model by maximum likelihood.

    Parameters
    ----------
    formula : str
        Such as ``"score ~ ses * sex + (ses | school) + (1 | item) + (1 | school:class)"``: fixed
        effects, random slopes and intercepts of one grouping, random intercepts of others.
    data : DataFrame
        Its columns are the variables.
    family : {"gaussian", "binomial", "poisson", "gamma"}, default="gaussian"
        Distribution of the target. The link is canonical, and the logarithm for "gamma". A
        binomial target is a column of two classes, ``won[no]`` (1 where ``won`` is "no", else 0)
        or ``prop(successes, trials)``. Counts have dispersion 1, as in lme4; with one grouping
        ``dispersion="auto"`` estimates it, and the summary shows it unless it is 1.
    client : str, default=None
        Grouping of the clients, where several have random intercepts and none has slopes; None
        is the first one.
    **parameters : object
        Parameters of :class:`~skcfl.PartialPoolingRegressor` (or classifier) in place of those
        that make the fit lme4's.

    Returns
    -------
    model : FormulaModel
        Fitted.

    Raises
    ------
    ImportError
        If formulae is not installed.
    ValueError
        If the library cannot express a term, which the message names.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from skcfl import formula
    >>> rng = np.random.default_rng(0)
    >>> frame = pd.DataFrame({"school": np.repeat(list("abcdefgh"), 15)})
    >>> frame["ses"] = rng.normal(size=120)
    >>> frame["score"] = 2 * frame["ses"] + rng.normal(size=8).repeat(15) + rng.normal(size=120)
    >>> model = formula.fit("score ~ ses + (1 | school)", frame)
    >>> model.predict(frame[:2]).shape
    (2,)
    """
    return FormulaModel(formula, family, client=client, parameters=parameters or None).fit(data)


def _has_classes(model: Any) -> bool:
    return bool(model.family == "binomial")


class FormulaModel(BaseEstimator):
    """A mixed model that is written as a formula of lme4, and predicts from frames.

    Parameters
    ----------
    formula : str
        As of :func:`fit`.
    family : {"gaussian", "binomial", "poisson", "gamma"}, default="gaussian"
        Distribution of the target.
    client : str, default=None
        Grouping of the clients; None is the one with slopes, or the first one.
    parameters : dict, default=None
        Parameters of the estimator besides.

    Attributes
    ----------
    estimator_ : PartialPoolingRegressor or PartialPoolingClassifier
        The fit. Its clients are the levels of ``client_``.
    client_ : str
        Grouping of the clients.
    loglik_ : float
        Log-likelihood.
    classes_ : ndarray of shape (2,)
        Classes of a fit with ``family="binomial"``.

    See Also
    --------
    skcfl.PartialPooling : The estimator, with clusters, curves and federations besides.

    Examples
    --------
    >>> from skcfl.formula import FormulaModel
    >>> FormulaModel("score ~ ses + (1 | school)").family
    'gaussian'
    """

    def __init__(
        self,
        formula: str,
        family: Literal["gaussian", "binomial", "poisson", "gamma"] = "gaussian",
        *,
        client: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self.formula = formula
        self.family = family
        self.client = client
        self.parameters = parameters

    def fit(self, data: Any) -> FormulaModel:
        """Fit the model.

        Parameters
        ----------
        data : DataFrame
            Its columns are the variables.

        Returns
        -------
        self : FormulaModel
        """
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {list(FAMILIES)}, got {self.family!r}.")
        plan = _planned(self.formula, self.client)
        data = _required([*plan.targets, *plan.features], data)
        common, response = _designed(plan, data)
        names = _names_of(common)
        cls, loss = FAMILIES[self.family]
        settings = dict(AS_LME4, covariance="full" if plan.correlated else "diag", loss=loss)
        if plan.slopes and not plan.correlated:
            # Effects that are uncorrelated where all features are zero, as lme4's.
            settings["standardize"] = False
        if self.family == "poisson":
            settings["dispersion"] = 1.0  # that of classes is 1 in any case
        settings["random"] = _columns_of(common, plan.slopes) or "intercept"
        groupings = _named(plan, names)
        inside = [name for name, factor in groupings.items() if plan.client in factor]
        crossed = [name for name in groupings if name not in inside]
        by_laplace = self.family in BY_LAPLACE and not NOT_AS_LME4 & {*(self.parameters or {})}
        # An empty list is none, and maximum likelihood as with one.
        settings["crossed"] = crossed if crossed or by_laplace else None
        settings["nested"] = inside or None
        rows, y, weights, ways = _target(plan, response, data)
        if plan.success is not None and not y.any():
            levels = sorted(set(data[plan.response].astype(str)))
            term, why = f"{plan.response}[{plan.success}]", f"{len(levels)} levels, such as"
            raise _refused(self.formula, term, f"{plan.response} has {why} {levels[:5]}")
        if self.family == "binomial" and len(set(y.tolist())) > 2:
            raise ValueError(
                f"family='binomial' needs a target of two classes, got {len(set(y.tolist()))}."
            )
        if weights is not None and self.family != "binomial":
            raise ValueError(f"The target {plan.response} needs family='binomial'.")
        given = self.parameters or {}
        estimator = cls(**{**settings, **given})
        counts = estimator._local_model().describe_loss().overdispersed
        if counts and grouped(estimator) and given.get("dispersion") == "auto":
            raise ValueError(
                "dispersion must be 1 for counts with crossed or nested groupings, which have no "
                "estimate of it, got dispersion='auto'."
            )
        X, groups = _frame(plan, common, data).iloc[rows], np.asarray(data[plan.client])[rows]
        self.estimator_ = estimator.fit(X, y, groups=groups, sample_weight=weights)
        self._plan, self._common, self._response = plan, common, response
        self.client_, self.loglik_ = plan.client, self.estimator_.loglik_ + ways
        self._n_rows = len(data)
        kinds = {name: _values(data[name]).dtype.kind for name in plan.features}
        # Estimators compare clients with any other ids.
        self._kinds = {k: v for k, v in kinds.items() if k != plan.client or v in NUMBERS}
        fixed = X.drop(columns=[*groupings])
        self._n_collinear = fixed.shape[1] - _rank(fixed.to_numpy())
        return self

    @property
    def classes_(self) -> Any:
        return self.estimator_.classes_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if _has_classes(self):
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags

    def _rows(self, data: Any) -> tuple[Any, Any]:
        """Columns of the fit and clients of the rows of a frame."""
        check_is_fitted(self)
        data = _required(self._plan.features, data)
        alike = {name: _as_in_fit(data[name], name, kind) for name, kind in self._kinds.items()}
        data = data.assign(**alike)
        return _frame(self._plan, self._common, data), np.asarray(data[self._plan.client])

    def predict(self, data: Any, return_std: bool = False) -> Any:
        """Predict the rows of a frame, with the effects of their levels.

        Parameters
        ----------
        data : DataFrame
            With the variables of fit.
        return_std : bool, default=False
            If True, return standard deviations too, with ``family="gaussian"``.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,)
            Expected targets, or classes.
        y_std : ndarray of shape (n_samples,)
            Standard deviations of the targets, as of :class:`~skcfl.PartialPoolingRegressor`.
        """
        X, groups = self._rows(data)
        options = {"return_std": True} if return_std else {}
        return self.estimator_.predict(X, groups=groups, **options)

    @available_if(_has_classes)
    def predict_proba(self, data: Any) -> Any:
        """Predict probabilities of the classes, with ``family="binomial"``.

        Parameters
        ----------
        data : DataFrame
            With the variables of fit.

        Returns
        -------
        proba : ndarray of shape (n_samples, 2)
            In the order of ``estimator_.classes_``.
        """
        X, groups = self._rows(data)
        return self.estimator_.predict_proba(X, groups=groups)

    def score(self, data: Any) -> float:
        """R^2, or accuracy of classes, of a frame.

        Parameters
        ----------
        data : DataFrame
            With the variables of fit, the target included.

        Returns
        -------
        score : float
        """
        X, groups = self._rows(data)
        data = _required(self._plan.targets, data)
        rows, y, weights, _ = _target(self._plan, self._response, data)
        return self.estimator_.score(X.iloc[rows], y, weights, groups=groups[rows])

    def summary(self) -> str:
        """Table of the fit in lme4's order.

        Returns
        -------
        text : str
            Criteria, random effects by grouping, numbers of rows and levels, fixed effects of
            each cluster. The criteria count the parameters of ``estimator_.bic_``.
        """
        check_is_fitted(self)
        est, plan = self.estimator_, self._plan
        fixed = [*map(str, est.coef_names_), "(Intercept)"]
        order = [len(fixed) - 1, *(k for k in range(len(fixed) - 1) if fixed[k] != NOTHING)]
        spread = np.sqrt(np.maximum(np.asarray(est.covariance_.diagonal()), 0.0))
        varies = est._population.varying
        random = [k for k in order if k == len(fixed) - 1 or varies[k]]
        n, levels = self._n_rows, {plan.client: len(est.groups_)}
        lines = [
            "Mixed model fit by maximum likelihood",
            f"Formula: {self.formula}",
            f"Family: {self.family}",
        ]
        quasi = est.model_.describe_loss().overdispersed and est.dispersion_ != 1.0
        if quasi:
            lines.append(f"Dispersion: {est.dispersion_:.4g}, logLik is a quasi-likelihood")
        if np.isfinite(est.df_):
            lines.append(f"Degrees of freedom of the clients' scales: {est.df_:.3g}")
        lines += ["", f"{'AIC':>10} {'BIC':>10} {'logLik':>10}"]
        n_free = est._n_parameters - self._n_collinear
        aic, bic = (-2.0 * self.loglik_ + n_free * cost for cost in (2.0, np.log(n)))
        lines += [f"{aic:10.1f} {bic:10.1f} {self.loglik_:10.1f}", "", "Random effects:"]
        full = est.stacking_shares_.get("full", 0.0) > 0.0 and len(random) > 1
        groupings = _named(plan, _names_of(self._common))
        groupings = {name: ":".join(groupings[name]) for name in est.level_variances_}
        across = max(12, *map(len, [plan.client, *groupings.values()]))
        width = max(16, *(len(fixed[k]) for k in order))
        lines.append(
            f" {'Groups':{across}} {'Name':{width}} {'Variance':>10} {'Std.Dev.':>10}"
            f"{'  Corr' * full}"
        )
        for i, k in enumerate(random):
            group = plan.client if i == 0 else ""
            line = f" {group:{across}} {fixed[k]:{width}} {spread[k] ** 2:10.4g} {spread[k]:10.4g}"
            for j in random[:i] if full else []:
                line += f" {est.covariance_[k, j] / max(spread[k] * spread[j], TINY):5.2f}"
            lines.append(line)
        for name, variance in est.level_variances_.items():
            group, label = groupings[name], "(Intercept)"
            lines.append(
                f" {group:{across}} {label:{width}} {variance:10.4g} {variance**0.5:10.4g}"
            )
            levels[group] = len({**est.crossed_effects_, **est.nested_effects_}[name])
        if est.model_.unknown_scale:
            s2 = est.dispersion_
            lines.append(f" {'Residual':{across}} {'':{width}} {s2:10.4g} {s2**0.5:10.4g}")
        numbers = "; ".join(f"{name}, {count}" for name, count in levels.items())
        lines.append(f"Number of obs: {n}, groups: {numbers}")
        for cluster, size in enumerate(est.cluster_sizes_):
            of = f" of cluster {cluster}: {size} clients" * (est.n_clusters_ > 1)
            lines += ["", f"Fixed effects{of or ':'}"]
            lines.append(f" {'':{width}} {'Estimate':>10} {'Std. Error':>10} {'t value':>10}")
            for k in order:
                value, error = est.cluster_params_[cluster, k], est.standard_errors_[cluster, k]
                t = value / error if error > 0 else np.nan
                lines.append(f" {fixed[k]:{width}} {value:10.5g} {error:10.4g} {t:10.2f}")
        return "\n".join(line.rstrip() for line in lines)


def _formulae() -> Any:
    with needs(
        "skcfl.formula needs the package formulae, which is not installed. Install it, or skcfl "
        "with its extra: python -m pip install 'skcfl[formula]'."
    ):
        import formulae
    return formulae


def _planned(formula: str, client: str | None) -> _Plan:
    """What a formula asks for; terms that cannot be expressed are errors."""
    library = _formulae()
    if not isinstance(formula, str):
        raise ValueError(f"formula must be text, got {formula!r}.")
    try:
        # Effects without correlations, (x || g), are the same terms.
        parsed = library.model_description(formula.replace("||", "|"))
    except Exception as error:  # of its own parser, and of whatever that hits
        raise ValueError(f"formula {formula!r} cannot be read: {error}") from error
    if parsed.response is None:
        raise ValueError(f"formula must have a target before ~, got {formula!r}.")
    for term in [*parsed.common_terms, *(term.expr for term in parsed.group_terms)]:
        if term.name == "Intercept" and term.var_names:
            raise _refused(formula, "Intercept", "the intercept has this name, rename the column")
    common = [term.name for term in parsed.common_terms]
    if "Intercept" not in common:
        raise _refused(formula, "0", "fits have a fixed intercept")
    for name in common:
        if name.startswith("offset("):
            raise _refused(formula, name, "there are no offsets")
    if called := re.search(STATELESS, re.sub(QUOTED, "", formula)):
        raise _refused(formula, f"{called[1]}(...)", EACH_FRAME)
    terms: dict[tuple[str, ...], list[str]] = {}
    for term in parsed.group_terms:
        factor = tuple(component.name for component in term.factor.components)
        for name in {*factor} - parsed.var_names:
            raise _refused(formula, f"| {name}", "groupings are variables: make it a column")
        terms.setdefault(factor, []).append(term.expr.name)
    if not terms:
        raise ValueError(f"formula {formula!r} cannot be fitted: {NO_EFFECTS}.")
    with_slopes = [factor for factor, names in terms.items() if names != ["Intercept"]]
    if len(with_slopes) > 1:
        second = f"({' + '.join(terms[with_slopes[1]])} | {':'.join(with_slopes[1])})"
        raise _refused(formula, second, "one grouping can have random slopes")
    single = [factor for factor in terms if len(factor) == 1]
    chosen = (client,) if client is not None else (with_slopes or single or list(terms))[0]
    if chosen not in terms or len(chosen) > 1 or (with_slopes and chosen != with_slopes[0]):
        raise _refused(formula, f"| {':'.join(chosen)}", "clients are one variable with a term")
    mine = terms.pop(chosen)
    if "Intercept" not in mine:
        raise _refused(formula, f"(0 + {' + '.join(mine)} | {chosen[0]})", "intercepts vary, too")
    slopes = [name for name in mine if name != "Intercept"]
    for name in slopes:
        if name not in common:
            raise _refused(formula, f"({name} | {chosen[0]})", f"{name} must be a fixed effect")
    client_end = rf"`?{re.escape(chosen[0])}`?\s*\)"
    written = re.findall(rf"\([^()|]*(?:\([^()]*\)[^()|]*)*\|+\s*{client_end}", formula)
    bars = re.findall(rf"(\|+)[\s(]*{client_end}", formula)
    for text in written if len(written) > 1 else []:
        if "||" not in text and len(library.model_description(f"y ~ {text}").group_terms) > 1:
            raise _refused(formula, text, "effects of clients are all correlated, or none are")
    return _Plan(
        parsed.response.term.name,
        getattr(parsed.response.term.components[0], "reference", None),
        " + ".join("1" if name == "Intercept" else name for name in common),
        chosen[0],
        slopes,
        len(bars) <= 1 and "||" not in bars,
        sorted(terms, key=lambda factor: chosen[0] in factor),
        sorted(parsed.var_names - parsed.response.term.var_names - {""}),
        sorted(parsed.response.term.var_names - {""}),
    )


def _designed(plan: _Plan, data: Any) -> tuple[Any, Any]:
    """Matrix of the fixed effects of a frame, and the term of the target, without rows."""
    library = _formulae()
    text, variables = f"{plan.response} ~ {plan.common}", {*plan.targets, *plan.features}
    odd = sorted((name for name in variables if not name.isidentifier()), key=len, reverse=True)
    if odd:
        text = re.sub("|".join(map(re.escape, odd)), r"`\g<0>`", text)
    # Not a caller's names: the fit would hold its variables.
    names = library.environment.Environment([NAMES])
    try:
        matrices = library.design_matrices(text, data, env=names)
    except KeyError as error:
        raise ValueError(
            f"formula {text!r} has the name {error}, which is no column, no function of the "
            f"package formulae, and none of {', '.join(FUNCTIONS)}."
        ) from error
    except ValueError as error:
        _require_types(sorted(variables & library.model_description(text).var_names), data, error)
        raise
    common, response = matrices.common, matrices.response.term.term
    common.data, common.design_matrix = None, common.design_matrix[:0].copy()
    for term in [*common.terms.values(), response]:
        term.data = None
        for component in getattr(term, "components", ()):
            component.value, component._intermediate_data = component.value[:0].copy(), None
    return common, response


def _target(plan: _Plan, response: Any, data: Any) -> tuple[Any, Any, Any, float]:
    """Rows of the fit as positions in a frame, their targets and weights.

    Successes and failures of several trials are two rows. Also the logarithm of the number of
    ways in which trials can have so many successes.
    """
    rows = np.arange(len(data))
    if plan.success is not None:
        is_success = data[plan.response].astype(str) == plan.success
        return rows, np.asarray(is_success, dtype=int), None, 0.0
    if plan.response in data:
        return rows, _finite(np.asarray(data[plan.response]), plan.response), None, 0.0
    if response.kind != "proportion":
        y = np.asarray(response.eval_new_data(data)).ravel()
        return rows, _finite(y, plan.response), None, 0.0
    (component,) = response.components
    successes, trials = (part.eval(data, component.env) for part in component.call.args)
    counts = np.array([successes, trials - successes], dtype=float)
    _finite(counts.T, plan.response)
    ways = (gammaln(counts.sum(axis=0) + 1) - gammaln(counts + 1).sum(axis=0)).sum()
    return np.tile(rows, 2), np.repeat([1, 0], len(data)), counts.ravel(), float(ways)


def _rank(columns: Any) -> int:
    """How many columns are linearly independent of each other and of the intercept."""
    away = columns - columns.mean(axis=0)
    lengths = np.linalg.norm(away, axis=0)
    varies = lengths > COLLINEAR * np.linalg.norm(columns, axis=0)
    return int(np.linalg.matrix_rank(away[:, varies] / lengths[varies], tol=COLLINEAR))


def _values(column: Any) -> Any:
    """The values of a variable in the type that they have, of categories or objects too.

    True among numbers is 1.
    """
    import pandas as pd

    values = column.astype(object).infer_objects()
    kinds = {*map(type, values)} if values.dtype == object else {str}
    return pd.to_numeric(values) if all(issubclass(k, Real | np.bool_) for k in kinds) else values


def _levels(column: Any) -> Any:
    """Levels of a variable: an array of numbers, or of text where they are something else."""
    levels = _values(column)
    if levels.dtype.kind not in "iuf":
        return np.asarray(column.astype(str))
    # 0.1 in single precision is another number, and the same text.
    short = getattr(column.dtype, "itemsize", 8) < 8 and levels.dtype.kind == "f"
    return np.asarray(column.astype(str).astype(float) if short else levels)


def _as_in_fit(column: Any, name: str, kind: str) -> Any:
    """A variable of the kind that it had in fit: numbers, True and False, or text.

    1 and True are equal in Python, and other levels for pandas.
    """
    values = _values(column)
    now = values.dtype.kind
    if kind not in NUMBERS:
        # Text that spells numbers in all of these rows is text.
        return column.astype(str) if now in "iuf" else column
    if now not in NUMBERS or (kind == "b" and not values.isin([0, 1]).all()):
        what = "True or False" if kind == "b" else "numbers"
        raise ValueError(f"data[{name!r}] must hold {what}, as in fit, got dtype {column.dtype}.")
    if kind == "b" or now == "b":
        return values.astype(bool if kind == "b" else int)
    return column if column.dtype.kind in "iuf" else values


def _frame(plan: _Plan, common: Any, data: Any) -> Any:
    """Columns of the fixed effects, and of the other groupings."""
    import pandas as pd

    matrix = np.asarray(common.evaluate_new_data(data).design_matrix, dtype=float)
    for name, columns in common.slices.items():
        _finite(matrix[:, columns], name)
    names = _names_of(common)
    kept = [k for k, name in enumerate(_all_names(common)) if name != "Intercept"]
    frame = pd.DataFrame(matrix[:, kept], columns=names)
    for name, factor in _named(plan, names).items():
        levels = [_levels(data[part]) for part in factor if part != plan.client]
        pairs = zip(*levels, strict=True)
        frame[name] = levels[0] if len(levels) == 1 else [_label(pair) for pair in pairs]
    return frame if frame.shape[1] else frame.assign(**{NOTHING: 0.0})


def _label(levels: tuple[Any, ...]) -> str:
    """One text for the levels of several variables, another one for other levels."""
    texts = [level if isinstance(level, str) else _text_of(level) for level in levels]
    return "/".join(text.replace("\\", "\\\\").replace("/", "\\/") for text in texts)


def _text_of(number: Any) -> str:
    """Text of a number, the same for 1 and 1.0."""
    return str(int(number)) if number.is_integer() else str(number)


def _finite(values: Any, term: str) -> Any:
    """The values of a term, or an error that names it."""
    if values.dtype.kind == "f":
        wrong = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"the term {term} is NaN or infinite in {int(wrong.sum())} of {len(values)} rows: "
                "leave these rows out, or write another term."
            )
    return values


def _required(variables: list[str], data: Any) -> Any:
    """A frame with its variables in types that formulae knows.

    Raise an error that names the variables which it lacks, or which lack values.
    """
    if not hasattr(data, "isna"):
        raise ValueError(f"data must be a DataFrame of pandas, got {type(data)}.")
    missing = [name for name in variables if name not in data]
    if missing:
        raise ValueError(
            f"data must have all variables of the formula, but has no column {missing[0]!r}; its "
            f"columns are {list(data)}."
        )
    twice = [name for name in variables if data[name].ndim > 1]
    if twice:
        raise ValueError(f"data has {data[twice[0]].shape[1]} columns {twice[0]!r}: keep one.")
    if not len(data):
        raise ValueError("data must have rows, got none.")
    empty = data[variables].isna()
    if empty.to_numpy().any():
        names = [name for name in variables if empty[name].any()]
        raise ValueError(
            f"data lacks values of {names} in {int(empty.any(axis=1).sum())} of {len(data)} rows: "
            f"leave them out, data.dropna(subset={names}), as lme4 does, or fill them in."
        )
    return data.assign(**{name: _plain(data[name]) for name in variables})


def _plain(column: Any) -> Any:
    """A variable without levels that no row has, and with numbers of numpy."""
    if column.dtype == "category":
        return column.cat.remove_unused_categories()
    dtype = getattr(column.dtype, "numpy_dtype", None)
    return column if dtype is None or dtype.kind not in NUMBERS else column.astype(dtype)


def _require_types(variables: list[str], data: Any, error: Exception) -> None:
    """Raise an error that names the first variable of a type that formulae does not know."""
    from pandas.api.types import is_numeric_dtype, is_string_dtype

    for name in variables:
        column, written = data[name], f"data[{name!r}]"
        if is_numeric_dtype(column) or is_string_dtype(column) or column.dtype == "category":
            continue
        made = days_of(column, written) if kind_of(column) == DATES else f"{written}.astype(str)"
        raise ValueError(
            f"variable {name!r} of the formula has dtype {column.dtype}, and must be numbers, "
            f"text or categories: {written} = {made} makes it so."
        ) from error


def _refused(formula: str, term: str, why: str) -> ValueError:
    return ValueError(f"formula {formula!r}: the term {term} cannot be expressed: {why}.")


def _named(plan: _Plan, taken: list[str]) -> dict[str, tuple[str, ...]]:
    """Names of the columns of the other groupings, and their variables."""
    named: dict[str, tuple[str, ...]] = {}
    for factor in plan.groupings:
        name = ":".join(part for part in factor if part != plan.client)
        if name in taken or name in named:
            # A feature that is a grouping, too; or a grouping by itself and inside the clients.
            name = f"(1 | {':'.join(factor)})"
        named[name] = factor
    return named


def _all_names(common: Any) -> list[str]:
    """Names of the columns of the fixed effects."""
    return list(common.as_dataframe().columns)


def _names_of(common: Any) -> list[str]:
    return [name for name in _all_names(common) if name != "Intercept"]


def _columns_of(common: Any, terms: list[str]) -> list[str]:
    """Names of the columns of some terms. They say no term: levels may have any brackets."""
    names = _all_names(common)
    return [name for term in terms for name in names[common.slices[term]]]
