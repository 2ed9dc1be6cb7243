"""TLS towards a backend: whom to trust, and what a failed handshake is called.

Certificate and name are always verified; there is no switch for it. A server with a certificate of its own making
is trusted by naming that certificate in `ca_file`.
"""

import ssl

_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_OTHER_NAMES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def client_context(ca_file: str | None) -> ssl.SSLContext:
    """TLS 1.2 or later, HTTP/1.1. ca_file: PEM; None: the system's trust.

    Raises OSError if `ca_file` cannot be read, ValueError if it holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(cafile=ca_file)
    except ssl.SSLError as error:
        raise ValueError("it holds no certificate in PEM form") from error
    return context


def handshake_reason(error: ssl.SSLError) -> str:
    """A fixed phrase: OpenSSL's own message may hold the server's name."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return "TLS failed"
    if error.verify_code == _EXPIRED:
        return "certificate expired"
    return "certificate for another name" if error.verify_code in _OTHER_NAMES else "certificate not trusted"
