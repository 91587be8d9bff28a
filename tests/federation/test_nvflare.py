"""The job for NVFlare, on a stand-in for its Collab API; .ci/simulate_nvflare.py has it all."""

import importlib
import json
import runpy
import sys
import threading
import traceback
import types
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skcfl import (
    KFED,
    ConvexClusteredFLRegressor,
    FedAvgRegressor,
    IFCARegressor,
    LamSearch,
    LocalModels,
)
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import FederationError
from skcfl.federation import SiteRows, collab
from skcfl.federation.collab import FitApp, SiteApp, encoded, found_rows
from skcfl.federation.nvflare import CLASSES, allow_jobs, fit_recipe, load_fitted
from skcfl.federation.remote import TIMEOUT
from skcfl.federation.sites import PlaceLost, Refused
from skcfl.models import LinearModel
from skcfl.models.losses import make_loss

DATA = make_clustered_regression(6, 2, 3, n_samples=12, random_state=0)
IDS = np.unique(DATA.groups)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "federation_sites"


class Clinic(SiteRows):
    def load(self):
        here = np.isin(DATA.groups, IDS[:2] if self.name == "north" else IDS[2:])
        return DATA.X[here], DATA.y[here], DATA.groups[here]


class Closed(Clinic):
    def load(self):
        if self.name == "south":
            raise OSError("no such table")
        return super().load()


TABLE = DATA.X.tolist()


class Broken(Clinic):
    def __init__(self, name):
        raise ValueError("Jane Doe, born 1961")


class NoPolicy(Clinic):
    policy = "min_rows=10"


class Failed(Exception):
    """NVFlare's error: its cause is text where the site raised, else an exception."""

    def __init__(self, error):
        late = isinstance(error, TimeoutError)
        self.cause = error if late else f"{type(error).__name__}: {error}"


class FakeCollab:
    """What the apps use of `nvflare.collab.collab`."""

    def __init__(self, folder):
        self.folder, self.sites, self.timeouts = folder, {}, []
        self.workspace = types.SimpleNamespace(
            get_run_dir=lambda job: str(folder / job),
            get_resources_file_path=lambda: self.resources,
        )
        self.resources = None
        self.fl_ctx = types.SimpleNamespace(get_job_id=lambda: "job")
        self.site_name, self.is_aborted, self.aborts_after = None, False, None
        self.context, self.threads = object(), threading.local()
        self.asking, self.sent = set(), []

    def get_call_context(self):
        return getattr(self.threads, "context", None)

    def set_call_context(self, context):
        self.threads.context = context

    @staticmethod
    def _marked(role, method):
        def wrapper(*args):
            return method(*args)

        wrapper.role = role
        return wrapper

    def publish(self, method):
        return self._marked("publish", method)

    def main(self, method):
        return self._marked("main", method)

    @property
    def clients(self):
        return [types.SimpleNamespace(name=name) for name in self.sites]

    def get_clients(self, names):
        (name,) = names
        if self.get_call_context() is not self.context:
            raise RuntimeError(
                "Collab context is only available while a Collab function is running"
            )
        self.asking.add(threading.get_ident())

        def group(blocking, timeout):
            assert blocking is False
            self.timeouts.append(timeout)
            return types.SimpleNamespace(exchange=lambda message: self.exchange(name, message))

        return group

    def exchange(self, name, message):
        class Results(list):
            failures = {}

        results = Results()
        self.site_name = name
        if self.aborts_after is not None:
            self.aborts_after -= 1
            self.is_aborted = self.aborts_after < 0
        try:
            if self.is_aborted:
                raise InterruptedError("run is aborted")
            results.append((name, self.sites[name].exchange(message)))
        except Exception as error:
            results.failures = {name: Failed(error)}
        return results


class FakeRecipe:
    def __init__(self, name, server, client, min_clients):
        self.job_name, self.server, self.client = name, server, client
        self.min_clients, self.packages = min_clients, None

    @staticmethod
    def _user_source_entries(objects):
        return [("collab.py", None)]

    def process_env(self, env):
        pass

    def run(self, env):
        raise RuntimeError("Simulation failed with return code 2.")

    def finalize(self):
        return self

    def set_app_packages(self, packages):
        self.packages = packages


