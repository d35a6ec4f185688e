"""Warm-up: a few requests of one token before an engine that was just started takes traffic."""

from __future__ import annotations

from agents.probes import EngineHttp, ProbeError

REQUEST_TIMEOUT_SECONDS = 120.0
"""The first request of an engine may compile kernels and capture graphs."""


async def warm_up(http: EngineHttp, url: str, api_key: str, served_as: str, requests: int) -> bool:
    """Send ``requests`` one after the other; True when every one was answered with success.

    An engine of embeddings answers 4xx to a completion: it is told by trying ``/v1/embeddings`` instead.
    """
    for _ in range(requests):
        try:
            answer = await http.post(
                url,
                "/v1/completions",
                {"model": served_as, "prompt": "warm up", "max_tokens": 1},
                api_key,
                timeout_seconds=REQUEST_TIMEOUT_SECONDS,
            )
            if 400 <= answer.status < 500:
                answer = await http.post(
                    url,
                    "/v1/embeddings",
                    {"model": served_as, "input": "warm up"},
                    api_key,
                    timeout_seconds=REQUEST_TIMEOUT_SECONDS,
                )
        except ProbeError:
            return False
        if not answer.ok:
            return False
    return True
