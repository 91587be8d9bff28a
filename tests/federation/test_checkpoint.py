"""Fits that were cut off go on from their checkpoint to the same result, to the bit."""

import errno
import os
import signal
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import CLASSES, DATA, EVERYDAY, make
from numpy.testing import assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from private_clients import where
from site_tables import Given, Wire
from sklearn.base import clone
from trials import one_a_method, spread

import skcfl
from skcfl import (
    KFED,
    FedAvgRegressor,
    IFCARegressor,
    PartialPoolingRegressor,
    datasets,
)
from skcfl.calls import CALLS
from skcfl.calls.summed import GradientSums
from skcfl.exceptions import CheckpointError, FederationError, PrivacyError
from skcfl.federation import Faults, InProcessFederation, SitePolicy, journal
from skcfl.federation.journal import Journal, digest
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.row_calls import ROW_CALLS
from skcfl.models import Location

FITTED = ["params_", "labels_", "cluster_params_", "objective_", "cluster_centers_", "calls_"]
FITTED += ["client_labels_", "floats_up_", "floats_down_", "missing_clients_", "n_iter_"]
#: What a clock or a wire says, of the process that asked.
MEASURED = {"seconds", "bytes_up", "bytes_down"}

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Killed(BaseException):
    """What a kill is for code that writes nothing when it comes."""


@pytest.fixture
def journals(monkeypatch):
    """All journals of a test; ``journals.most`` answers are added to each before it is killed."""

    class Journals(list):
        most = None

    made = Journals()

    class Watched(Journal):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

        def add(self, *args):
            super().add(*args)
            if made.most is not None and self.n_added >= made.most:
                raise Killed

        def close(self, ended):
            self.n_left = sum(map(len, self._places.values()))
            if self._file is not None and not ended:
                self._waiting = []  # a process that is killed writes nothing more
            super().close(ended)

    monkeypatch.setattr("skcfl.base.checkpointing.Journal", Watched)
    return made


def here(name="IFCARegressor", **settings):
    data = CLASSES if "Classifier" in name else DATA
    return InProcessFederation(data.X, data.y, data.groups, **settings)


def elsewhere(name):
    parts = named(parts_of(CLASSES if "Classifier" in name else DATA, 3))
    return RemoteFederation([PickledHost(parts[k::2]) for k in (0, 1)])


def of(name):
    return skcfl.KFED(n_clusters=3, random_state=0) if name == "KFED" else make(name, max_iter=6)


def assert_same(found, wanted):
    for name in FITTED:
        if hasattr(wanted, name):
            assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    history = getattr(wanted, "history_", {})
    for name in history.keys() - MEASURED:
        assert_array_equal(found.history_[name], history[name], err_msg=name)


def cut_off(model, federation, path, journals, most, **options):
    """Fit until so many answers have come."""
    journals.most = most
    with pytest.raises(Killed):
        model.fit_federation(federation, path, every=0, **options)
    journals.most = None
    assert federation.journal is None  # another fit to the same clients has none
    return journals[-1]


def resumed(model, federation, path, journals):
    """The fit that goes on; all that was answered before is found, and none of it is left."""
    model.fit_federation(federation, path, resume=True)
    assert journals[-1].n_left == 0
    assert not path.exists()
    return model


def goes_on(model, federation, path, journals, share=0.5):
    """A fit, and the same one that goes on after so many of its calls: equal, and asked once."""
    wanted = model().fit_federation(federation(), path)
    calls = journals[-1].n_added
    cut_off(model(), federation(), path, journals, int(share * calls))
    data = path.read_bytes()
    found = resumed(model(), federation(), path, journals)
    assert_same(found, wanted)
    assert journals[-1].n_found + journals[-1].n_added == calls
    return found, wanted, data


@pytest.mark.parametrize("name", [*spread(one_a_method(EVERYDAY), 8), "KFED"])
def test_every_method_goes_on(name, tmp_path, journals):
    """Killed after the first answer, and again in the middle: nothing is asked twice."""
    path = tmp_path / "fit"
    wanted = of(name).fit_federation(here(name), path)
    calls = journals[-1].n_added
    assert_same(wanted, of(name).fit_federation(here(name)))
    cut_off(of(name), here(name), path, journals, 1)
    more = calls // 2 if calls > 2 else 0
    if more:
        half = cut_off(of(name), here(name), path, journals, more, resume=True)
        assert half.n_found == 1
    assert_same(resumed(of(name), here(name), path, journals), wanted)
    assert journals[-1].n_found == 1 + more
    assert journals[-1].n_found + journals[-1].n_added == calls


