"""Reports of fits to federations: what was fitted, sent and lost."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from cases import DATA, make
from sklearn.exceptions import NotFittedError

from skcfl import FedAvgRegressor, IFCARegressor
from skcfl.federation import Faults, FitReport, InProcessFederation, fit_report
from skcfl.federation.absences import Absences
from skcfl.federation.fit_page import HEIGHT, WIDTH

METHODS = ["PartialPoolingRegressor", "ConvexClusteredFLRegressor", "DittoRegressor"]


class Tags(HTMLParser):
    """Tags of a page, which are closed in the order in which they are opened."""

    def __init__(self, page):
        super().__init__()
        self.open, self.seen = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def federation(**faults):
    return InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=Faults(**faults))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_method(name):
    model = make(name, max_iter=5).fit_federation(federation())
    report = fit_report(model, 2.5, failures=["site 'south': <no line>"])
    content = json.loads(report.to_json())
    assert content["clients"] == 9 and content["calls"] == model.calls_
    assert sum(content["cluster_sizes"]) == 9 and content["seconds"] == 2.5
    assert content["absences"] == content["missing_clients"] == []
    assert content["history"].keys() == getattr(model, "history_", {}).keys()
    page = report.to_html()
    tags = Tags(page)
    assert tags.open == [] and "script" not in tags.seen
    assert "&lt;no line&gt;" in page and "<no line>" not in page
    assert str(report).startswith(f"{name}(") and f"calls: {model.calls_}" in str(report)


def test_clusterers_of_rows():
    content = fit_report(make("KFED").fit_federation(federation())).content
    assert content["clusters"] == 3 and content["seconds"] is None and content["history"] == {}


def test_who_was_away_and_when():
    faults = {"dropout": 0.3, "dead": ["client05"], "random_state": 0}
    model = IFCARegressor(n_clusters=3, random_state=0).fit_federation(federation(**faults))
    report = fit_report(model)
    absences = json.loads(report.to_json())["absences"]
    assert report.content["missing_clients"] == ["client05"]
    (dead,) = [one for one in absences if one["to_call"] is None]
    assert dead["client"] == "client05" and dead["to_seconds"] is None
    for one in absences:
        assert one["from_call"] >= 1 and one["from_seconds"] >= 0.0
        if one["to_call"] is not None:
            assert one["to_call"] > one["from_call"] and one["to_seconds"] >= one["from_seconds"]
    page = report.to_html()
    bars = re.findall(r'<rect x="(.+?)" y="(.+?)" width="(.+?)" height="(.+?)"', page)
    assert len(bars) == min(len(absences), 50)
    for text in (
        "Who was away",
        f"The longest 50 of {len(absences)}; the JSON has all.",
        # Parallel requests, one exchange of calls_, have a number each.
        '<th scope="col">from request</th>',
        # The client that never comes back is away for longest, wherever it stands.
        "<td>client05</td>",
    ):
        assert text in page
    left, top, width, height = np.array(bars, dtype=float).T
    assert (left + width <= WIDTH).all() and (top + height <= HEIGHT).all()
    assert Tags(page).open == []


def test_the_page_says_what_it_leaves_out():
    some = list(range(60))
    releases = {"round": some, "noise": some}
    about = {"estimator": "M()", "calls": 1, "cluster_sizes": some, "missing_clients": some}
    page = FitReport({**about, "releases": releases}).to_html()
    assert page.count("<p>50 of 60; the JSON has all.</p>") == 3
    assert "<th></th>" not in page and '<th scope="row">calls</th><td>1</td>' in page
    less = FitReport({"estimator": "M()", "cluster_sizes": some[:50]}).to_html()
    assert "the JSON has all" not in less


def test_absences_by_hand():
    """Call by call: who was silent from when on, and who is back."""
    found = Absences(np.array(["a", "b", "c"]))
    everybody = np.arange(3)
    found.note(everybody, None)
    found.note(everybody, np.array([True, False, False]))
    found.note(np.array([1, 0]), np.array([False, True]))
    found.note(np.array([2]), None)
    found.note(everybody, np.array([False, True, True]))
    listed = [(one["client"], one["from_call"], one["to_call"]) for one in found.listed()]
    assert listed == [("b", 2, 5), ("c", 2, 4), ("a", 5, None)]
    found.note(everybody, None)
    assert found.listed()[-1]["to_call"] == 6


def test_numbers_that_json_does_not_have():
    report = FitReport({"estimator": "M()", "objective": np.nan, "a": np.float64(np.inf)})
    assert json.loads(report.to_json()) == {"estimator": "M()", "objective": None, "a": None}
    values = [np.nan, 2.0, 1.0, np.inf]
    page = FitReport({"estimator": "M()", "history": {"objective": values}}).to_html()
    assert page.count(",") > 1 and "nan,nan" not in page
    with pytest.raises(NotFittedError):
        fit_report(FedAvgRegressor())
