"""A report: sections of sentences and tables, as text and as HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np


@dataclass
class Table:
    """A small table.

    Attributes
    ----------
    columns : list of str
    rows : list of list
        Numbers and text.
    """

    columns: list[str]
    rows: list[list[Any]]

    def cells(self):
        """Rows of text."""
        return [[_cell(value) for value in row] for row in self.rows]

    def lines(self):
        """Aligned text: the first column to the left, the others to the right."""
        table = [self.columns, *self.cells()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            first, *others = zip(row, widths, strict=True)
            yield "  ".join([first[0].ljust(first[1]), *(v.rjust(w) for v, w in others)]).rstrip()

    def html(self):
        """The table as HTML."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.cells()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass
class Section:
    """A question and its answer.

    Attributes
    ----------
    title : str
        The question.
    parts : list of str or Table
        Sentences and tables, in their order.
    """

    title: str
    parts: list[str | Table] = field(default_factory=list)


class Report:
    """The report of a fit in plain words; made by ``report()`` of an estimator.

    ``print(report)`` shows it as text, and a notebook as HTML.

    Attributes
    ----------
    title : str
        Name of the estimator, rows and clients.
    sections : list of Section
        Questions with their answers: each has a ``title`` and ``parts``, sentences and tables.
    findings : dict
        The numbers, by name: "p_no_difference", "p_intercepts_only", "p_inside_clusters" (NaN
        where a test was not possible), "deviations", "n_clusters", "optimal", "stability",
        "unsure", "worst", "outliers" and "not_settled".
    """

    def __init__(self, title, sections, findings):
        self.title, self.sections, self.findings = title, sections, findings

    def __str__(self):
        lines = [self.title, "=" * len(self.title)]
        for section in self.sections:
            lines += ["", section.title, "-" * len(section.title)]
            for part in section.parts:
                if isinstance(part, str):
                    lines.append(part)
                else:
                    lines += ["", *(f"  {line}" for line in part.lines()), ""]
            if lines[-1] == "":
                lines.pop()
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        parts = [f"<h3>{escape(self.title)}</h3>"]
        for section in self.sections:
            parts.append(f"<h4>{escape(section.title)}</h4>")
            parts += [
                f"<p>{escape(part)}</p>" if isinstance(part, str) else part.html()
                for part in section.parts
            ]
        return "<div>" + "".join(parts) + "</div>"


def _cell(value):
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value)
