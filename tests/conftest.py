"""Settings that every test shares."""

import gc
import os

# Before numpy is imported: the tests run side by side (pytest -n), one BLAS thread each.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
# Pictures are drawn to files, never to a screen.
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
from hypothesis import HealthCheck, settings

# A fit takes as long as it takes, and a shared machine makes it take longer: no deadlines, and no
# complaint about slow data generation. In CI the examples are the same on every run; elsewhere
# each run tries new ones.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", **_common, max_examples=25, derandomize=True, print_blob=True)
settings.register_profile("dev", **_common, max_examples=25)
settings.register_profile("thorough", **_common, max_examples=1000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE")
settings.load_profile(PROFILE or ("ci" if os.environ.get("CI") else "dev"))


def pytest_collection():
    """What is collected stays: to look for garbage in it takes a third of the time."""
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """Tests of hundreds of examples run in the thorough profile only; few examples run always."""
    if PROFILE != "thorough":
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="HYPOTHESIS_PROFILE=thorough runs it"))


#: Directories and files of tests that read no report. Reports of fits are in tests/reports, and
#: every method's fits ask for them in tests/test_axes.py.
WITHOUT_REPORTS = {
    *("estimators", "federation", "fusion", "model_selection", "models", "personal", "pooling"),
    *("rounds", "search", "soundness", "theorems", "test_base", "test_common", "test_docs"),
    *("test_everyday", "test_fuzz", "test_lanes", "test_progress", "test_tools", "test_updates"),
}
#: Directories and files of tests that compare searches, or search on the way to something else.
WITH_FEW_FOLDS = {
    *("federation", "test_axes", "test_base", "test_client_loss", "test_docs", "test_elsewhere"),
    *("test_examples", "test_progress", "test_replicas", "test_tools", "test_updates"),
}


@pytest.fixture(autouse=True)
def cheaper_fits(request):
    """What a file does not look at is left out of its fits, or there is less of it."""
    without = {request.path.parent.name, request.path.stem} & WITHOUT_REPORTS
    if without and not request.node.get_closest_marker("reports"):
        patch = request.getfixturevalue("monkeypatch")
        patch.setattr("skcfl.reports.evidence._ask", lambda *arguments: None)
    if {request.path.parent.name, request.path.stem} & WITH_FEW_FOLDS:
        request.getfixturevalue("few_folds")


@pytest.fixture
def few_folds(monkeypatch):
    """Searches hold rows out as of larger federations, which takes a third of the time."""
    monkeypatch.setattr("skcfl.search.n_clusters.FEW_FOLDS", 3)
    monkeypatch.setattr("skcfl.search.judges.FEW_FOLDS", 2)
