"""An authority of the tests' own, and servers' TLS with certificates that it signed."""

import datetime
import pathlib
import ssl

import trustme


class Authority:
    """Signs what it is asked to. file: its certificate in PEM, for clients that trust it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._ca = trustme.CA()
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def server(
        self, *names: str, expired: bool = False, newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
    ) -> ssl.SSLContext:
        """TLS of a server with a certificate for these names. newest: the latest version that it speaks."""
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        certificate = self._ca.issue_cert(*names, not_after=past if expired else None)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = newest
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context

    def files(self, directory: pathlib.Path, *names: str) -> tuple[pathlib.Path, pathlib.Path]:
        """Certificate and key of a server that is not ours, as files."""
        issued = self._ca.issue_cert(*names)
        certificate, key = directory / "server.pem", directory / "server.key"
        issued.private_key_pem.write_to_path(str(key))
        certificate.write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
        return certificate, key
