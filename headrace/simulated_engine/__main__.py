"""``python -m headrace.simulated_engine``: one simulated vLLM server, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from fleet.errors import InvalidInput
from headrace.simulated_engine.profiles import DEFAULT_MODEL
from headrace.simulated_engine.server import EngineSettings, SimulatedEngine


def _arguments(argv: list[str]) -> EngineSettings:
    parser = argparse.ArgumentParser(prog="python -m headrace.simulated_engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", action="append", required=True, help="name it serves; may be given several times")
    parser.add_argument("--product", default="h100-sxm-80", help="GPU product whose speed it has")
    parser.add_argument("--profile-model", default=DEFAULT_MODEL, help="model whose step times it has")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--precision", help="bf16, fp16 or fp8")
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--kv-tokens", type=int, help="size of the KV cache; default: what the product has room for")
    parser.add_argument("--speed", type=float, default=1.0, help="time scale; 2 is twice as fast as the hardware")
    given = parser.parse_args(argv)
    if given.speed <= 0:
        parser.error("--speed must be above 0")
    return EngineSettings(
        models=tuple(given.model),
        product=given.product,
        profile_model=given.profile_model,
        tensor_parallel=given.tensor_parallel,
        precision=given.precision,
        host=given.host,
        port=given.port,
        context_tokens=given.max_model_len,
        max_sequences=given.max_num_seqs,
        kv_tokens=given.kv_tokens,
        speed=given.speed,
        # A secret is never a flag; vLLM's own variable.
        api_key=os.environ.get("VLLM_API_KEY", ""),
    )


async def _serve(settings: EngineSettings) -> None:
    engine = SimulatedEngine(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await engine.start()
    sys.stderr.write(f"simulated {settings.product} serves {', '.join(settings.models)} at {engine.url}\n")
    try:
        await stop.wait()
    finally:
        await engine.close()


def main(argv: list[str] | None = None) -> int:
    settings = _arguments(sys.argv[1:] if argv is None else argv)
    try:
        asyncio.run(_serve(settings))
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
