"""The simulated engine of this project: it speaks vLLM's API and metric names, and says its slots in ``/v1/models``."""

from __future__ import annotations

from agents.engines.vllm import Vllm


class Simulated(Vllm):
    """``headrace`` simulated engine."""