class FakeSimEnv:
    def __init__(self, workspace_root, clients=()):
        self.workspace_root = str(workspace_root)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "job").mkdir()
    fake = FakeCollab(tmp_path)

    def install(name, **attributes):
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    collab = install("nvflare.collab", collab=fake, CollabRecipe=FakeRecipe)
    install("nvflare", collab=collab)
    contexts = {name: getattr(fake, name) for name in ("get_call_context", "set_call_context")}
    install("nvflare.collab.api.context", **contexts)
    install("nvflare.recipe", SimEnv=FakeSimEnv, ProdEnv=None)
    # What the history goes to: the events that writers such as TensorBoard's listen to.
    scalar = types.SimpleNamespace(SCALAR="scalar")
    kinds = {"ANALYTIC_EVENT_TYPE": "analytix_log_stats", "AnalyticsDataType": scalar}
    install("nvflare.apis.analytix", **kinds)
    install("nvflare.apis.fl_component", FLComponent=object)
    install(
        "nvflare.app_common.widgets.streaming",
        create_analytic_dxo=lambda **number: number,
        send_analytic_dxo=lambda sender, number, context, event_type: fake.sent.append(number),
    )
    install("nvflare.app_common")
    allowed = {"DEFAULT_CLASS_ALLOW_LIST": ("nvflare.some.Class",)}
    install("nvflare.app_common.default_component_policy", **allowed)
    monkeypatch.setitem(sys.modules, "clinic", sys.modules[__name__])
    for cls, name in ((FitApp, "fit"), (SiteApp, "exchange")):
        monkeypatch.setattr(cls, name, getattr(cls, name))
    monkeypatch.setattr("skcfl.federation.wire.time.sleep", lambda seconds: None)
    # The kit of both sites.
    rows = [f"clinic:{name}" for name in ("Clinic", "Closed", "Missing")]
    rows += ["clinic:TABLE", "clinic:Broken", "clinic:NoPolicy", "needy:Clinic", "nowhere:Clinic"]
    allow_jobs(tmp_path / "site", rows=rows)
    fake.resources = str(tmp_path / "site" / "local" / "resources.json")
    return fake


def run(fake, model, rows="clinic:Clinic", **options):
    """What NVFlare does with a recipe: objects of class names and arguments in a configuration."""
    recipe = fit_recipe(model, rows, **options)
    server = FitApp(**json.loads(json.dumps(vars(recipe.server))))
    for site in ("north", "south"):
        fake.sites[site] = SiteApp(rows=recipe.client.rows)
    fake.set_call_context(fake.context)
    try:
        server.fit()
    finally:
        fake.set_call_context(None)
    return load_fitted(fake.folder)


NAMES = [("north/" if name in IDS[:2] else "south/") + name for name in DATA.groups]


def report_of(fake):
    return json.loads((fake.folder / "job" / collab.REPORT).read_text())


def test_recipes(fake):
    model = IFCARegressor(n_clusters=2, random_state=0)
    recipe = fit_recipe(model, "clinic:Clinic", name="wards", min_sites=2)
    assert (recipe.job_name, recipe.min_clients) == ("wards", 2)
    # A job with any file of code is refused by sites that forbid it.
    assert recipe.packages == ["skcfl"]
    assert recipe._user_source_entries([recipe.server, recipe.client]) == []
    assert recipe.server.description == repr(model)
    assert recipe.server.timeout == TIMEOUT
    assert FitApp.fit.role == "main" and SiteApp.exchange.role == "publish"


def test_a_job_leaves_the_fitted_estimator(fake):
    wanted = IFCARegressor(n_clusters=2, random_state=0)
    found = run(fake, wanted, timeout=7, evidence=True)
    wanted.fit(DATA.X, DATA.y, groups=NAMES)
    assert str(found.report()) == str(wanted.report())
    assert found.groups_.tolist() == wanted.groups_.tolist()
    assert_allclose(found.params_, wanted.params_, rtol=1e-10)
    assert_allclose(found.predict(DATA.X, groups=NAMES), wanted.predict(DATA.X, groups=NAMES))
    report = report_of(fake)
    assert report["sites"] == ["north", "south"] and report["clients"] == 6
    assert report["missing_clients"] == report["rejected_clients"] == report["failures"] == []
    assert report["calls"] == wanted.calls_ and report["messages"] >= 2 * wanted.calls_
    assert set(fake.timeouts) == {7.0}
    assert (report["bytes_up"], report["bytes_down"]) == found.wire_bytes_ > (0, 0)
    objectives = [number for number in fake.sent if number["tag"] == "skcfl/objective"]
    assert [number["value"] for number in objectives] == found.history_["objective"].tolist()
    assert [number["global_step"] for number in objectives] == list(range(len(objectives)))
    assert (fake.folder / "job" / collab.PAGE).read_text().startswith("<!doctype html>")
    # No row and no target is in the file, nor anything that could ask for them.
    data = (fake.folder / "job" / collab.FITTED).read_bytes()
    assert b"skcfl.federation.remote" not in data and b"skcfl.federation.wire" not in data
    for number in (DATA.X[0, 0], DATA.y[0], DATA.X[-1, -1]):
        assert np.float64(number).tobytes() not in data


