"""llama.cpp's own HTTP server as a process: ``python llama_server.py MODEL PORT SLOTS [KEY]``, until standard input closes."""

from __future__ import annotations

import sys

import xllamacpp


def main() -> None:
    model, port, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.model_alias = {"tiny"}
    p.hostnames = ["127.0.0.1"]
    p.port = port
    p.n_ctx = 512 * slots
    p.n_parallel = slots
    p.n_gpu_layers = 0
    p.endpoint_metrics = True
    p.endpoint_slots = True
    p.warmup = False
    p.cpuparams.n_threads = 1
    if len(sys.argv) > 4:
        p.api_keys = [sys.argv[4]]
    server = xllamacpp.Server(p)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
