"""Shared state of a region's routers in its Redis (or Valkey).

Keys, all under one hash tag so that they live on one node of a cluster:

    headrace:{REGION}:routers     set of router uids seen lately
    headrace:{REGION}:load:UID    a router's word, gone 1 s after it was given
    headrace:{REGION}:moved       stream of moved sessions, the newest 10,000

One connection, owned by one task, one exchange at a time: all commands are written at once and all replies read. Whatever goes
wrong on the way (late, cut off, an error such as READONLY from a demoted master, nonsense, a cancelled caller) discards the
connection, so no reply can ever be taken for the answer to a later question.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from fleet.errors import FieldError, InvalidInput, Unavailable
from regional.shared.base import MAX_ENDPOINTS, MAX_MOVED, TTL_SECONDS, Exchange, MovedSession, RouterLoad

EXCHANGE_BUDGET_SECONDS = 0.1
CONNECT_BUDGET_SECONDS = 0.5
_MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
_MAX_ROUTERS = 256
_MOVES_KEPT = 10_000
MAX_BAN_SECONDS = 300.0
"""No sibling can keep this router off an endpoint for longer with one word."""
_FORGET_AFTER_MISSES = 300
"""Exchanges without a word after which a uid is taken out of the set (a minute at five a second)."""


class _WireLoad(msgspec.Struct, array_like=True, frozen=True):
    router_uid: str
    incarnation: int
    sequence: int
    grpc_addresses: list[str]
    http_addresses: list[str]
    outstanding: dict[str, tuple[int, float]]
    bans: dict[str, float] = {}


class _WireMove(msgspec.Struct, array_like=True, frozen=True):
    router_uid: str
    session: str
    model: str
    endpoint_uid: str


_encoder = msgspec.msgpack.Encoder()
_load_decoder = msgspec.msgpack.Decoder(_WireLoad)
_move_decoder = msgspec.msgpack.Decoder(_WireMove)


class RedisShared:
    """One router's access to the Redis at ``url``. Raises InvalidInput for a URL that cannot be understood."""

    def __init__(self, url: str, region: str) -> None:
        self._pool = _pool(url)
        self._prefix = f"headrace:{{{region}}}:"
        self._connection: AbstractConnection | None = None
        self._known: dict[str, int] = {}
        """Router uids of the set, and in how many exchanges in a row each had no word."""
        self._last_move = "0"

    async def exchange(self, own: RouterLoad, moved: Sequence[MovedSession]) -> Exchange:
        siblings = [uid for uid in self._known if uid != own.router_uid][:_MAX_ROUTERS]
        forget = [uid for uid, misses in self._known.items() if misses >= _FORGET_AFTER_MISSES]
        commands: list[tuple[Any, ...]] = [
            ("SET", self._load_key(own.router_uid), _encode_load(own), "PX", round(TTL_SECONDS * 1000)),
            ("SADD", f"{self._prefix}routers", own.router_uid),
            ("SMEMBERS", f"{self._prefix}routers"),
            ("XRANGE", f"{self._prefix}moved", f"({self._last_move}", "+", "COUNT", MAX_MOVED),
        ]
        if siblings:
            commands.append(("MGET", *(self._load_key(uid) for uid in siblings)))
        if forget:
            commands.append(("SREM", f"{self._prefix}routers", *forget))
        commands.extend(self._move_command(own.router_uid, move) for move in moved[-MAX_MOVED:])
        replies = await self._converse(commands)
        try:
            loads = self._loads(own.router_uid, siblings, replies[4] if siblings else [])
            self._note_members(own.router_uid, replies[2], siblings, loads)
            return Exchange(tuple(loads.values()), tuple(self._moves(own.router_uid, replies[3])))
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            await self._drop()
            raise Unavailable(f"Redis gave an answer of another shape: {type(error).__name__}") from None

    async def withdraw(self, router_uid: str) -> None:
        await self._converse(
            [("DEL", self._load_key(router_uid)), ("SREM", f"{self._prefix}routers", router_uid)],
        )

    async def close(self) -> None:
        await self._drop()
        await self._pool.disconnect()

    # One conversation at a time

    async def _converse(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        connection = await self._connected()
        try:
            async with asyncio.timeout(EXCHANGE_BUDGET_SECONDS):
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                return [await connection.read_response() for _ in commands]
        except (RedisError, OSError, TimeoutError) as error:
            await self._drop()
            raise Unavailable(f"Redis did not answer as it should: {type(error).__name__}") from None
        except BaseException:
            await self._drop()
            raise

    async def _connected(self) -> AbstractConnection:
        if self._connection is not None and self._connection.is_connected:
            return self._connection
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(CONNECT_BUDGET_SECONDS):
                await connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            raise Unavailable(f"Redis cannot be reached: {type(error).__name__}") from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._connection = connection
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    # Reading replies: nothing in them is trusted

    def _loads(self, own_uid: str, asked: Sequence[str], replies: Sequence[bytes | None]) -> dict[str, RouterLoad]:
        if len(replies) != len(asked):
            raise ValueError("a reply is missing")
        found: dict[str, RouterLoad] = {}
        for uid, payload in zip(asked, replies, strict=True):
            if payload is None or len(payload) > _MAX_PAYLOAD_BYTES:
                continue
            load = _decode_load(payload)
            if load is not None and load.router_uid == uid and uid != own_uid:
                found[uid] = load
        return found

    def _note_members(
        self, own_uid: str, members: Iterable[bytes], asked: Sequence[str], found: dict[str, RouterLoad]
    ) -> None:
        known: dict[str, int] = {}
        for member in members:
            uid = member.decode("ascii", "replace")
            if uid == own_uid or len(uid) > 128 or len(known) >= _MAX_ROUTERS:
                continue
            missed = uid in asked and uid not in found
            known[uid] = self._known.get(uid, 0) + 1 if missed else 0
        self._known = known

    def _moves(self, own_uid: str, entries: Iterable[tuple[bytes, Any]]) -> Iterable[MovedSession]:
        moves: list[MovedSession] = []
        for entry_id, fields in entries:
            self._last_move = entry_id.decode("ascii")
            # Field names alternate with values in the protocol's second version, and are a map in the third.
            payload = fields.get(b"m") if isinstance(fields, dict) else fields[1]
            try:
                move = _move_decoder.decode(payload or b"")
            except msgspec.MsgspecError:
                continue  # written by something else; the next entries are still good
            if move.router_uid != own_uid:
                moves.append(MovedSession(move.session, move.model, move.endpoint_uid))
        return moves

    def _load_key(self, uid: str) -> str:
        return f"{self._prefix}load:{uid}"

    def _move_command(self, uid: str, move: MovedSession) -> tuple[Any, ...]:
        payload = _encoder.encode(_WireMove(uid, move.session, move.model, move.endpoint_uid))
        return ("XADD", f"{self._prefix}moved", "MAXLEN", "~", _MOVES_KEPT, "*", "m", payload)


def _encode_load(load: RouterLoad) -> bytes:
    outstanding = dict(list(load.outstanding.items())[:MAX_ENDPOINTS])
    return _encoder.encode(
        _WireLoad(
            load.router_uid,
            load.incarnation,
            load.sequence,
            list(load.grpc_addresses),
            list(load.http_addresses),
            outstanding,
            dict(list(load.bans.items())[:MAX_ENDPOINTS]),
        )
    )


def _decode_load(payload: bytes) -> RouterLoad | None:
    """None when it is not a router's word: that sibling is then unknown, and the others still count."""
    try:
        wire = _load_decoder.decode(payload)
    except msgspec.MsgspecError:
        return None
    outstanding = {
        uid: (min(max(inflight, 0), 1_000_000), min(max(tokens, 0.0), 1e12))
        for uid, (inflight, tokens) in list(wire.outstanding.items())[:MAX_ENDPOINTS]
        if math.isfinite(tokens)
    }
    return RouterLoad(
        wire.router_uid,
        wire.incarnation,
        wire.sequence,
        tuple(wire.grpc_addresses[:16]),
        tuple(wire.http_addresses[:16]),
        outstanding,
        {
            uid: min(max(seconds, 0.0), MAX_BAN_SECONDS)
            for uid, seconds in list(wire.bans.items())[:MAX_ENDPOINTS]
            if math.isfinite(seconds)
        },
    )


def _pool(url: str) -> ConnectionPool:
    """Only a maker of connections: this file owns the one it uses, and does its own waiting and reconnecting."""
    options: dict[str, Any] = {
        "socket_timeout": EXCHANGE_BUDGET_SECONDS,
        "socket_connect_timeout": CONNECT_BUDGET_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    parts = urlsplit(url)
    try:
        if parts.scheme not in ("redis+sentinel", "rediss+sentinel"):
            return ConnectionPool.from_url(url, **options)
        return _sentinel_pool(parts.scheme == "rediss+sentinel", parts.netloc, parts.path, options)
    except (ValueError, IndexError) as error:
        raise InvalidInput([FieldError("redis_url", f"not a Redis URL: {error}")]) from None


def _sentinel_pool(tls: bool, netloc: str, path: str, options: dict[str, Any]) -> ConnectionPool:
    """``redis+sentinel://[user:password@]host:port,host:port/master[/db]``; the credentials are those of the master."""
    credentials, _, hosts = netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    master, _, db = path.strip("/").partition("/")
    if not master:
        raise ValueError("the name of the master is missing, as in redis+sentinel://host:26379/mymaster")
    sentinels = [(host.rpartition(":")[0] or host, int(host.rpartition(":")[2])) for host in hosts.split(",")]
    options |= {"username": unquote(user) or None, "password": unquote(password) or None, "db": int(db or 0)}
    manager = Sentinel(sentinels, sentinel_kwargs={"socket_timeout": CONNECT_BUDGET_SECONDS, "ssl": tls})  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(master, manager, ssl=tls, **options)  # type: ignore[no-untyped-call]
