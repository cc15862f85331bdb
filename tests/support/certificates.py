"""A self-signed certificate of localhost, for tests of TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[str, str]:
    """Paths of the certificate and of its key, made in this folder; installs openssl where it is missing."""
    if shutil.which("openssl") is None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "openssl"], check=True, timeout=280)
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
               "-keyout", key, "-out", cert]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return str(cert), str(key)
