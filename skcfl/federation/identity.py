"""Who signs the keys of masked sums: certificates that sites have from their transport."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .masks import need_cryptography
from .sites import Refused


class SiteIdentity:
    """Certificate of a site, by which it signs the keys of its masks and verifies the others'.

    A server that carries unsigned keys may put its own in their place. Any object with the methods
    `sign` and `verify` takes the place of this one, for sites with other means.

    Parameters
    ----------
    certificate, key, root : path-like
        Files of the site's certificate, its private key without a password, and the certificate
        of who issued it, in PEM. NVFlare's kits have them as ``startup/client.crt``,
        ``startup/client.key`` and ``startup/rootCA.pem``.
    parties : collection of str
        Names of all the sites that may take part, the common names of their certificates; the
        server's is none of them.

    Examples
    --------
    The policy of a site::

        identity = SiteIdentity.of_kit("/opt/north", parties=["north", "south", "east"])
        privacy = ClientPrivacy(4.0, bounds=bounds, masked=3, identity=identity)
        policy = SitePolicy(privacy=privacy)
    """

    def __init__(
        self,
        certificate: str | os.PathLike[str],
        key: str | os.PathLike[str],
        root: str | os.PathLike[str],
        parties: Collection[str],
    ) -> None:
        if isinstance(parties, str) or not all(isinstance(name, str) for name in parties):
            raise ValueError(f"parties must be names of sites, got {parties!r:.80}.")
        self.parties = frozenset(parties)
        if len(self.parties) < 2:
            raise ValueError(f"parties must name two sites or more, got {sorted(self.parties)}.")
        need_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        self._certificate = Path(certificate).read_bytes()
        self._key: Any = load_pem_private_key(Path(key).read_bytes(), password=None)
        self._root = x509.load_pem_x509_certificate(Path(root).read_bytes())
        self.name = self._named(self._certificate)[0]

    @classmethod
    def of_kit(cls, folder: str | os.PathLike[str], parties: Collection[str]) -> SiteIdentity:
        """Identity by the files of one of NVFlare's kits.

        Parameters
        ----------
        folder : path-like
            The kit.
        parties : collection of str
            As of the class.

        Returns
        -------
        identity : SiteIdentity
        """
        start = Path(folder) / "startup"
        return cls(start / "client.crt", start / "client.key", start / "rootCA.pem", parties)

    def __repr__(self) -> str:
        return f"SiteIdentity({self.name!r}, parties={sorted(self.parties)})"

    def sign(self, message: bytes) -> tuple[bytes, bytes]:
        """Certificate of the site, and its signature of a message.

        Parameters
        ----------
        message : bytes
            What is signed.

        Returns
        -------
        certificate, signature : bytes
        """
        return self._certificate, self._key.sign(message, *_scheme(self._key))

    def verify(self, message: bytes, certificate: bytes, signature: bytes) -> str:
        """Name of the site that has signed a message.

        Parameters
        ----------
        message, certificate, signature : bytes
            What was signed, and what :meth:`sign` returned at the other site.

        Returns
        -------
        name : str

        Raises
        ------
        Refused
            If the certificate is not of the same issuer, not valid now or not that of a party, or
            the signature is not of its key.
        """
        from cryptography.exceptions import InvalidSignature

        name, public = self._named(certificate)
        try:
            public.verify(signature, message, *_scheme(public))
        except (InvalidSignature, ValueError, TypeError) as error:
            raise Refused(f"the key of {name!r} in masked sums has a false signature") from error
        return name

    def _named(self, certificate: bytes) -> tuple[str, Any]:
        """Name and public key of a certificate of a party."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.x509.oid import NameOID

        try:
            found = x509.load_pem_x509_certificate(certificate)
            found.verify_directly_issued_by(self._root)
            (name,) = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except (InvalidSignature, ValueError, TypeError) as error:
            raise Refused("a key of masked sums has no certificate of the same issuer") from error
        if not found.not_valid_before_utc <= datetime.now(UTC) <= found.not_valid_after_utc:
            raise Refused(f"the certificate of {name.value!r} is not valid now")
        if name.value not in self.parties:
            raise Refused(
                f"{name.value!r} has signed a key of masked sums and is none of the parties, "
                f"{', '.join(sorted(self.parties))}"
            )
        return str(name.value), found.public_key()


def _scheme(key: Any) -> tuple[Any, ...]:
    """Padding and hash of the signatures of a key, private or public."""
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA256

    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH), SHA256()
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return (ec.ECDSA(SHA256()),)
    return ()  # Ed25519 and Ed448 have one scheme