def test_a_search_asks_from_several_threads(fake):
    """Folds are fitted at the same time: the same model, and every thread may ask."""
    options = {"search": LamSearch(cv=3, lams=[0.1, 1.0]), "alpha": 0.01, "random_state": 0}
    search = ConvexClusteredFLRegressor(**options)
    found = run(fake, search)
    assert len(fake.asking) > 1
    search.fit(DATA.X, DATA.y, groups=NAMES)
    assert_allclose(found.coef_, search.coef_, rtol=1e-10)
    assert found.calls_ == search.calls_


def test_evidence_is_for_reports_that_need_it(fake):
    with pytest.raises(ValueError, match="evidence must be False for KFED"):
        fit_recipe(KFED(2), "clinic:Clinic", evidence=True)


def test_classes_are_allowed_once(fake, tmp_path):
    """In the simulator by itself, at servers and sites by hand; what else is set stays.

    Sites do not send their logs.
    """
    recipe = fit_recipe(FedAvgRegressor(), "clinic:Clinic", name="wards")
    recipe.process_env(types.SimpleNamespace(workspace_root=str(tmp_path / "poc")))
    assert not (tmp_path / "poc").exists()
    recipe.process_env(FakeSimEnv(tmp_path))
    file = tmp_path / "wards" / "local" / "resources.json"
    resources = json.loads(file.read_text())
    assert resources["class_allow_list"] == ["nvflare.some.Class", *CLASSES]
    assert resources[collab.ALLOWED_ROWS] == ["clinic:Clinic"]
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    default = {
        "format_version": 2,
        "allow_log_streaming": True,
        "snapshot": 3,
        "class_allow_list": ["own.Class"],
    }
    (kit / "local" / "resources.json.default").write_text(json.dumps(default))
    for _ in range(2):
        allow_jobs(kit)
        own = json.loads((kit / "local" / "resources.json").read_text())
        wanted = {"class_allow_list": ["own.Class", *CLASSES], "allow_log_streaming": False}
        assert own == {**default, **wanted}


def test_a_site_says_which_rows_jobs_may_name(fake, tmp_path):
    """Another list replaces the one before it; without one the list stays."""
    file = tmp_path / "kit" / "local" / "resources.json"
    for rows, wanted in [
        ("a:B", ["a:B"]),
        (("a:C", "d:E"), ["a:C", "d:E"]),
        (None, ["a:C", "d:E"]),
    ]:
        allow_jobs(tmp_path / "kit", rows=rows)
        assert json.loads(file.read_text())[collab.ALLOWED_ROWS] == wanted
    for rows in ("clinic", Clinic, ["a:B", 3]):
        with pytest.raises(ValueError, match="rows must be 'module:Class', or several of them"):
            allow_jobs(tmp_path / "kit", rows=rows)


@pytest.mark.parametrize("rows", ["os:environ", "clinic:SiteRows", "never_imported:Clinic"])
def test_a_site_refuses_other_rows_and_imports_nothing(fake, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imports {name}"))
    allow_jobs(tmp_path / "site", rows="clinic:Clinic")
    fake.site_name = "south"
    wanted = rf"site 'south' lets jobs name the rows \['clinic:Clinic'\], got '{rows}'"
    with pytest.raises(Refused, match=wanted):
        SiteApp(rows).exchange(b"")
    fake.resources = None
    with pytest.raises(Refused, match=r"rows \[\], got"):
        SiteApp("clinic:Clinic").exchange(b"")


@pytest.mark.parametrize(
    "rows, reason, logged",
    [
        ("clinic:Broken", "could not be made: ValueError, see its log", "Jane Doe"),
        ("clinic:NoPolicy", "could not be made: TypeError, see its log", "policy must be"),
        ("clinic:TABLE", "could not be made: TypeError, see its log", "SiteRows, got a list."),
        ("needy:Clinic", "could not be made: ModuleNotFoundError, see its log", "'not_there'"),
        ("nowhere:Clinic", "the site has no module 'nowhere'", None),
        ("clinic:Missing", "the site's module 'clinic' has no class 'Missing'", None),
    ],
)
def test_rows_that_cannot_be_made(fake, tmp_path, monkeypatch, caplog, rows, reason, logged):
    """The server gets a short text, and the site's log the error."""
    (tmp_path / "needy.py").write_text("import not_there")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PlaceLost) as raised:
        SiteApp(rows).exchange(b"")
    assert str(raised.value).endswith(reason)
    sent = "".join(traceback.format_exception(raised.value))
    assert sent.count("Error") == reason.count("Error") and "Jane" not in sent
    assert logged in caplog.text if logged else not caplog.records


