"""The table of a fitted population: variances of the random effects, and fixed effects."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._checks import whole_number
from .curve_effects import mean_row


def population_table(fit: Any, max_params: int) -> str:
    """Text of :meth:`~skcfl.PartialPooling.summary`.

    Parameters
    ----------
    fit : PartialPooling
        Fitted.
    max_params : int
        Parameters that are shown at most.

    Returns
    -------
    text : str
    """
    model = fit.model_
    names = [*map(str, fit.coef_names_), *["(Intercept)"] * bool(model.fit_intercept)]
    if model.n_outputs > 1:
        names = [f"{name} | {label}" for label in fit.classes_ for name in names]
    shown = _shown(fit, len(names), max_params)
    names = [names[j] for j in shown]
    levels = getattr(fit, "level_variances_", {})
    width = max(map(len, [*names, *levels, "(Intercept)"]))
    rows, new = int(fit._n_rows), len(fit.groups_) - fit._n_fitted
    shares = ", ".join(f"{name} {share:.2f}" for name, share in fit.stacking_shares_.items())
    lines = [
        f"{type(fit).__name__}, loss {model.loss}, covariance {fit.covariance_type_}",
        f"{rows} rows of {fit._n_fitted} clients, {fit.n_clusters_} "
        f"cluster{'s' if fit.n_clusters_ > 1 else ''}",
        *[f"and {new} newcomer{'s' if new > 1 else ''}, see adapt"] * bool(new),
        f"log-likelihood {fit.loglik_:.3f}   BIC {fit.bic_:.3f}{_fit_text(fit)}",
        *[f"stacking shares {shares}"] * (len(fit.stacking_shares_) > 1),
        *[f"dispersion {fit.dispersion_:.5g}"] * model.describe_loss().overdispersed,
        *[f"degrees of freedom of scales {fit.df_:.3g}"] * bool(np.isfinite(fit.df_)),
        *[line for effect in fit._effects for line in effect.lines(fit)],
        "",
        "Random effects",
    ]
    correlated = fit.stacking_shares_.get("full", 0.0) > 0.0 and len(shown) > 1
    lines.append(f"  {'':{width}}  {'Std. dev.':>12}" + "  Corr" * correlated)
    spread = np.sqrt(fit.covariance_.diagonal()[shown])
    correlations = _correlations(fit, shown) if correlated else [""] * len(shown)
    lines += [
        f"  {n:{width}}  {s:12.5g}{c}" for n, s, c in zip(names, spread, correlations, strict=True)
    ]
    lines += [f"  {name:{width}}  {np.sqrt(variance):12.5g}" for name, variance in levels.items()]
    if model.unknown_scale:
        lines.append(f"  {'Residual':{width}}  {np.sqrt(fit.dispersion_):12.5g}")
    row = mean_row(fit) if levels else None
    if row is not None:
        lines += ["", f"Shares of variance at the mean row: {_variance_shares(fit, row)}"]
    for k, (theta, errors) in enumerate(
        zip(fit.cluster_params_[:, shown], fit.standard_errors_[:, shown], strict=True)
    ):
        lines += ["", "Fixed effects"]
        if fit.n_clusters_ > 1:
            lines[-1] += (
                f" of cluster {k}: {fit.cluster_sizes_[k]} clients, "
                f"weight {fit.mixture_weights_[k]:.3f}"
            )
        lines.append(f"  {'':{width}}  {'Estimate':>12}  {'Std. error':>12}  {'z':>8}")
        for name, value, error in zip(names, theta, errors, strict=True):
            z = value / error if error > 0 else np.nan
            lines.append(f"  {name:{width}}  {value:12.5g}  {error:12.5g}  {z:8.2f}")
    if np.isfinite(fit.prior_variance_).all():
        lines += ["", "Slopes and their errors are shrunken by a prior, see prior_variance_."]
        if fit._population.kept.any():
            lines += ["The deviation of intercepts is kept off zero by another."]
    if len(shown) < fit.cluster_params_.shape[1]:
        total = fit.cluster_params_.shape[1]
        lines += ["", f"{len(shown)} of {total} parameters, see max_params."]
    return "\n".join(line.rstrip() for line in lines)


def _fit_text(fit: Any) -> Any:
    """Name the fit of a stack that has the log-likelihood."""
    if len(fit.stacking_shares_) == 1:
        return ""
    own = np.abs(fit.bic_path_["loglik"] - fit.loglik_).argmin()
    return f"   (covariance {fit.bic_path_['covariance_type'][own]})"


def _variance_shares(fit: Any, row: Any) -> str:
    """Parts of the variance of a row between the clients, the groupings and the noise."""
    parts = {"clients": float(row @ fit.covariance_ @ row), **fit.level_variances_}
    loss = fit.model_.describe_loss()
    if loss.quadratic or loss.classifier:
        # The variance of a logit's own distribution.
        parts["residual"] = fit.dispersion_ if loss.quadratic else np.pi**2 / 3.0
    total = max(sum(parts.values()), 1e-300)
    return ", ".join(f"{name} {max(v / total, 0.0):.2f}" for name, v in parts.items())


def _shown(fit: Any, n_params: Any, max_params: Any) -> Any:
    """Positions of the parameters of a summary, in their order."""
    max_params = whole_number(max_params, "max_params")
    order = np.arange(n_params)
    if fit.model_.fit_intercept:
        column = order % fit.model_.n_columns
        order = np.argsort(column != fit.model_.n_columns - 1, kind="stable")
    return np.sort(order[:max_params])


def _correlations(fit: Any, shown: Any) -> Any:
    """Of each of some parameters the correlations with those before it, as text."""
    block = fit.covariance_[np.ix_(shown, shown)]
    spread = np.sqrt(np.diag(block))
    with np.errstate(divide="ignore", invalid="ignore"):
        R = block / (spread[:, None] * spread)
    texts = ("".join(f"{r:7.2f}" for r in row[:i]) for i, row in enumerate(R))
    return [text.replace("nan", "   ") for text in texts]
