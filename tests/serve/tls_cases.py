"""A certificate for 127.0.0.1 as files, and what trusts it."""

import ssl
from pathlib import Path

import trustme


def issue(folder: Path) -> tuple[str, str, ssl.SSLContext]:
    """Write a certificate and its key into a folder; return both paths, and a client's context."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return cert, key, context