def test_what_a_name_names_is_not_quoted(fake):
    with pytest.raises(TypeError) as raised:
        found_rows("clinic:TABLE")
    assert str(raised.value).endswith("SiteRows, got a list.")


def test_classes_that_are_allowed_exist():
    for path in CLASSES[2:]:
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name) in (FitApp, SiteApp)


def test_a_job_whose_fit_did_not_begin_says_why(tmp_path):
    meta = {
        "status": "FINISHED:ABNORMAL",
        "job_deploy_detail": ["server: OK", "east: BYOC not permitted"],
        "schedule_history": ["2026-11-23 05:29:48: scheduled", "05:30: not enough clients"],
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "error_log.txt").write_text(
        "05:28 - Scanner - ERROR - Traceback (most recent call last):\n"
        '  File "scanner.py", line 99\n'
        "ComponentNotAuthorized: 'skcfl.federation.collab.FitApp' is not in allow_list\n\n"
    )
    with pytest.raises(FederationError) as raised:
        load_fitted(tmp_path)
    assert str(raised.value).splitlines()[:-1] == [
        "The job ended before the fit began:",
        "status FINISHED:ABNORMAL",
        "east: BYOC not permitted",
        "05:30: not enough clients",
        "ComponentNotAuthorized: 'skcfl.federation.collab.FitApp' is not in allow_list",
    ]
    assert "allow_jobs" in str(raised.value)
    assert "start them again" in str(raised.value)


def test_a_job_that_fails_says_why(fake):
    run(fake, FedAvgRegressor())
    with pytest.raises(ValueError, match="Site 'south': load"):
        run(fake, FedAvgRegressor(), "clinic:Closed")
    # What an earlier job has left is gone.
    with pytest.raises(FederationError, match=r"Site 'south': load\(\) raised OSError, see"):
        load_fitted(fake.folder)


def test_the_simulator_says_why_a_job_failed(fake, tmp_path):
    """NVFlare's error names the folder of its logs."""
    recipe = fit_recipe(FedAvgRegressor(), "clinic:Clinic", name="job")
    with pytest.raises(RuntimeError, match="Simulation failed"):
        recipe.run(FakeSimEnv(tmp_path))
    with pytest.raises(ValueError, match="Site 'south'"):
        run(fake, FedAvgRegressor(), "clinic:Closed")
    with pytest.raises(FederationError, match=r"job failed: .*Site 'south': load\(\) raised"):
        recipe.run(FakeSimEnv(tmp_path))
    with pytest.raises(RuntimeError, match="Simulation failed"):
        recipe.run(types.SimpleNamespace(workspace_root=str(tmp_path)))


def test_a_site_that_never_answers(fake):
    with (
        pytest.warns(UserWarning, match="site '.*': PlaceLost: .* has no class 'Missing'"),
        pytest.raises(FederationError, match="2 of 2 places do not answer"),
    ):
        run(fake, FedAvgRegressor(), "clinic:Missing")
    with pytest.raises(FederationError, match="(?s)2 of 2 places.*No answer of site 'south'"):
        load_fitted(fake.folder)
    assert len(report_of(fake)["failures"]) == 2


@pytest.mark.parametrize("number", [0, 9])
def test_an_aborted_job_ends_at_once(fake, number):
    """That is no failure of the sites."""
    fake.aborts_after = number
    with pytest.raises(FederationError, match="NVFlare has aborted the job, see the log"):
        run(fake, IFCARegressor(n_clusters=2))
    assert report_of(fake)["failures"] == []
    assert report_of(fake)["messages"] <= number + 2


def test_a_job_that_was_killed_goes_on(fake, tmp_path):
    """The same job, submitted again, begins where the first one ended; then its file is gone."""
    path = tmp_path / "wards.checkpoint"
    model = IFCARegressor(n_clusters=2, random_state=0)
    wanted, messages = run(fake, model), report_of(fake)["messages"]
    fake.aborts_after = messages // 2
    with pytest.raises(FederationError, match="aborted"):
        run(fake, model, checkpoint=path)
    assert path.exists()
    fake.aborts_after, fake.is_aborted = None, False
    found = run(fake, model, checkpoint=path)
    assert found.params_.tobytes() == wanted.params_.tobytes()
    # Both sites are asked again for the units. Each fit asks both if their rows are the same,
    # in two messages: the first one comes less far in as many.
    assert report_of(fake)["messages"] < 0.7 * messages + 2 * 2 * 2 + 2
    assert not path.exists()


