"""The engines a node of the demo runs: simulated ones, or real llama.cpp servers in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

from fleet.errors import Unavailable
from headrace.demo.layout import CONTEXT_TOKENS, HOST, SERVED_AS, EngineLayout
from headrace.simulated_engine.server import EngineSettings, SimulatedEngine

LLAMACPP_CONTEXT_TOKENS = 2048
_LLAMACPP_SLOTS = 4
_LLAMACPP_CONNECTIONS = 32


class NodeEngine(Protocol):
    """One engine on one GPU."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def lose_gpu(self) -> None:
        """Its GPU is gone: it ends as its kind of engine does."""
        ...

    async def restore(self) -> None:
        """Its GPU is back: it serves again, from scratch if it had ended."""
        ...

    def busy_seconds(self) -> float:
        """Time spent computing since it was started."""
        ...


class SimulatedNodeEngine(SimulatedEngine):
    """A simulated vLLM with the speed of its GPU product."""

    def __init__(self, where: EngineLayout) -> None:
        super().__init__(
            EngineSettings(
                models=(SERVED_AS,),
                product=where.product,
                # In 8 bits where 16 would leave the product little room for anything else.
                precision="fp8" if where.product == "l40s-48" else "bf16",
                host=HOST,
                port=where.port,
                context_tokens=CONTEXT_TOKENS,
            )
        )

    def busy_seconds(self) -> float:
        return self.scheduler.counters.busy_seconds


class LlamaCppEngine:
    """A real llama.cpp server on a thread of this process, with a tiny generated model."""

    def __init__(self, where: EngineLayout, model_file: Path) -> None:
        self._where = where
        self._model_file = model_file
        self._server: Any = None

    async def start(self) -> None:
        self._server = await asyncio.to_thread(self._open)

    async def close(self) -> None:
        server, self._server = self._server, None
        # Its end waits for what it runs.
        await asyncio.to_thread(_drop, [server])

    def lose_gpu(self) -> None:
        server, self._server = self._server, None
        asyncio.get_running_loop().run_in_executor(None, _drop, [server])

    async def restore(self) -> None:
        if self._server is None:
            await self.start()

    def busy_seconds(self) -> float:
        return 0.0

    def _open(self) -> Any:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(self._model_file)
        params.model_alias = {SERVED_AS}
        params.hostnames = [HOST]
        params.port = self._where.port
        params.n_ctx = LLAMACPP_CONTEXT_TOKENS * _LLAMACPP_SLOTS
        params.n_parallel = _LLAMACPP_SLOTS
        params.cpuparams.n_threads = 1
        # It gives every open connection a thread, idle ones too: routers', agents' and probes' together.
        params.n_threads_http = _LLAMACPP_CONNECTIONS
        params.n_gpu_layers = 0
        params.endpoint_metrics = True
        params.warmup = False
        return xllamacpp.Server(params)


def _drop(held: list[Any]) -> None:
    """Let go of the last reference, which ends the server."""
    held.clear()


def check_llamacpp() -> None:
    """Raises Unavailable that says what to install."""
    try:
        import gguf  # noqa: F401
        import tokenizers  # noqa: F401
        import xllamacpp  # noqa: F401
    except ImportError as error:
        raise Unavailable(
            f"--engine llamacpp wants the development dependencies ({error.name} is missing): run `make lint` once, or "
            "`pip install xllamacpp gguf tokenizers` into .venv"
        ) from None
