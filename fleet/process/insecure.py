"""Safe by default: off loopback a process wants TLS and authentication, or a clear word that neither is wanted."""

from __future__ import annotations

import ipaddress

from fleet.errors import FieldError, InvalidInput


def is_loopback(host: str) -> bool:
    """True when only this machine can reach ``host``. Names other than localhost are taken as reachable from outside."""
    if host.lower() in {"localhost", "localhost."}:
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def require_safe(host: str, *, tls: bool, auth: bool, insecure: bool, what: str = "this process") -> None:
    """Refuse to serve on ``host`` in the open. Raises InvalidInput that says what is missing and what to do."""
    if insecure or is_loopback(host) or (tls and auth):
        return
    missing = " and ".join(name for name, there in (("TLS", tls), ("authentication", auth)) if not there)
    raise InvalidInput(
        [
            FieldError(
                "host",
                f"{what} would serve on {host} without {missing}; set HEADRACE_TLS_CERT and HEADRACE_TLS_KEY"
                + ("" if auth else ", turn authentication on")
                + ", bind to 127.0.0.1, or say HEADRACE_INSECURE=true",
            )
        ]
    )
