"""Files of accounts: what is wrong with one releases nothing."""

import json

import numpy as np
import pytest
from private_clients import BOUNDS
from site_tables import Given, Wire

from skcfl import FedAvgRegressor
from skcfl.exceptions import FederationError, PrivacyError
from skcfl.federation import ClientPrivacy, InProcessFederation, SitePolicy
from skcfl.federation.remote import RemoteFederation

X = np.random.default_rng(0).normal(size=(60, 2))
ROWS = X, X.sum(axis=1), np.repeat(np.arange(20), 3)


def clients(path, **how):
    privacy = ClientPrivacy(400.0, 1e-3, bounds=BOUNDS, account=path, random_state=0, **how)
    return InProcessFederation(*ROWS, policy=SitePolicy(privacy=privacy))


@pytest.mark.parametrize("before, after", [(1.0, 0.5), (0.5, 1.0), (0.5, 0.2), (None, 0.5)])
def test_books_are_of_one_participation(before, after, tmp_path):
    """None is a file of an older version, which notes none."""
    path = tmp_path / "account.json"
    books = {"spent": 0.01, "multiplier": 10.0, "participation": before}
    if before is None:
        del books["participation"]
    path.write_text(json.dumps(books))
    allowed = "1.0" if before is None else str(before)
    with pytest.raises(PrivacyError, match=rf"account\.json'.*={allowed}.* got {after}"):
        FedAvgRegressor().fit_federation(clients(path, participation=after))
    assert json.loads(path.read_text()) == books


def test_books_note_the_participation(tmp_path):
    path = tmp_path / "account.json"
    FedAvgRegressor(max_iter=3).fit_federation(clients(path))
    assert json.loads(path.read_text())["participation"] == 1.0
    with pytest.raises(PrivacyError, match=r"spent with participation=1\.0.* got 0\.1"):
        clients(path, participation=0.1).hello("regressor")
    path.write_text('{"spent": 0.0, "multiplier": null}')  # of an older version, and not used
    clients(path, participation=0.1).hello("regressor")


DAMAGED = ["", "{}", "[]", "null", '{"spent": 0.3', '{"spent": null}', '{"spent": "0"}']
DAMAGED += [f'{{"spent": {spent}, "multiplier": 1.0}}' for spent in ("NaN", "-5", "Infinity")]
DAMAGED += ['{"spent": 1' + 400 * "0" + "}", 10**5 * "["]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_books(text, tmp_path):
    path = tmp_path / "account.json"
    path.write_text(text)
    with pytest.raises(PrivacyError, match=r"account\.json' must be a file of JSON with 'spent'"):
        FedAvgRegressor().fit_federation(clients(path))
    assert path.read_text() == text


@pytest.mark.filterwarnings("ignore:No answer of site 's'")
def test_a_site_says_that_its_account_releases_nothing_and_not_where_it_is(tmp_path):
    path = tmp_path / "account.json"
    path.write_text("[]")
    privacy = ClientPrivacy(400.0, 1e-3, bounds=BOUNDS, account=path, random_state=0)
    site = Wire(Given("s", ROWS, SitePolicy(privacy=privacy)))
    with pytest.raises(FederationError, match="site 's': its account releases nothing, see its"):
        FedAvgRegressor().fit_federation(RemoteFederation([site]))
    assert site.replies and not any(b"account.json" in reply for reply in site.replies)