def searched(name):
    """The server computes by second moments or expansions what no client answers."""
    kind = "classification" if "Classifier" in name else "regression"
    data = getattr(datasets, f"make_clustered_{kind}")(4, 2, 3, n_samples=20, random_state=0)
    search = skcfl.LamSearch(lams=[0.1, 0.6])
    model = partial(getattr(skcfl, name), random_state=0, search=search, alpha=0.01)
    return model, partial(InProcessFederation, data.X, data.y, data.groups)


def with_columns(**parameters):
    """The clients are opened with several sets of columns, whose answers are kept apart."""
    X = np.column_stack([DATA.X, np.arange(len(DATA.X)) % 5])
    model = partial(skcfl.PartialPoolingRegressor, 1, random_state=0, max_iter=4, **parameters)
    return model, partial(InProcessFederation, X, DATA.y, DATA.groups)


#: Maker of a fit and of its clients, and the part of its calls before it is cut off.
GO_ON = {
    "hosts started anew": (
        partial(of, "DittoRegressor"),
        partial(elsewhere, "DittoRegressor"),
        0.9,
    ),
    "search": (*searched("ConvexClusteredFLRegressor"), 0.5),
    "search of FPFC": (*searched("FPFCClassifier"), 0.98),
    "splines": (*with_columns(basis="splines"), 0.5),
    "crossed": (*with_columns(crossed=[4]), 0.5),
}


@pytest.mark.parametrize("case", GO_ON)
def test_fits_go_on(case, tmp_path, journals):
    model, places, share = GO_ON[case]
    found, wanted, _ = goes_on(model, places, tmp_path / "fit", journals, share)
    if case.startswith("search"):
        assert found.lam_ == wanted.lam_
        assert journals[-1].n_found == journals[-2].n_added


def test_networks_with_parts_of_their_own(tmp_path, journals):
    pytest.importorskip("torch")
    from torch_modules import Net

    from skcfl.models import TorchModel

    local = TorchModel(Net(norm=True), buffers="local")
    model = skcfl.FedAvg(local, max_iter=4).set_params(random_state=0)
    goes_on(partial(clone, model), partial(here, "Classifier"), tmp_path / "fit", journals)


@pytest.mark.parametrize("state", [None, np.random.RandomState(3)], ids=["none", "generator"])
def test_fits_without_a_seed(state, tmp_path, journals):
    """Whoever resumes draws as the fit that was cut off."""
    path, before = tmp_path / "fit", np.random.get_state()[1].copy()
    model = IFCARegressor(n_clusters=3, random_state=state, max_iter=3, init="random")
    cut_off(clone(model), here(), path, journals, 40)
    data, found = path.read_bytes(), []
    for _ in range(2):
        path.write_bytes(data)
        found.append(resumed(clone(model), here(), path, journals))
    assert_same(*found)
    assert found[0].random_state is None or state is not None
    assert_array_equal(np.random.get_state()[1], before)


def losing(after, **settings):
    """Two hosts, the second of which is lost after so many messages."""
    parts = named(parts_of(DATA, 3))
    hosts = [PickledHost(parts[k::2]) for k in (0, 1)]
    hosts[1].lost_after = after
    return RemoteFederation(hosts, **settings), hosts[1]


@pytest.mark.parametrize(
    ("name", "retries", "reachable"), [("GTVRegressor", 2, None), ("IFCARegressor", 5, False)]
)
def test_silent_clients_are_silent_again(name, retries, reachable, tmp_path, journals):
    """What was not answered is in the journal, and whether a place was reachable, too.

    Or silent clients would be asked more often than before, and the answers not be found.
    """
    path, model = tmp_path / "fit", partial(of, name)
    (whole, first), (cut, second), (again, third) = (
        losing(after, retries=retries) for after in (11, 11, None)
    )
    if reachable is not None:
        first.reachable = second.reachable = reachable
        third.reachable = True
    wanted = model().fit_federation(whole, path)
    calls = journals[-1].n_added
    assert len(wanted.missing_clients_) == 3
    cut_off(model(), cut, path, journals, calls - 1)
    assert second.n_asked <= first.n_asked
    found = resumed(model(), again, path, journals)
    assert journals[-1].n_found >= calls - 1 and third.n_asked < first.n_asked / 2
    assert_array_equal(found.labels_, wanted.labels_)
    assert_array_equal(found.params_, wanted.params_)


