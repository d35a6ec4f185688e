"""What a request's head decides before its body is read, and what decisions are told once it is."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from hashlib import sha256

from fleet.clock import Clock
from fleet.geo.client_address import TrustedProxies, client_address
from fleet.intent import Intent
from fleet.locality import Coordinates, Origin
from fleet.request import RequestFacts
from fleet.tenancy import Residency
from regional.gateway import errors, hop
from regional.gateway.auth import Authenticator, Principal
from regional.gateway.errors import Refusal
from regional.gateway.headers import (
    SESSION_LIMIT_BYTES,
    connection_names,
    number,
    request_label,
    session_token,
    without,
)
from regional.gateway.openai import PATHS, RequestBody
from regional.gateway.request import ClientRequest, Kind
from regional.gateway.settings import GatewaySettings

MAX_DEADLINE_MS = 86_400_000
_GET = frozenset({b"GET", b"HEAD"})
_LIVE_PATHS = frozenset({b"/livez", b"/health/liveliness", b"/startupz"})
_READY_PATHS = frozenset({b"/readyz", b"/healthz", b"/health", b"/health/readiness"})
_MODELS = b"/v1/models"
_PLAIN_CONNECTION = frozenset({b"keep-alive", b"close", b""})


class _Uids:
    """Request ids of 128 random bits, drawn from the system in blocks."""

    def __init__(self) -> None:
        self._block = b""
        self._at = 0

    def next(self) -> str:
        if self._at >= len(self._block):
            self._block = os.urandom(16 * 256)
            self._at = 0
        self._at += 16
        return self._block[self._at - 16 : self._at].hex()


class Reception:
    """Judges requests by their heads, and says what is known of them once their body is in."""

    def __init__(
        self,
        settings: GatewaySettings,
        intent: Callable[[], Intent],
        auth: Authenticator,
        locate: Callable[[str], Origin],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._intent = intent
        self._auth = auth
        self._locate = locate
        self._clock = clock
        self._trusted = TrustedProxies(settings.trusted_proxies)
        self._replays = hop.ReplayGuard()
        self._uids = _Uids()
        self._routes_of: Intent | None = None
        self._routed: frozenset[bytes] = frozenset()

    def judge(self, request: ClientRequest, peer: str) -> Refusal | None:
        """Called when the head is whole: who is it, may they, is the body acceptable. Nothing of the body has been kept."""
        request.uid = self._uids.next()
        known = request.known
        if (label := known.get(b"x-request-id")) is not None:
            request.label = request_label(label)
        if b"connection" in known:
            named = connection_names(known[b"connection"]) - _PLAIN_CONNECTION
            if named:
                request.forward = without(request.forward, named)
        refusal = self._framing(request)
        if refusal is not None:
            return refusal
        path = _path(request.target)
        request.path = path
        task = PATHS.get(path)
        if task is None:
            return self._other(request, path, peer)
        request.task = task
        if request.method != b"POST":
            return _wrong_method(b"POST")
        return self._inference(request, peer)

    def admit_again(self, request: ClientRequest) -> bool:
        """The same for a head that was let in before: only the key may have changed since. False: judge it in full."""
        principal = self._auth.principal(request.known.get(b"authorization"), self._clock.wall())
        if principal is None or not principal.enters_here:
            return False
        request.principal = principal
        request.uid = self._uids.next()
        return True

    def _framing(self, request: ClientRequest) -> Refusal | None:
        """What llhttp lets pass and a proxy must not (rel-S2)."""
        known = request.known
        if request.http10:
            if b"transfer-encoding" in known:
                return errors.MALFORMED
        elif b"host" not in known:
            return errors.MALFORMED
        if request.repeated and request.repeated & {b"host", b"content-length", b"transfer-encoding", b"authorization"}:
            return errors.MALFORMED
        coding = known.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            return errors.MALFORMED
        return None

    def _inference(self, request: ClientRequest, peer: str) -> Refusal | None:
        known = request.known
        if b"x-headrace-hop" in known:
            request.claims = self._hop(known[b"x-headrace-hop"])
        claims = request.claims
        if claims is not None:
            request.uid, request.label = claims.request, claims.label
            request.attempts = claims.attempts_used
            signed = Residency(frozenset(claims.residency), claims.relay_ingress)
            principal = self._auth.of_hop(claims.tenant, claims.key, signed)
        else:
            principal = self._auth.principal(known.get(b"authorization"), self._clock.wall())
        if principal is None:
            return errors.UNAUTHORIZED
        request.principal = principal
        if not principal.enters_here:
            return self._elsewhere(request, principal, peer)
        if len(known.get(b"x-session-id", b"")) > SESSION_LIMIT_BYTES:
            return errors.SESSION_TOO_LONG
        if known.get(b"content-encoding", b"identity").lower() != b"identity":
            return errors.CONTENT_CODING
        length = request.declared_length
        if length is not None and length > self._settings.body_bytes:
            return errors.TOO_LARGE
        return None

    def _other(self, request: ClientRequest, path: bytes, peer: str) -> Refusal | None:
        if path in _LIVE_PATHS:
            request.kind = Kind.LIVE
        elif path in _READY_PATHS:
            request.kind = Kind.READY
        elif path == _MODELS or path.startswith(_MODELS + b"/"):
            request.kind = Kind.MODELS
            request.principal = self._auth.principal(request.known.get(b"authorization"), self._clock.wall())
            if request.principal is None:
                return errors.UNAUTHORIZED
        elif path == hop.PROBE_PATH:
            request.kind = Kind.PEER
            claims = self._hop(request.known.get(hop.HEADER, b""), probe=True)
            if claims is None:
                return errors.UNKNOWN_PATH  # it does not exist for anybody else
        else:
            return errors.UNKNOWN_PATH
        return None if request.method in _GET else _wrong_method(b"GET, HEAD")

    def _hop(self, token: bytes, *, probe: bool = False) -> hop.HopClaims | None:
        """Claims that a peer router signed for us and showed for the first time. Anything else is as if it were not there."""
        intent, wall = self._intent(), self._clock.wall()
        claims = hop.verify(token, intent.secrets.hop_keys, region=self._settings.region, wall=wall)
        if claims is None or claims.probe is not probe or not self._replays.fresh(claims, wall):
            return None
        return claims

    def _elsewhere(self, request: ClientRequest, principal: Principal, peer: str) -> Refusal:
        """Residency forbids this router to take the body: say where it may go."""
        address = self._auth.right_region(principal, self.origin(request, peer))
        message = "Data of this key may not be processed in this region."
        if not address or request.claims is not None:
            return Refusal(403, "permission_error", "region_not_allowed", message, should_retry=False)
        if request.known.get(b"x-headrace-redirect", b"").lower() == b"allow":
            location = address.rstrip("/").encode() + request.path
            return Refusal(
                307,
                "permission_error",
                "region_not_allowed",
                f"{message} Use {address}.",
                headers=(b"location: %s\r\n" % location,),
            )
        return Refusal(
            403, "permission_error", "region_not_allowed", f"{message} Send it to {address}.", should_retry=False
        )

    def origin(self, request: ClientRequest, peer: str) -> Origin:
        """Where the client is. Forwarded headers count only from a trusted proxy (case-H08)."""
        known = request.known
        if not self._trusted or not (b"x-forwarded-for" in known or b"forwarded" in known):
            return self._locate(peer)
        address = client_address(peer, _texts(known, b"x-forwarded-for"), _texts(known, b"forwarded"), self._trusted)
        return self._locate(address)

    def facts(self, request: ClientRequest, body: RequestBody, peer: str) -> RequestFacts:
        """Everything decisions are told about a request."""
        principal = request.principal
        if principal is None:
            raise ValueError("facts are for requests that were let in")
        if request.claims is not None:
            return self._hop_facts(request, request.claims, principal, body)
        known, sla = request.known, principal.sla
        priority = sla.priority
        deadline: float | None = None
        session = ""
        if known.keys() & _STEERING:
            asked = number(known.get(b"x-headrace-priority"), 0, 1000)
            priority = priority if asked is None else min(priority, asked)
            milliseconds = number(known.get(b"x-headrace-deadline-ms"), 0, MAX_DEADLINE_MS)
            deadline = None if milliseconds is None else milliseconds / 1000
            if b"x-session-id" not in request.repeated:
                session = _session(principal, session_token(known.get(b"x-session-id")))
        if not session and body.cache_key:
            session = _session(principal, b"cache-key\0" + body.cache_key.encode("utf-8", "surrogatepass")[:1024])
        return RequestFacts(
            request.uid,
            body.task,
            body.model,
            body.stream,
            body.input_tokens,
            body.max_output_tokens,
            principal.tenant_uid,
            principal.tenant_name,
            principal.key_uid,
            sla.name,
            priority,
            session,
            self.origin(request, peer),
            principal.residency,
            principal.models,
            principal.regions,
            principal.gpu_classes,
            principal.policy,
            sla.spill,
            sla.first_byte_deadline_seconds,
            sla.total_seconds,
            deadline,
            self._settings.region,
            "",
            0,
            self._route_headers(request),
        )

    def _route_headers(self, request: ClientRequest) -> Mapping[str, str]:
        """The headers that some route matches on, of this request."""
        if self._intent() is not self._routes_of:
            self._routes_of = self._intent()
            self._routed = frozenset(n.lower().encode() for r in self._routes_of.routes for n in r.headers)
        if not self._routed:
            return _NO_HEADERS
        found = {name: value for name, value in request.known.items() if name in self._routed}
        for line in b"".join(request.forward).split(b"\r\n"):
            name, _, value = line.partition(b": ")
            if name in self._routed:
                found[name] = value
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in found.items()}

    def _hop_facts(
        self, request: ClientRequest, claims: hop.HopClaims, principal: Principal, body: RequestBody
    ) -> RequestFacts:
        where = claims.origin
        coordinates = None
        if where.latitude is not None and where.longitude is not None:
            coordinates = Coordinates(where.latitude, where.longitude)
        return RequestFacts(
            request.uid,
            body.task,
            claims.model or body.model,
            body.stream,
            body.input_tokens,
            body.max_output_tokens,
            principal.tenant_uid,
            principal.tenant_name,
            claims.key,
            claims.sla_class,
            claims.priority,
            claims.session,
            Origin("", where.country, where.continent, coordinates, "hop"),
            principal.residency,
            principal.models,
            principal.regions,
            principal.gpu_classes,
            principal.policy,
            False,
            principal.sla.first_byte_deadline_seconds,
            claims.total_seconds,
            claims.deadline_seconds,
            claims.source,
            claims.source,
            claims.attempts_used,
        )

    def claims(
        self, facts: RequestFacts, label: str, target: str, model: str, attempt: int, elapsed: float
    ) -> hop.HopClaims:
        """What this router signs when it sends a request on to ``target``."""
        where = facts.origin.coordinates
        return hop.HopClaims(
            self._uids.next(),
            self._clock.wall() + hop.LIFETIME_SECONDS,
            self._settings.region,
            target,
            False,
            facts.request_uid,
            label,
            facts.tenant_uid,
            facts.key_uid,
            facts.sla_class,
            facts.priority,
            model,
            facts.session,
            None if facts.deadline_seconds is None else max(0.0, facts.deadline_seconds - elapsed),
            max(0.0, facts.total_seconds - elapsed),
            tuple(sorted(facts.residency.allow)),
            facts.residency.relay_ingress,
            attempt - 1,
            hop.OriginClaim(
                facts.origin.country,
                facts.origin.continent,
                where.latitude if where else None,
                where.longitude if where else None,
                facts.origin.source,
            ),
        )


_NO_HEADERS: Mapping[str, str] = {}
_STEERING = frozenset({b"x-headrace-priority", b"x-headrace-deadline-ms", b"x-session-id"})


def _path(target: bytes) -> bytes:
    """The path of a request target, in origin or absolute form, without its query."""
    if not target.startswith(b"/"):
        scheme, found, rest = target.partition(b"://")
        if not found or scheme.lower() not in (b"http", b"https"):
            return target
        target = rest[rest.find(b"/") :] if b"/" in rest else b"/"
    return target.partition(b"?")[0]


def _wrong_method(allowed: bytes) -> Refusal:
    return Refusal(
        405,
        "invalid_request_error",
        "method_not_allowed",
        "This path does not take this method.",
        headers=(b"allow: %s\r\n" % allowed,),
    )


def _session(principal: Principal, token: bytes) -> str:
    return hmac.digest(principal.tenant_uid.encode() or b"-", token, sha256).hex() if token else ""


def _texts(known: dict[bytes, bytes], name: bytes) -> list[str]:
    value = known.get(name)
    return [] if value is None else [value.decode("latin-1")]
