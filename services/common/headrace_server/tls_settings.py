"""TLS settings of both services, and the files that result from them, which `tls` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

ClientAuth = Literal["none", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS settings; the settings of each service inherit from them."""

    tls_cert_file: Annotated[
        str, Field(description="Certificate of this process followed by its chain, PEM. If empty, TLS is off.")
    ] = ""
    tls_key_file: Annotated[str, Field(description="Private key of `tls_cert_file`, PEM, without a passphrase.")] = ""
    tls_client_auth: Annotated[
        ClientAuth, Field(description="Whether clients must present a certificate signed by `tls_ca_file`.")
    ] = "none"
    tls_ca_file: Annotated[str, Field(description="CA certificates, PEM, that sign clients' certificates.")] = ""
    internal_tls_cert_file: Annotated[
        str,
        Field(
            description="Certificate presented to brokers and coordinators, for server and client authentication. "
            "Default: `tls_cert_file`."
        ),
    ] = ""
    internal_tls_key_file: Annotated[
        str, Field(description="Private key of `internal_tls_cert_file`. Default: `tls_key_file`.")
    ] = ""
    internal_tls_ca_file: Annotated[
        str,
        Field(
            description="CA certificates that sign certificates of brokers and coordinators. Default: `tls_ca_file`."
        ),
    ] = ""
    etcd_tls_ca_file: Annotated[
        str, Field(description="CA certificates that sign etcd's certificates. If empty, connect to etcd without TLS.")
    ] = ""
    etcd_tls_cert_file: Annotated[
        str, Field(description="Client certificate presented to etcd, if etcd requires one.")
    ] = ""
    etcd_tls_key_file: Annotated[str, Field(description="Private key of `etcd_tls_cert_file`.")] = ""

    def check_tls(self) -> None:
        """Check that related settings are set together; called by `ServiceSettings.check_common`."""
        for prefix in ("", "internal_", "etcd_"):
            names = [f"{prefix}tls_{what}_file" for what in ("cert", "key")]
            given = [name for name in names if getattr(self, name)]
            if len(given) == 1:
                raise ValueError(f"{given[0]} is set without {(set(names) - set(given)).pop()}")
        if self.tls_ca_file and not self.tls_cert_file:
            raise ValueError("tls_ca_file is set without tls_cert_file")
        if self.internal_tls_ca_file and not (self.internal_tls_cert_file or self.tls_cert_file):
            raise ValueError("internal_tls_ca_file is set without internal_tls_cert_file or tls_cert_file")
        if self.etcd_tls_cert_file and not self.etcd_tls_ca_file:
            raise ValueError("etcd_tls_cert_file is set without etcd_tls_ca_file")
        if self.tls_client_auth == "required" and not self.tls_ca_file:
            raise ValueError("tls_client_auth = required needs tls_ca_file")
        if self.internal_files is not None and not self.internal_files.ca_file:
            raise ValueError("TLS is on, and brokers and coordinators check each other: set internal_tls_ca_file")

    @property
    def trusts_internal_authority(self) -> bool:
        """Whether every certificate signed by the internal authority is accepted as a broker's or coordinator's."""
        return False

    @property
    def clients_files(self) -> TlsFiles | None:
        """Files of the client listener; `None` without TLS."""
        if not self.tls_cert_file:
            return None
        return TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_ca_file)

    @property
    def internal_files(self) -> TlsFiles | None:
        """Files for brokers and coordinators among each other; `None` without TLS."""
        cert_file = self.internal_tls_cert_file or self.tls_cert_file
        if not cert_file:
            return None
        key_file = self.internal_tls_key_file or self.tls_key_file
        return TlsFiles(cert_file, key_file, self.internal_tls_ca_file or self.tls_ca_file)

    @property
    def etcd_files(self) -> TlsFiles | None:
        """Files for connections to etcd; `None` without TLS."""
        if not self.etcd_tls_ca_file:
            return None
        return TlsFiles(self.etcd_tls_cert_file, self.etcd_tls_key_file, self.etcd_tls_ca_file)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of an identity's files; an empty path means that there is no such file."""

    cert_file: str
    key_file: str
    ca_file: str

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths that are set."""
        return tuple(path for path in (self.cert_file, self.key_file, self.ca_file) if path)