def test_lost_answers_of_clients_that_remember(tmp_path, journals):
    """A client does again what it did, and not what it has missed."""
    path = tmp_path / "fit"
    faults = Faults(dropout=0.4, random_state=0)
    cut_off(of("DittoRegressor"), here(faults=faults), path, journals, 20)
    found = resumed(of("DittoRegressor"), here(), path, journals)
    assert np.isfinite(found.params_).all() and journals[-1].n_found == 20


def wire_federation(n_sites=2, step=1):
    """Sites in one order, or in the other one."""
    ids = np.array_split(np.unique(DATA.groups), n_sites)
    rows = [where((DATA.X, DATA.y, DATA.groups), np.isin(DATA.groups, some)) for some in ids]
    return RemoteFederation([Wire(Given(f"s{k}", part)) for k, part in enumerate(rows)][::step])


def test_sites_with_rows_of_their_own(tmp_path, journals):
    model = partial(of, "ConvexClusteredFLRegressor")
    found, wanted, data = goes_on(model, wire_federation, tmp_path / "fit", journals)
    for number in (*DATA.X[:3].ravel(), *DATA.y[:3]):
        assert np.float64(number).tobytes() not in data
    # Those of the fit that was cut off count, and so does what had to be asked again.
    for got, least in zip(found.wire_bytes_, wanted.wire_bytes_, strict=True):
        assert least <= got < 1.5 * least


# ----------------------------------------------------------------- files that are wrong


@pytest.fixture
def begun(tmp_path, journals):
    """The checkpoint of a fit that was cut off, and its bytes."""
    path = tmp_path / "fit"
    cut_off(of("IFCARegressor"), here(), path, journals, 10)
    return path, path.read_bytes()


@pytest.fixture(scope="module")
def uncut():
    """The fit of the checkpoint above, which no test changes."""
    return of("IFCARegressor").fit_federation(here())


def resume(path, model=None, federation=None):
    model = of("IFCARegressor") if model is None else model
    return model.fit_federation(here() if federation is None else federation, path, resume=True)


@pytest.mark.parametrize(
    ("cut", "zeros", "n_found"), [(7, 0, 9), (7, 7, 9), (7, 99, 9), (0, 99, 10)]
)
def test_a_last_record_that_is_not_whole(begun, uncut, journals, cut, zeros, n_found):
    """Cut where the process was killed; a disk without power leaves zeros."""
    path, data = begun
    path.write_bytes(data[: len(data) - cut] + bytes(zeros))
    assert_same(resume(path), uncut)
    assert journals[-1].n_found == n_found
    assert_same(resume(path), uncut)  # without a checkpoint the fit begins


@pytest.mark.parametrize("place", [0.02, 0.7])
def test_damage(begun, place):
    path, data = begun
    at = int(place * len(data))
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(CheckpointError, match="is damaged|cannot be read"):
        resume(path)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", journal.MAGIC, journal.MAGIC + bytes(500)])
def test_other_files(tmp_path, data):
    path = tmp_path / "fit"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is no checkpoint|has no header|is damaged"):
        resume(path)
    assert path.read_bytes() == data


def test_checkpoints_of_other_fits(begun, monkeypatch):
    path, data = begun
    model = of("IFCARegressor")
    with pytest.raises(CheckpointError, match="resume=True goes on from it"):
        model.fit_federation(here(), path)
    fewer = InProcessFederation(DATA.X[:60], DATA.y[:60], DATA.groups[:60])
    moved = InProcessFederation(DATA.X + 1e-3, DATA.y, DATA.groups)
    classifier = r"is of another estimator.*IFCAClassifier \w+ here"
    for estimator, federation, message in (
        (of("IFCAClassifier"), here("Classifier"), classifier),
        (clone(model).set_params(alpha=0.5), None, "or of other parameters"),
        (model, fewer, "is of other clients: numbers of rows, weights"),
        (model, moved, "is of other rows: .* not the same"),
    ):
        with pytest.raises(CheckpointError, match=message):
            resume(path, estimator, federation)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "versions", lambda: ["9.9", "other calls"])
        with pytest.raises(CheckpointError, match=r"was written by skcfl '0\.1\.0' and its calls"):
            resume(path)
    assert path.read_bytes() == data
    resume(path, model.set_params(verbose=0, n_jobs=2))


SEVERAL = ["IFCAClassifier", "PartialPoolingRegressor", "RobustClusteredFLClassifier"]
SEVERAL += ["FedProtoClassifier", "FedALAClassifier", "FedRepRegressor", "LocalModelsClassifier"]