def test_a_site_that_is_late(fake, monkeypatch, capsys):
    answered = SiteApp.exchange

    def exchange(self, message):
        self.count = getattr(self, "count", 0) + 1
        if fake.site_name == "south" and self.count > 8:
            raise TimeoutError("function exchange timed out after 60.0 seconds")
        return answered(self, message)

    SiteApp.exchange = exchange  # undone by the fixture
    with pytest.warns(UserWarning, match="site 'south': (TimeoutError: function|not waited)"):
        missing = run(fake, FedAvgRegressor()).missing_clients_.tolist()
    assert missing == report_of(fake)["missing_clients"] and len(missing) == 4
    # The example prints no cluster of a missing ward.
    result = types.SimpleNamespace(get_result=lambda clean_up: fake.folder)
    monkeypatch.setattr(FakeRecipe, "run", lambda self, env: result)
    monkeypatch.setattr(sys, "argv", ["job.py"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    runpy.run_path(str(EXAMPLE / "job.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed if line.endswith("missing")] == missing


def test_results_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="skcfl_fitted.bin"):
        load_fitted(tmp_path)
    with pytest.raises(FileNotFoundError, match="no result"):
        load_fitted(None)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"timeout": 0}, ValueError, "timeout must be a positive number of seconds, got 0"),
        ({"timeout": float("nan")}, ValueError, "timeout"),
        ({"min_clients": 0}, ValueError, "min_clients must be an integer of at least 1, got 0"),
        ({"min_sites": 0}, ValueError, "min_sites must be an integer of at least 1, got 0"),
        ({"retries": -1}, ValueError, "retries must be"),
        ({"checkpoint": "fit"}, ValueError, "the whole path of a file at the server, got 'fit'"),
        ({"rows": "clinic"}, ValueError, "rows must be 'module:Class', .*, got 'clinic'"),
        ({"rows": 3}, ValueError, "rows must be"),
        ({"rows": Clinic}, ValueError, "rows must be .*, got <class .*: jobs bring no code"),
        ({"estimator": LinearModel}, TypeError, "estimator must be one of skcfl, .*got a class"),
        ({"estimator": LinearModel()}, TypeError, "estimator must be .*got LinearModel"),
    ],
)
def test_bad_arguments(fake, arguments, error, message):
    arguments = {"estimator": FedAvgRegressor(), "rows": "clinic:Clinic", **arguments}
    with pytest.raises(error, match=message):
        fit_recipe(**arguments)


class Own(type(make_loss("squared_error"))):
    """A loss that skcfl does not have."""


def test_estimators_of_what_one_has_oneself(fake):
    model = LocalModels(LinearModel(Own()))
    with pytest.raises(ValueError, match=r"estimator cannot be sent: .*Own.*trusted="):
        fit_recipe(model, "clinic:Clinic")
    assert fit_recipe(model, "clinic:Clinic", trusted=__name__).server.trusted == [__name__]


def test_estimators_are_text_without_long_words():
    """NVFlare takes words of 20 letters without order for secrets, and warns."""
    text = encoded(FedAvgRegressor())
    assert max(map(len, text.split())) < 20


def test_found_rows():
    assert found_rows(f"{__name__}:Clinic") is Clinic or __name__ not in sys.modules
    with pytest.raises(TypeError, match="json:loads must be a subclass"):
        found_rows("json:loads")


def test_the_example(monkeypatch):
    """Its sites in one process: what the guide says of them."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "clinic", raising=False)
    rows = [found_rows("clinic:Clinic")(name).named() for name in ("north", "south", "east")]
    assert [list(X.columns) for X, *_ in rows] == [["age", "severity", "dose"]] * 3
    monkeypatch.delitem(sys.modules, "clinic")
    model = IFCARegressor(n_clusters=2, random_state=0)
    model.fit(*(np.concatenate(part) for part in zip(*rows, strict=True)))
    surgery = [name.endswith("surgery") for name in model.groups_]
    assert len(surgery) == 7 and model.labels_.tolist() == [int(ward) for ward in surgery]
    assert (model.calls_, model.floats_up_, model.floats_down_) == (23, 1687, 1995)


def test_without_nvflare(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvflare", None)
    monkeypatch.setitem(sys.modules, "nvflare.collab", None)
    with pytest.raises(ImportError, match=r"python -m pip install 'skcfl\[nvflare\]'"):
        fit_recipe(FedAvgRegressor(), "clinic:Clinic")
