"""Answer headers that say where a request was served, as far as ``HEADRACE_EXPOSE`` lets them."""

from __future__ import annotations

from regional.gateway.settings import Expose, GatewaySettings
from regional.request.steps import EndpointTarget, SendToEndpoint, SendToRegion

_REGION = b"x-headrace-region"
_ALL = frozenset(
    {
        _REGION,
        b"x-headrace-zone",
        b"x-headrace-node",
        b"x-headrace-gpu",
        b"x-headrace-endpoint",
        b"x-headrace-attempts",
    }
)
_KEPT_TARGETS = 20_000


class Placement:
    """Builds those header lines; a target's are built once while the target stays the same."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._expose = settings.expose
        self._region_line = b"%b: %b\r\n" % (_REGION, settings.region.encode()) if settings.region else b""
        self._targets: dict[str, tuple[EndpointTarget, bytes]] = {}

    def lines(self, step: SendToEndpoint | SendToRegion, headers: list[tuple[bytes, bytes]], *, hopped: bool) -> bytes:
        """``headers`` are the answer's: there a peer router says where it was served. ``hopped``: we are that peer and tell all."""
        expose = Expose.ALL if hopped else self._expose
        if expose is Expose.NONE:
            return b""
        if isinstance(step, SendToRegion):
            shown = _ALL if expose is Expose.ALL else frozenset({_REGION})
            return b"".join(b"%b: %b\r\n" % (name, value) for name, value in headers if name in shown)
        if expose is Expose.REGION:
            return self._region_line
        return b"%bx-headrace-attempts: %d\r\n" % (self._of(step.target), step.attempt)

    def _of(self, target: EndpointTarget) -> bytes:
        known = self._targets.get(target.uid)
        if known is not None and known[0] is target:
            return known[1]
        if len(self._targets) >= _KEPT_TARGETS:
            self._targets.clear()
        lines = self._region_line + b"".join(
            b"%b: %b\r\n" % (name, _clean(value))
            for name, value in (
                (b"x-headrace-zone", target.zone),
                (b"x-headrace-node", target.node),
                (b"x-headrace-gpu", ",".join(target.gpu_uuids)),
                (b"x-headrace-endpoint", target.name),
            )
            if value
        )
        self._targets[target.uid] = (target, lines)
        return lines


def _clean(value: str) -> bytes:
    """A name that an agent reported, as a header value: no byte of it can end the line."""
    return bytes(b if 0x20 < b < 0x7F else 0x3F for b in value.encode())