@pytest.mark.reports
@pytest.mark.parametrize(
    ("name", "rolled"), [("FedAvgRegressor", True), *((name, False) for name in SEVERAL)]
)
def test_other_rows_with_the_same_moments(name, rolled, tmp_path, journals):
    """What the fit had answered is not taken for what it would be answered now."""
    data = CLASSES if "Classifier" in name else DATA
    path, order = tmp_path / "fit", np.arange(len(data.y))
    if rolled:
        order = np.roll(order, 1)
    else:
        one, other = (np.flatnonzero(data.groups == id) for id in np.unique(data.groups)[:2])
        n = min(len(one), len(other))
        order[one[:n]], order[other[:n]] = other[:n], one[:n]
    model = of(name).set_params(standardize=False)
    cut_off(clone(model), here(name), path, journals, 5)
    changed = InProcessFederation(data.X, np.asarray(data.y)[order], data.groups)
    with pytest.raises(CheckpointError, match="is of other rows: .* not the same"):
        clone(model).fit_federation(changed, path, resume=True)
    found = clone(model).fit_federation(here(name), path, resume=True)
    assert_same(found, model.fit_federation(here(name)))


@pytest.mark.reports
@pytest.mark.parametrize("what", ["feature", "targets"])
def test_other_rows_of_far_numbers(what, tmp_path, journals):
    """A feature beside one in units of its own, and targets far away from zero."""
    X, y = np.array(DATA.X), np.array(DATA.y)
    X[:, 0] = 2e6 * (1.0 + 0.1 * X[:, 0])
    if what == "targets":
        y = 1.6e9 + 1e3 * y
    path, one, model = tmp_path / "fit", DATA.groups == DATA.groups[0], of("FedAvgRegressor")
    cut_off(clone(model), InProcessFederation(X, y, DATA.groups), path, journals, 5)
    changed = X[:, 1] if what == "feature" else y
    changed[one] = np.roll(changed[one], 1)
    with pytest.raises(CheckpointError, match="is of other rows: .* not the same"):
        clone(model).fit_federation(InProcessFederation(X, y, DATA.groups), path, resume=True)


@pytest.mark.filterwarnings("ignore:No answer of site 's'. it does not answer gradient_sums")
@pytest.mark.filterwarnings("ignore:checkpoint=.* not all rows are compared, it does not answer")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_policy_without_the_question(elsewhere, tmp_path, journals):
    """It ends no fit; sums of the features are compared."""
    policy = SitePolicy(calls={*CALLS, *ROW_CALLS} - {GradientSums.name})
    path, model = tmp_path / "fit", partial(of, "PartialPoolingRegressor")

    def clients(shift=0.0):
        rows = DATA.X + shift, DATA.y, DATA.groups
        if elsewhere:
            return RemoteFederation([Wire(Given("s", rows, policy))])
        return InProcessFederation(*rows, policy=policy)

    cut_off(model(), clients(), path, journals, 12)
    with pytest.raises(CheckpointError, match="a place answers moments otherwise than before"):
        resume(path, model(), clients(0.1))
    found = resumed(model(), clients(), path, journals)
    assert_array_equal(found.params_, model().fit_federation(clients()).params_)


