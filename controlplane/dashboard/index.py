"""The page at ``/``: says what this is and where the API's documentation lies. Shows nothing of the fleet, asks for no token."""

from __future__ import annotations

from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>headrace control plane</title><meta name="viewport" content="width=device-width"></head>
<body>
<h1>headrace control plane</h1>
<p>Routes AI inference requests to GPUs: global, regional, local.</p>
<ul>
<li><a href="/docs">API documentation</a> and <a href="/openapi.json">OpenAPI description</a> of <code>/api/v1</code></li>
<li><a href="/readyz">Readiness</a>, <a href="/livez">liveness</a> and <a href="/metrics">metrics</a> of this process</li>
</ul>
<p>Calls to the API want <code>Authorization: Bearer &lt;token&gt;</code>; the command <code>headrace</code> makes them for you.</p>
</body>
</html>
"""
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class IndexPage:
    """ASGI layer before the API: answers ``/`` itself and passes on everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/":
            await self._app(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            await HTMLResponse(_PAGE, headers=_HEADERS)(scope, receive, send)
        else:
            await PlainTextResponse("only GET\n", 405, headers={**_HEADERS, "allow": "GET, HEAD"})(scope, receive, send)
