"""The report of a fit to a federation: what was fitted, sent and lost, as JSON and as HTML."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._checks import about

__all__ = ["FitReport", "fit_report"]

#: Clusters, absences and clients that the page lists; the JSON has all.
MOST_LISTED = 50
#: Size of a picture, in pixels.
WIDTH, HEIGHT = 360, 120
#: Columns of the history that are drawn, by the title of the picture.
DRAWN = {"objective": "Objective by round", "seconds": "Seconds by round"}
STYLE = (
    "body{font-family:sans-serif;max-width:50em;margin:2em auto;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;"
    "border-bottom:1px solid #ccc}svg{border:1px solid #ccc;margin:.2em 1em .2em 0}"
    "code{white-space:pre-wrap}"
)


class FitReport:
    """What a fit to a federation was; of ``fit_report``.

    Parameters
    ----------
    content : dict
        Numbers and text by name.

    Examples
    --------
    >>> from skcfl.federation import FitReport
    >>> print(FitReport({"estimator": "FedAvg()", "calls": 9, "clients": 3}))
    FedAvg()
    calls: 9
    clients: 3
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def __str__(self) -> str:
        """One line for each number."""
        lines = [
            f"{name.replace('_', ' ')}: {value}"
            for name, value in self.content.items()
            if name not in {"estimator", "history"} and value not in ([], None)
        ]
        return "\n".join([self.content["estimator"], *lines])

    def to_json(self) -> str:
        """Text of JSON, without NaN and infinity, which JSON does not have."""
        return json.dumps(_plain(self.content), indent=2, allow_nan=False)

    def to_html(self) -> str:
        """Return a page by itself, with pictures and without scripts."""
        content, parts = self.content, []
        rows = [
            (name.replace("_", " "), value)
            for name, value in content.items()
            if not isinstance(value, list | dict) and name != "estimator" and value is not None
        ]
        parts.append(_table((), rows))
        history = content.get("history", {})
        parts += [
            f"<figure>{_line(history[name])}<figcaption>{title}</figcaption></figure>"
            for name, title in DRAWN.items()
            if len(history.get(name, ())) > 1
        ]
        if content.get("cluster_sizes"):
            sizes = list(enumerate(content["cluster_sizes"]))
            parts.append("<h2>Clusters</h2>" + _listed(("cluster", "clients"), sizes))
        for name in ("missing_clients", "rejected_clients"):
            if some := content.get(name):
                listed = escape(", ".join(map(str, some[:MOST_LISTED])))
                parts.append(f"<h2>{name.replace('_', ' ').capitalize()}</h2><p>{listed}</p>")
                parts.append(_cut(len(some)))
        if absences := content.get("absences"):
            columns = "client", "from request", "to request", "from second", "to second"
            some, n = _longest(absences), len(absences)
            parts.append("<h2>Who was away</h2>" + _cut(n, "The longest "))
            parts.append(_bars(some, n, content.get("seconds")))
            parts.append(_table(columns, [one.values() for one in some]))
        if releases := content.get("releases"):
            rows = list(zip(*releases.values(), strict=True))
            parts.append("<h2>What was released</h2>" + _listed(tuple(releases), rows))
        if failures := content.get("failures"):
            items = "".join(f"<li>{escape(str(reason))}</li>" for reason in failures)
            parts.append(f"<h2>Sites that did not answer</h2><ul>{items}</ul>")
        title = escape(content["estimator"])
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
            'content="width=device-width"><title>A fit of skcfl</title>'
            f"<style>{STYLE}</style><main><h1>A fit of skcfl</h1><p><code>{title}</code></p>"
            f"{''.join(parts)}</main></html>\n"
        )

    def _repr_html_(self) -> str:
        return self.to_html()


