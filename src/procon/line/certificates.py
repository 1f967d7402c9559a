"""Certificates of the OPC UA server: its own, made at the first start, and those of the clients that it trusts.

A client is let in if its certificate lies in ``trusted/``, as .der or .pem, exactly as the client sends it.
"""

import os
import shutil
import socket
from pathlib import Path
from typing import Any

from procon.errors import ConfigError, OutputError
from procon.files import describe_os_error, remove_partial_files, temporary_folder
from procon.names import show_name

APPLICATION = "urn:procon:line:server"
_ENDINGS = (".der", ".pem", ".crt", ".cer")


class Certificates:
    """A folder with ``own.der``, ``own-key.pem`` and ``trusted/``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trusted = folder, folder / "trusted"
        self.key, self.certificate = folder / "own-key.pem", folder / "own.der"

    async def apply(self, server: Any) -> None:
        """Have a server sign and encrypt, and trust only these clients."""
        from asyncua import ua

        await self.renew()
        server.set_security_policy([ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt])
        await server.load_certificate(str(self.certificate))
        await server.load_private_key(str(self.key))
        server.set_certificate_validator(self.check_client)

    async def renew(self) -> None:
        """Make what is missing or out of date; a crash or a full disk leaves the old files."""
        try:
            self.trusted.mkdir(parents=True, exist_ok=True)
            remove_partial_files(self.folder)
            with temporary_folder(self.folder) as place:  # nobody else can read the key while it is written
                await self._renew_in(place)
        except OSError as error:
            raise OutputError(error.errno, describe_os_error(error)) from None
        except (ValueError, TypeError) as error:  # a key with a password raises a TypeError
            remedy = f"remove it and {show_name(self.certificate.name)}, start again, and trust the new one at clients"
            raise ConfigError(f"{show_name(self.key)}: is damaged, or its certificate ({error}); {remedy}") from None

    async def _renew_in(self, place: Path) -> None:
        from asyncua.crypto.cert_gen import setup_self_signed_certificate
        from cryptography.x509.oid import ExtendedKeyUsageOID

        use, names = [ExtendedKeyUsageOID.SERVER_AUTH], {"organizationName": "ProCon line"}
        key, certificate = place / self.key.name, place / self.certificate.name
        for path, draft in ((self.key, key), (self.certificate, certificate)):
            if path.exists():
                shutil.copyfile(path, draft)
        await setup_self_signed_certificate(key, certificate, APPLICATION, socket.gethostname(), use, names)
        key.chmod(0o600)
        # The certificate first: if there is no key, both are made again.
        for path, draft in ((self.certificate, certificate), (self.key, key)):
            if not path.exists() or path.read_bytes() != draft.read_bytes():
                with draft.open("rb+") as stream:
                    os.fsync(stream.fileno())
                draft.replace(path)

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
        for file in self.trusted.glob("*"):
            if file.suffix.lower() in _ENDINGS:
                try:
                    content = file.read_bytes()
                    is_text = content.lstrip().startswith(b"-----")
                    load = x509.load_pem_x509_certificate if is_text else x509.load_der_x509_certificate
                    found.add(load(content).fingerprint(SHA256()))
                except (ValueError, OSError):  # a file that is no certificate trusts nobody
                    continue
        return found
