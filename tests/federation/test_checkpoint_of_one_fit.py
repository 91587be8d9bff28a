"""A checkpoint is written by one fit at a time, and not at all where clients are private."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import DATA, make
from numpy.testing import assert_array_equal

from skcfl import KFED, FedAvgRegressor, PartialPoolingRegressor
from skcfl.exceptions import CheckpointError, PrivacyError
from skcfl.federation import InProcessFederation
from skcfl.federation.file_lock import FileLock
from skcfl.federation.journal import Journal

BOUNDS = {"features": (-4.0, 4.0), "target": (-20.0, 20.0)}


def here(**settings):
    return InProcessFederation(DATA.X, DATA.y, DATA.groups, **settings)


def model():
    return make("IFCARegressor", max_iter=4)


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
make("IFCARegressor", max_iter=4).fit_federation(federation, filled, every=0)
"""


def test_a_process_that_is_killed(tmp_path):
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
    wanted = model().fit_federation(here())
    assert_array_equal(found.params_, wanted.params_)
    assert_array_equal(found.labels_, wanted.labels_)
    assert found.calls_ == wanted.calls_
    assert list(tmp_path.iterdir()) == []


def test_two_fits_of_a_process(tmp_path):
    """The second begins while the first is asking; the first is as without it."""
    path, refused = tmp_path / "fit", []

    class Meddled(InProcessFederation):
        def rows(self, *args):
            if not refused:
                with pytest.raises(CheckpointError, match=f"process {os.getpid()} on") as caught:
                    model().fit_federation(here(), path, resume=True)
                refused.append(caught)
            return super().rows(*args)

    found = model().fit_federation(Meddled(DATA.X, DATA.y, DATA.groups), path)
    assert refused and list(tmp_path.iterdir()) == []
    assert_array_equal(found.params_, model().fit_federation(here()).params_)


def test_a_fit_beside_another_one_has_no_part_in_its_checkpoint(tmp_path):
    """They share the federation; whichever ends first takes its own checkpoint away only."""
    beside = []

    class Meddled(InProcessFederation):
        def rows(self, *args):
            if not beside:
                beside.append(None)
                beside[0] = model().set_params(random_state=1).fit_federation(federation)
            return super().rows(*args)

    federation = Meddled(DATA.X, DATA.y, DATA.groups)
    found = model().fit_federation(federation, tmp_path / "fit")
    wanted = model().set_params(random_state=1).fit_federation(here())
    assert beside[0].calls_ == wanted.calls_
    assert_array_equal(beside[0].params_, wanted.params_)
    assert_array_equal(found.params_, model().fit_federation(here()).params_)


def test_a_link_to_a_checkpoint_is_that_checkpoint(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "fit")
    first = Journal(tmp_path / "fit", "x", 0, False)
    with pytest.raises(CheckpointError, match="is of a fit that is running"):
        Journal(tmp_path / "link", "x", 0, False)
    Journal(tmp_path / "another", "x", 0, False).close(False)
    first.close(False)
    Journal(tmp_path / "link", "x", 0, False).close(False)


def test_a_lock_that_was_deleted_in_between_is_not_held(tmp_path, monkeypatch):
    """Opened before the last holder deleted it: a new one is made, which others see."""
    first, there = FileLock(tmp_path / "fit"), FileLock._is_there
    looked = []

    def late(self):
        if not looked:
            looked.append(os.unlink(tmp_path / "fit.lock"))
        return there(self)

    first.release()
    monkeypatch.setattr(FileLock, "_is_there", late)
    second = FileLock(tmp_path / "fit")
    with pytest.raises(BlockingIOError):
        FileLock(tmp_path / "fit")
    second.release()
    second.release()


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
    ("federation", "estimator"),
    [
        (private, FedAvgRegressor),
        (lambda: private().masked(3), FedAvgRegressor),
        (lambda: here().masked(3, BOUNDS), PartialPoolingRegressor),
    ],
    ids=["private", "private and masked", "masked"],
)
@pytest.mark.parametrize("resume", [False, True])
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
    journal.close(False)
    data = path.read_bytes()
    with pytest.raises(CheckpointError, match="is of another estimator"):
        FedAvgRegressor().fit_federation(private(), path, resume=True)
    assert path.read_bytes() == data


def test_methods_that_cannot_fit_private_clients_say_so_first(tmp_path):
    with pytest.raises(PrivacyError, match="single answers"):
        KFED(n_clusters=2).fit_federation(private(), tmp_path / "fit")
    assert list(tmp_path.iterdir()) == []
