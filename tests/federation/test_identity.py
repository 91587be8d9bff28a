"""Keys of masked sums that sites sign: a server that puts others in their place is found."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from private_clients import grouped, places_of

from skcfl.exceptions import PrivacyError
from skcfl.federation import ClientPrivacy, InProcessFederation, SiteIdentity, SitePolicy
from skcfl.federation.masked_sums import MaskedPlaces
from skcfl.federation.masks import MaskParty
from skcfl.federation.sites import Endpoint, Refused

x509 = pytest.importorskip("cryptography.x509")

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa  # noqa: E402
from cryptography.hazmat.primitives.hashes import SHA256  # noqa: E402
from cryptography.hazmat.primitives.serialization import (  # noqa: E402
    Encoding,
    NoEncryption,
    PrivateFormat,
)

SITES = ("north", "south", "east")
KINDS = {
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
    "ec": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}


def named(name):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def certified(name, key, issuer_key, days=30, began=1):
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        named("root"), named(name), key.public_key(), x509.random_serial_number()
    )
    builder = builder.not_valid_before(now - timedelta(days=began))
    builder = builder.not_valid_after(now + timedelta(days=days))
    how = None if isinstance(issuer_key, ed25519.Ed25519PrivateKey) else SHA256()
    return builder.sign(issuer_key, how)


class Kits:
    """A project with its root certificate, and kits as NVFlare's."""

    def __init__(self, folder, kind="ec"):
        self.folder, self.make = folder, KINDS[kind]
        self.root_key = self.make()
        self.root = certified("root", self.root_key, self.root_key)

    def kit(self, name, **how):
        key = self.make()
        made = certified(name, key, self.root_key, **how)
        start = self.folder / name / "startup"
        start.mkdir(parents=True, exist_ok=True)
        pem = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        (start / "client.key").write_bytes(key.private_bytes(*pem))
        (start / "client.crt").write_bytes(made.public_bytes(Encoding.PEM))
        (start / "rootCA.pem").write_bytes(self.root.public_bytes(Encoding.PEM))
        return self.folder / name


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    made = Kits(tmp_path_factory.mktemp("kits"))
    return {name: SiteIdentity.of_kit(made.kit(name), SITES) for name in SITES}, made


@pytest.mark.parametrize("kind", KINDS)
def test_signatures_of_certificates(kind, tmp_path):
    made = Kits(tmp_path, kind)
    north, south = (SiteIdentity.of_kit(made.kit(name), SITES) for name in SITES[:2])
    certificate, signature = north.sign(b"message")
    assert south.verify(b"message", certificate, signature) == "north"
    assert "north" in repr(north)
    other = signature[:-1] + bytes([signature[-1] ^ 1])
    theirs = south.sign(b"message")[0]
    for by, message, *proof in (
        ("north", b"another message", certificate, signature),
        ("north", b"message", certificate, other),
        ("south", b"message", theirs, signature),
    ):
        with pytest.raises(Refused, match=f"'{by}' .* false signature"):
            (south if by == "north" else north).verify(message, *proof)


def test_certificates_of_others_are_refused(kits, tmp_path):
    identities, made = kits
    stranger = SiteIdentity.of_kit(Kits(tmp_path).kit("south"), SITES)
    for proof in (stranger.sign(b"m"), (b"", b""), (b"no certificate", b"")):
        with pytest.raises(Refused, match="same issuer"):
            identities["north"].verify(b"m", *proof)
    # A server has a certificate of the same root, of its own name.
    server = SiteIdentity.of_kit(made.kit("localhost"), [*SITES, "localhost"])
    with pytest.raises(Refused, match="'localhost' .* none of the parties, east, north, south"):
        identities["north"].verify(b"m", *server.sign(b"m"))
    with pytest.raises(Refused, match="not valid now"):
        SiteIdentity.of_kit(made.kit("late", days=-1, began=9), ["late", "north"])
    for parties in ("north", ["north"], [1, 2]):
        with pytest.raises(ValueError, match="parties must"):
            SiteIdentity.of_kit(made.folder / "north", parties)


class Signing(Endpoint):
    """A place whose sums are masked, and whose key is signed."""

    def __init__(self, identity):
        self.party = MaskParty(2, identity=identity)

    def mask_key(self):
        return self.party.introduction()

    def mask_agree(self, *arguments):
        self.party.agree(*arguments)


def test_a_server_that_swaps_keys_is_found(kits):
    identities, _ = kits
    signing = identities.values()
    MaskedPlaces([Signing(each) for each in signing], 2)
    false, honest, again = (
        MaskParty(2, identity=each).introduction()
        for each in (None, identities["south"], identities["north"])
    )
    swapped, nobody = {**honest, "key": false["key"]}, (None, None)
    for parties, said, text in (
        (signing, swapped, "'south' in masked sums has a false signature"),
        (signing, false, "same issuer"),  # unsigned
        (signing, again, "signed several keys"),  # by a place that is there already
        (nobody, {"key": false["key"]}, "something else than a key"),
        (nobody, false["key"], "something else than a key"),
    ):
        places = [Signing(each) for each in parties]
        places[1].mask_key = lambda said=said: said
        with pytest.raises(PrivacyError, match=text):
            MaskedPlaces(places, 2)
    place = Signing(identities["north"])
    keys = np.array([place.mask_key()["key"], false["key"]])
    for proofs in (None, [], ["a", "b"], [(1, 2), (3, 4)]):
        with pytest.raises(Refused, match="not signed"):
            place.party.agree(0, keys, proofs)


def test_identities_are_declared_with_masks(kits):
    identity = kits[0]["north"]
    bounds = {"features": (-2, 2), "target": (-2, 2)}
    with pytest.raises(ValueError, match="identity .* needs masked"):
        ClientPrivacy(4.0, bounds=bounds, identity=identity)
    with pytest.raises(ValueError, match="sign and verify"):
        ClientPrivacy(4.0, bounds=bounds, masked=3, identity="north")
    privacy = ClientPrivacy(4.0, bounds=bounds, masked=3, identity=identity)
    assert privacy.with_masks(4).identity is identity
    policy = SitePolicy(privacy=privacy)
    (place,) = places_of(InProcessFederation(*grouped(), policy=policy))
    said = place.mask_key()
    proof = said["certificate"].tobytes(), said["signature"].tobytes()
    message = b"skcfl: key of masked sums: " + said["key"].tobytes()
    assert kits[0]["south"].verify(message, *proof) == "north"
