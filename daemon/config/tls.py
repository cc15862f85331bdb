"""The certificate that the daemon shows, tried before anybody calls.

Promise: what these functions accept, the HTTPS server can use. Limit: clients may trust other authorities than this
host does; `tls_ca` says which.
"""

import contextlib
import ssl
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from slurm_elastic.protocol.errors import ConfigError

from .fields import PATH, text


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    table: ClassVar[str] = "server"

    tls_cert: str = text("", *PATH)
    """Certificate (PEM, with the chain behind it) for HTTPS on `listen`. Empty: plain HTTP. Its name must be the host
    in `url`."""

    tls_key: str = text("", *PATH)
    """Private key (PEM) of `tls_cert`, readable by the daemon's user alone."""

    tls_ca: str = text("", *PATH)
    """Certificates (PEM) of the authority that signed `tls_cert`; clients get them in client.json. Empty: clients trust
    what their system trusts."""


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """What `tls_cert` and `tls_key` make. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A key with a passphrase would be asked for on a terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: b"")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"tls_cert={settings.tls_cert} with tls_key={settings.tls_key} cannot be used ({_why(error)}); accepted: a "
            "certificate and its private key in PEM, without a passphrase"
        ) from None
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """What clients check the certificate with. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:
        raise ConfigError(
            f"tls_ca={settings.tls_ca} cannot be used ({_why(error)}); accepted: certificates in PEM"
        ) from None


def try_handshake(settings: TlsSettings, url: str) -> None:
    """A client that calls this URL shakes hands with the daemon, in memory. Raises ConfigError where it would not."""
    host = urlsplit(url).hostname or ""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(settings).wrap_bio(to_server, to_client, server_side=True)
    client = client_context(settings).wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(8):
        try:
            client.do_handshake()
            return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise ConfigError(
                f"tls_cert={settings.tls_cert} is not trusted by clients of {url} ({_why(error)}); accepted: a "
                "certificate of that host, with its chain, that tls_ca or the system's authorities have signed"
            ) from None
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
    raise ConfigError(f"tls_cert={settings.tls_cert}: clients of {url} and the daemon did not agree on a connection")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return getattr(error, "strerror", None) or str(error)