def test_sites_in_another_order(tmp_path, journals):
    """A server that is started again may meet them so: no sum depends on it, to the last bit."""
    path, model = tmp_path / "fit", partial(of, "IFCARegressor")
    wanted = model().fit_federation(wire_federation(3), path)
    calls = journals[-1].n_added
    cut_off(model(), wire_federation(3), path, journals, calls // 2)
    found = resumed(model(), wire_federation(3, -1), path, journals)
    assert journals[-1].n_found + journals[-1].n_added == calls
    assert_array_equal(found.params_, wanted.params_)
    assert_array_equal(model().fit_federation(wire_federation(3, -1)).params_, wanted.params_)


def test_a_checkpoint_holds_no_other_classes(begun, journals):
    """What names a class, even one that messages may hold, is refused and not made."""
    path, _ = begun
    value = journal.dumps({"value": Location(), "bytes": (0, 0)}, None)
    with path.open("ab") as file:
        file.write(journal._record(digest("key"), value))
    found = Journal(path, journals[-1].estimator, 0, True)
    with pytest.raises(CheckpointError, match="Location, which is not trusted here"):
        found.take(digest("key"))
    found.close(False)


def test_bad_arguments(tmp_path):
    fit = FedAvgRegressor().fit_federation
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        fit(here(), resume=True)
    with pytest.raises(ValueError, match="every must be a number of seconds .*, got -1"):
        fit(here(), tmp_path / "fit", every=-1)
    with pytest.raises(CheckpointError, match="its folder is not there"):
        fit(here(), tmp_path / "none" / "fit")
    with pytest.raises(TypeError, match="federation must be one of"):
        fit(DATA.X, tmp_path / "fit")


# ------------------------------------------------------------------------- full disks


def full_disk(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_the_checkpoint_and_not_the_fit(tmp_path, journals, monkeypatch, uncut):
    """A warning says so, once; what was written is whole, and a later write may succeed."""
    path, fsync, times = tmp_path / "fit", os.fsync, []

    def full(number):
        times.append(number)
        (full_disk if 5 < len(times) < 9 else fsync)(number)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.warns(UserWarning, match=r"could not be written \(.*No space left") as caught:
            cut_off(of("IFCARegressor"), here(), path, journals, 20)
    assert len(caught) == 1
    assert_same(resume(path), uncut)


def test_what_a_full_disk_has_left_is_taken_away(tmp_path, monkeypatch):
    """Behind a shorter record nothing is left of a longer one that was given up."""
    path = tmp_path / "fit"
    first = Journal(path, "x", 0, False)
    first.begin({})
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="could not be written"):
        patch.setattr(os, "fsync", full_disk)
        first.add(digest("long"), np.zeros(1000))
    first.add(digest("short"), np.arange(3.0))
    first.close(False)
    again = Journal(path, "x", 0, True)
    assert again.take(digest("long")) is None
    assert_array_equal(again.take(digest("short")), np.arange(3.0))
    again.close(True)


def test_a_fit_that_fails_keeps_its_checkpoint(tmp_path):
    """What was answered until then is written, so that the fit can go on when clients are back."""
    path, model = tmp_path / "fit", of("IFCARegressor")
    with pytest.raises(FederationError, match="min_clients=9"):
        model.fit_federation(losing(12, retries=2, min_clients=9)[0], path)
    assert path.stat().st_size > 1000
    found = model.fit_federation(elsewhere("IFCARegressor"), path, resume=True)
    assert np.isfinite(found.params_).all()


# ------------------------------------------------------------------------------- one fit at a time


BOUNDS = {"features": (-4.0, 4.0), "target": (-20.0, 20.0)}


def model():
    return of("IFCARegressor")


class Meddled(InProcessFederation):
    """A federation in the middle of whose fit something else happens, once."""

    def rows(self, *args):
        if self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()
        return super().rows(*args)


#: Takes a journal, says so, and waits; then fits with room for so many bytes in a file, which the
#: operating system enforces, and is killed.
HOLD_AND_FILL = f"""
import os, resource, signal, sys, warnings
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from cases import DATA, make
from skcfl.federation import InProcessFederation
from skcfl.federation.journal import Journal, digest

held, filled, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
journal = Journal(held, "x", 0, True)
journal.begin({{}})
journal.add(digest("a question"), 1.0)
print("written", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
Journal.close = lambda self, ended: os.kill(os.getpid(), signal.SIGKILL)
warnings.simplefilter("always")
federation = InProcessFederation(DATA.X, DATA.y, DATA.groups)
make("IFCARegressor", max_iter=6).fit_federation(federation, filled, every=0)
"""


def test_a_process_that_is_killed(tmp_path, uncut):
    """Its checkpoints are kept from others while it runs; after ``kill -9`` they go on.

    One of them had no more room: part of a record was written, which is taken away, and the fit
    ended.  It goes on in this process, which hashes by another seed.
    """
    held, filled, room = tmp_path / "held", tmp_path / "filled", 20_000
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_AND_FILL, held, filled, str(room)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert other.stdout.readline() == b"written\n"
        data = held.read_bytes()
        for resume in (True, False):
            with pytest.raises(CheckpointError) as caught:
                model().fit_federation(here(), held, resume=resume)
            assert repr(str(held)) in str(caught.value)
            assert f"of a fit that is running (process {other.pid} on " in str(caught.value)
        assert held.read_bytes() == data
        errors = other.communicate(b"\n")[1].decode()
    finally:
        other.kill()
        other.communicate()
    assert other.returncode == -signal.SIGKILL, errors
    assert held.with_name("held.lock").exists()  # stale: nobody has it
    journal = Journal(held, "x", 0, True)
    assert journal.n_added == 0 and held.read_bytes() == data
    journal.close(True)
    assert errors.count("could not be written ([Errno 27] File too large)") == 1
    assert 0.5 * room < filled.stat().st_size <= room
    assert stat.S_IMODE(filled.stat().st_mode) == 0o600
    found = model().fit_federation(here(), filled, resume=True)
    assert_array_equal(found.params_, uncut.params_)
    assert_array_equal(found.labels_, uncut.labels_)
    assert found.calls_ == uncut.calls_
    assert list(tmp_path.iterdir()) == []


def test_a_fit_beside_another_one_has_no_part_in_its_checkpoint(tmp_path, uncut):
    """They share the federation; whichever ends first takes its own checkpoint away only."""
    federation, other = Meddled(DATA.X, DATA.y, DATA.groups), model().set_params(random_state=1)
    beside = clone(other)
    federation.meddle = lambda: beside.fit_federation(federation)
    found = model().fit_federation(federation, tmp_path / "fit")
    other.fit_federation(here())
    assert beside.calls_ == other.calls_
    assert_array_equal(beside.params_, other.params_)
    assert_array_equal(found.params_, uncut.params_)


def test_a_refused_fit_leaves_the_checkpoint_to_others(tmp_path):
    """Errors before and after the hello give the lock back."""
    path = tmp_path / "fit"
    path.write_bytes(b"PK")
    for match in ("resume=True goes on", "is no checkpoint"):
        with pytest.raises(CheckpointError, match=match):
            model().fit_federation(here(), path, resume=match.startswith("is"))
    path.unlink()
    with pytest.raises(ValueError, match="fewer|n_clusters"):
        KFED(n_clusters=10**6).fit_federation(here(), path)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------- full disks


@pytest.mark.parametrize(
    ("what", "name", "error", "message"),
    [
        ("open", "fit.new", errno.ENOSPC, "No space left"),
        ("fsync", "", errno.ENOSPC, "No space left"),
        ("open", "", errno.EROFS, "Read-only"),
    ],
)
def test_a_disk_where_nothing_can_be_written(what, name, error, message, tmp_path, monkeypatch):
    """An error that names the file, before the clients compute, and nothing left of it."""
    given = getattr(os, what)

    def full(place, *args):
        if str(place).endswith(name):
            raise OSError(error, os.strerror(error))
        return given(place, *args)

    with monkeypatch.context() as patched:
        patched.setattr(os, what, full)
        with pytest.raises(CheckpointError, match=rf"fit' cannot be written \(.*{message}"):
            model().fit_federation(here(), tmp_path / "fit")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot be read \(.*directory"):
        model().fit_federation(here(), tmp_path, resume=True)


# -------------------------------------------------------------------- private clients


def private(**options):
    return here().private(200.0, 1e-2, bounds=BOUNDS, random_state=0, **options)


@pytest.mark.parametrize(
    ("federation", "estimator", "resume"),
    [
        (private, FedAvgRegressor, False),
        (lambda: private().masked(3), FedAvgRegressor, True),
        (lambda: here().masked(3, BOUNDS), PartialPoolingRegressor, False),
    ],
    ids=["private", "private and masked", "masked"],
)
def test_private_clients_have_no_checkpoint(federation, estimator, resume, tmp_path):
    """It is refused before anything is asked: no file, nothing spent, and then a fit as ever."""
    clients, path = federation(), tmp_path / "fit"
    before = clients.hello("regressor").privacy["left"]
    with pytest.raises(ValueError, match="their account would pay twice, and masks are made for"):
        estimator(random_state=0).fit_federation(clients, path, resume=resume)
    assert clients.hello("regressor").privacy["left"] == before == 1.0
    assert list(tmp_path.iterdir()) == [] and clients.journal is None
    found = estimator(random_state=0).fit_federation(clients)
    assert np.isfinite(found.cluster_params_).all()


def test_a_checkpoint_of_clients_that_became_private(tmp_path):
    """Answers that came without privacy are not read in a private fit; the file stays."""
    path = tmp_path / "fit"
    journal = Journal(path, "x", 0, False)
    journal.begin({})
    journal.add(digest("a question"), 1.0)
    journal.close(False)
    data = path.read_bytes()
    with pytest.raises(CheckpointError, match="is of another estimator"):
        FedAvgRegressor().fit_federation(private(), path, resume=True)
    assert path.read_bytes() == data


def test_methods_that_cannot_fit_private_clients_say_so_first(tmp_path):
    with pytest.raises(PrivacyError, match="single answers"):
        KFED(n_clusters=2).fit_federation(private(), tmp_path / "fit")
    assert list(tmp_path.iterdir()) == []