def fit_report(estimator: Any, seconds: float | None = None, **more: Any) -> FitReport:
    """Report what a fit to a federation was.

    Parameters
    ----------
    estimator : estimator
        A fitted one.
    seconds : float, default=None
        Time of the fit; None is the sum over the rounds, of methods that have them.
    **more : object
        Further numbers and text by name, such as the failures of sites.

    Returns
    -------
    report : FitReport
        With ``to_json()`` and ``to_html()``.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.

    Examples
    --------
    >>> from skcfl import FedAvgRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import InProcessFederation, fit_report
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> federation = InProcessFederation(data.X, data.y, data.groups)
    >>> report = fit_report(FedAvgRegressor().fit_federation(federation))
    >>> report.content["clients"], report.content["missing_clients"]
    (6, [])
    >>> "<svg" in report.to_html()
    True
    """
    with about("estimator"):
        check_is_fitted(estimator, "client_calls_")
    history = getattr(estimator, "history_", {})
    if seconds is None and len(history.get("seconds", ())):
        seconds = float(np.sum(history["seconds"]))
    private = hasattr(estimator, "epsilon_")
    content = {
        "estimator": repr(estimator),
        # Private clients do not say what they are.
        "clients": None if private else len(estimator.groups_),
        "rows": None if private else int(estimator._n_rows),
        "clusters": int(estimator.n_clusters_),
        "cluster_sizes": None if private else np.asarray(estimator.cluster_sizes_).tolist(),
        "rounds": getattr(estimator, "n_iter_", None),
        "objective": getattr(estimator, "objective_", None),
        "converged": getattr(estimator, "_converged", None),
        "seconds": seconds,
        "calls": estimator.calls_,
        "clients_asked": estimator.client_calls_,
        "floats_up": estimator.floats_up_,
        "floats_down": estimator.floats_down_,
        "bytes_up": estimator.wire_bytes_[0],
        "bytes_down": estimator.wire_bytes_[1],
        "missing_clients": list(map(str, estimator.missing_clients_)),
        "rejected_clients": list(map(str, estimator.rejected_clients_)),
        "absences": [{**one, "client": str(one["client"])} for one in estimator.absences_],
    }
    if private:
        content |= {"epsilon": estimator.epsilon_, "delta": estimator.delta_}
        columns = getattr(estimator, "releases_", {}).items()
        content["releases"] = {name: column.tolist() for name, column in columns}
    history = {name: np.asarray(column).tolist() for name, column in history.items()}
    return FitReport({**content, **more, "history": history})


def _plain(value):
    """A value of JSON; None in the place of numbers that are not finite."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | None) else str(value)


def _written(value):
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(columns, rows):
    """A table; without columns each row begins with its name."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = [f"<tr>{head}</tr>"] if columns else []
    for row in rows:
        cells = [f"<td>{escape(_written(cell))}</td>" for cell in row]
        if not columns:
            cells[0] = f'<th scope="row">{escape(row[0])}</th>'
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(body)}</table>"


def _listed(columns, rows):
    """A table of as many rows as the page lists."""
    return _table(columns, rows[:MOST_LISTED]) + _cut(len(rows))


def _cut(number, which=""):
    """Sentence that says how many of a number of entries are there; nothing if all are."""
    if number <= MOST_LISTED:
        return ""
    return f"<p>{which}{MOST_LISTED} of {number}; the JSON has all.</p>"


def _longest(absences):
    """As many silences as the page lists, in their order."""

    def seconds(k):
        until = absences[k]["to_seconds"]
        return np.inf if until is None else until - absences[k]["from_seconds"]

    longest = sorted(range(len(absences)), key=seconds, reverse=True)[:MOST_LISTED]
    return [absences[k] for k in sorted(longest)]


def _svg(inner, label):
    return (
        f'<svg role="img" aria-label="{label}" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">{inner}</svg>'
    )


def _line(values):
    """A line through the finite values, from the left to the right."""
    values = np.asarray(values, dtype=float)
    at = np.flatnonzero(np.isfinite(values))
    low, high = (values[at].min(), values[at].max()) if len(at) else (0.0, 1.0)
    height = (values[at] - low) / (high - low if high > low else 1.0)
    points = zip(
        10 + (WIDTH - 20) * at / max(len(values) - 1, 1),
        HEIGHT - 20 - (HEIGHT - 40) * height,
        strict=True,
    )
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    ends = (
        f'<text x="10" y="12" font-size="10">{high:.4g}</text>'
        f'<text x="10" y="{HEIGHT - 5}" font-size="10">{low:.4g}</text>'
    )
    line = f'<polyline fill="none" stroke="#1f77b4" stroke-width="1.5" points="{path}"/>'
    return _svg(line + ends, f"a line from {values[0]:.4g} to {values[-1]:.4g}")


def _bars(some, number, seconds):
    """A bar for each of some of a number of silences, over the time of the fit."""
    times = [one[name] or 0.0 for one in some for name in ("from_seconds", "to_seconds")]
    end = max([*times, seconds or 0.0, 1e-9])
    step = (HEIGHT - 10) / len(some)
    bars = []
    for k, one in enumerate(some):
        start = one["from_seconds"] / end
        length = ((end if one["to_seconds"] is None else one["to_seconds"]) / end) - start
        bars.append(
            f'<rect x="{10 + (WIDTH - 20) * start:.1f}" y="{5 + k * step:.1f}" '
            f'width="{max((WIDTH - 20) * length, 1.0):.1f}" height="{0.8 * step:.1f}" '
            f'fill="#d62728"><title>{escape(one["client"])}</title></rect>'
        )
    shown = f"{len(some)} of {number}" if number > len(some) else number
    return _svg("".join(bars), f"{shown} silences over {end:.4g} seconds")
