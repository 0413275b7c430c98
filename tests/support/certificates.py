"""Authorities and certificates for tests, made as they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """An authority, and the certificates that it gives.

    Args:
        name: its name.
    """

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._cert = self._signed(self._name, self._key, is_authority=True)

    @property
    def pem(self) -> bytes:
        """Its own certificate."""
        return self._cert.public_bytes(serialization.Encoding.PEM)

    def give(self, directory: Path, name: str = "service", *others: str) -> tuple[Path, Path]:
        """Write a certificate for 127.0.0.1 and its key, in the place of those that are there; return their paths.

        Args:
            name: of the subject, and of the files.
            others: alternative names: URIs where they have a colon or `uri=` before them, else names of hosts.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        paths = directory / f"{name}.pem", directory / f"{name}.key"
        cert = self._signed(_named(name), key, others=others).public_bytes(serialization.Encoding.PEM)
        for path, content in zip(paths, (cert, private), strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.replace(path)
        return paths

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        is_authority: bool = False,
        others: Sequence[str] = (),
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            names: list[x509.GeneralName] = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
            names += [
                x509.UniformResourceIdentifier(each.removeprefix("uri="))
                if ":" in each or each.startswith("uri=")
                else x509.DNSName(each)
                for each in others
            ]
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
