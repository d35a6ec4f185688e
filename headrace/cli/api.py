"""The control plane's REST API as commands use it; every failure becomes one plain line."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2

from headrace.cli.contexts import Target, current_environ, target
from headrace.cli.errors import CliError

_TIMEOUT_SECONDS = 30.0
_PAGE_SIZE = 500


class ApiError(CliError):
    """The control plane refused; ``http_status`` and ``problem`` are what it said."""

    def __init__(self, message: str, http_status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.problem = problem


class Api:
    """A client for one command. Use as a context manager."""

    def __init__(self, where: Target) -> None:
        self._server = where.server.rstrip("/")
        headers = {"accept": "application/json", "user-agent": "headrace-cli"}
        if where.token:
            headers["authorization"] = f"Bearer {where.token}"
        try:
            verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=where.ca) if where.ca else True
            self._client = httpx2.Client(
                base_url=f"{self._server}/api/v1/",
                headers=headers,
                timeout=_TIMEOUT_SECONDS,
                verify=verify,
                trust_env=False,  # ambient proxy variables are not ours to follow
            )
        except (OSError, ssl.SSLError) as error:
            raise CliError(f"CA file {where.ca}: {error}") from None
        except (httpx2.InvalidURL, ValueError):
            raise CliError(f"{where.server!r} is not an address such as http://127.0.0.1:7610") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, **params: Any) -> Any:
        return self.request("GET", path, params=params)

    def post(self, path: str, body: Any = None, **params: Any) -> Any:
        return self.request("POST", path, params=params, body=body)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer's JSON, None when it has no body. Raises CliError or ApiError."""
        wanted = {name: _parameter(value) for name, value in (params or {}).items() if value is not None}
        try:
            answer = self._client.request(method, path, params=wanted, json=body, headers=dict(headers or {}))
        except httpx2.TimeoutException:
            raise CliError(f"{self._server} did not answer within {_TIMEOUT_SECONDS:.0f} s") from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise CliError(f"{self._server!r} is not an address such as http://127.0.0.1:7610") from None
        except httpx2.RequestError as error:
            raise CliError(self._unreachable(error)) from None
        if answer.status_code >= 400:
            raise refusal(answer.status_code, answer.content, self._server)
        if not answer.content:
            return None
        try:
            return json.loads(answer.content)
        except ValueError:
            raise CliError(f"{self._server} does not answer like a headrace control plane; check --server") from None

    def listing(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """All items of a list, page by page."""
        token: str | None = None
        while True:
            body = self.get(path, **{"page_size": _PAGE_SIZE, **params, "page_token": token})
            yield from body.get("items", [])
            token = body.get("next_page_token") or None
            if token is None:
                return

    def _unreachable(self, error: Exception) -> str:
        reason = str(error) or type(error).__name__
        return f"cannot reach the control plane at {self._server}: {reason}; set --server or HEADRACE_SERVER"


def connect(server: str | None, context: str | None) -> Api:
    """A client for the server that flags, environment and contexts name."""
    return Api(target(server, context, current_environ()))


def refusal(status: int, content: bytes, server: str) -> ApiError:
    """A refused request in one line: what and where, not the protocol."""
    try:
        problem = json.loads(content)
    except ValueError:
        problem = {}
    if not isinstance(problem, dict) or "title" not in problem:
        problem = {}
        message = f"{server} answered {status}; check --server"
    else:
        message = str(problem["title"])
        if problem.get("detail"):
            message += f": {problem['detail']}".replace("?cascade=true", "--cascade")
        errors = [e for e in problem.get("errors") or [] if str(e.get("reason")) not in message]
        if problem.get("references"):
            errors = []  # the detail has named them
        fields = [f"{e.get('pointer') or '/'}: {e.get('reason', '')}" for e in errors]
        if fields:
            message += " (" + "; ".join(fields) + ")"
    if status == 401:
        message += "; give a valid token in HEADRACE_TOKEN or with `headrace login`"
    return ApiError(message, status, problem)


def segment(name: str) -> str:
    """A name as one path segment."""
    return quote(name, safe="")


def _parameter(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
