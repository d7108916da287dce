"""Servers that want TLS and a password, and the certificates for them, made for one run."""

from __future__ import annotations

import shutil
import ssl
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from scripts.servers.base import Server
from scripts.servers.kafka import Kafka
from scripts.servers.rabbitmq import RabbitMQ

USER, PASSWORD = "semel", "r1ght-password"
#: What the certificates are for; 127.0.0.1 is another name.
HOST = "localhost"


class Authority:
    """Signs certificates. `file` is what its clients trust."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._own = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.file = self._write(f"{name}.pem", _pem(self._own))

    def certify(self, host: str) -> tuple[Path, Path]:
        """Return the files of a certificate for *host* and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain = _pem(self._sign(name, key, names)) + _pem(self._own)
        return self._write("server.pem", chain), self._write("server.key", secret)

    def context(self) -> ssl.SSLContext:
        """Return what a client that trusts only this authority connects with."""
        return ssl.create_default_context(cafile=str(self.file))

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        path.chmod(0o644)  # servers run as users of their own
        return path


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


class Own(Server):
    """One that the environment does not name: it names the server of all tests."""

    @property
    def url(self) -> str:
        return self.address(self.port())


class SecureKafka(Own, Kafka):
    """Kafka with a listener for SASL/PLAIN over TLS beside the plain one."""

    ports: ClassVar = {**Kafka.ports, "secure": 21094}
    certificate: ClassVar[tuple[Path, Path]]

    def initialise(self) -> None:
        super().initialise()
        store = self.folder / "store.pem"
        store.write_bytes(b"".join(path.read_bytes() for path in reversed(self.certificate)))
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        plain, control = self.port(), self.port("controller")
        with self._settings.open("a") as settings:
            settings.write(
                f"listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{control},"
                f"SASL_SSL://127.0.0.1:{self.port('secure')}\n"
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{plain},"
                f"SASL_SSL://{HOST}:{self.port('secure')}\n"
                "listener.security.protocol.map="
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL\n"
                "sasl.enabled.mechanisms=PLAIN\n"
                f"listener.name.sasl_ssl.plain.sasl.jaas.config={login} "
                f'user_{USER}="{PASSWORD}";\n'
                f"ssl.keystore.type=PEM\nssl.keystore.location={store}\n"
            )


class SecureRabbitMQ(Own, RabbitMQ):
    """RabbitMQ with a listener for TLS beside the plain one."""

    ports: ClassVar = {**RabbitMQ.ports, "secure": 21673}
    certificate: ClassVar[tuple[Path, Path]]

    def initialise(self) -> None:
        super().initialise()
        chain, key = self.certificate
        with (self.folder / "rabbitmq.conf").open("a") as settings:
            settings.write(
                f"listeners.ssl.1 = 127.0.0.1:{self.port('secure')}\n"
                f"ssl_options.cacertfile = {chain}\n"
                f"ssl_options.certfile = {chain}\n"
                f"ssl_options.keyfile = {key}\n"
                "ssl_options.verify = verify_none\n"
            )


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other users can read, as servers are."""
    with tempfile.TemporaryDirectory(prefix="semel-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def running(kind: type[Server], folder: Path) -> Iterator[Server]:
    """Start a server of its own kind, and kill it at the end."""
    server = kind(folder)
    if not server.installed():
        pytest.skip(f"no {server.name} on this machine")
    try:
        with warnings.catch_warnings():
            # It goes on when the object that started it is gone, as `scripts/services` wants it.
            warnings.simplefilter("ignore", ResourceWarning)
            server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
