"""Every kind of engine by its name."""

from __future__ import annotations

from collections.abc import Mapping

from agents.engines.base import Engine
from agents.engines.llamacpp import LlamaCpp
from agents.engines.openai import OpenAi
from agents.engines.sglang import Sglang
from agents.engines.simulated import Simulated
from agents.engines.tgi import Tgi
from agents.engines.triton import Triton
from agents.engines.trtllm import TrtLlm
from agents.engines.vllm import Vllm
from fleet.endpoint import EngineKind

ENGINES: Mapping[EngineKind, Engine] = {
    EngineKind.VLLM: Vllm(),
    EngineKind.SGLANG: Sglang(),
    EngineKind.TRTLLM: TrtLlm(),
    EngineKind.TGI: Tgi(),
    EngineKind.TRITON: Triton(),
    EngineKind.LLAMACPP: LlamaCpp(),
    EngineKind.OPENAI: OpenAi(),
    EngineKind.SIMULATED: Simulated(),
}
