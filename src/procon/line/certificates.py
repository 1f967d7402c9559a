"""Certificates of the OPC UA server: its own, made at the first start, and those of the clients that it trusts.

A client is let in if its certificate lies in ``trusted/``, as .der or .pem, exactly as the client sends it.
"""

import socket
from pathlib import Path
from typing import Any

APPLICATION = "urn:procon:line:server"
_ENDINGS = (".der", ".pem", ".crt", ".cer")


class Certificates:
    """A folder with ``own.der``, ``own-key.pem`` and ``trusted/``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trusted = folder, folder / "trusted"

    async def apply(self, server: Any) -> None:
        """Have a server sign and encrypt, and trust only these clients."""
        from asyncua import ua
        from asyncua.crypto.cert_gen import setup_self_signed_certificate
        from cryptography.x509.oid import ExtendedKeyUsageOID

        self.trusted.mkdir(parents=True, exist_ok=True)
        key, certificate = self.folder / "own-key.pem", self.folder / "own.der"
        use, names = [ExtendedKeyUsageOID.SERVER_AUTH], {"organizationName": "ProCon line"}
        await setup_self_signed_certificate(key, certificate, APPLICATION, socket.gethostname(), use, names)
        key.chmod(0o600)
        server.set_security_policy([ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt])
        await server.load_certificate(str(certificate))
        await server.load_private_key(str(key))
        server.set_certificate_validator(self.check_client)

    async def check_client(self, certificate: Any, application: Any) -> None:
        """Refuse a client whose certificate is out of date, of another application, or not in the folder."""
        from asyncua import ua
        from asyncua.common.utils import ServiceError
        from asyncua.crypto.validator import CertificateValidator, CertificateValidatorOptions
        from cryptography.hazmat.primitives.hashes import SHA256

        await CertificateValidator(CertificateValidatorOptions.BASIC_VALIDATION).validate(certificate, application)
        if certificate.fingerprint(SHA256()) not in self.fingerprints():
            raise ServiceError(ua.StatusCodes.BadCertificateUntrusted)

    def fingerprints(self) -> set[bytes]:
        """Of all certificates in the folder; read again for every client, so none needs a restart."""
        from cryptography import x509
        from cryptography.hazmat.primitives.hashes import SHA256

        found = set()
        for file in self.trusted.iterdir():
            if file.suffix.lower() in _ENDINGS:
                content = file.read_bytes()
                is_text = content.lstrip().startswith(b"-----")
                load = x509.load_pem_x509_certificate if is_text else x509.load_der_x509_certificate
                try:
                    found.add(load(content).fingerprint(SHA256()))
                except ValueError:  # a file that is no certificate trusts nobody
                    continue
        return found
