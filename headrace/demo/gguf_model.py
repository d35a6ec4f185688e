"""A tiny Llama with random weights, as a GGUF file: what real llama.cpp servers of the demo and of tests run.

Needs the development dependencies ``gguf``, ``numpy`` and ``tokenizers``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT_TOKENS = 2048
_VOCABULARY, _WIDTH, _LAYERS, _HEADS, _KV_HEADS, _FEED_FORWARD = 512, 64, 2, 4, 2, 128
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CORPUS = ["water runs from the head race to the turbine, and from there to the sea. "] * 50 + [
    str(n) for n in range(500)
]
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(path: Path, *, seed: int = 0) -> None:
    """Write the model; about 0.6 MB, the same bytes for the same seed and library versions."""
    vocabulary, merges = _tokenizer()
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny-random-llama")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary)
    writer.add_token_types([gguf.TokenType.CONTROL if t in _SPECIAL else gguf.TokenType.NORMAL for t in vocabulary])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_CHAT_TEMPLATE)
    _add_tensors(writer, len(vocabulary), np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tokenizer() -> tuple[list[str], list[str]]:
    """Vocabulary by id, and merges, of a byte-level BPE trained on the spot."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    by_id = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return by_id, [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]


def _add_tensors(writer: Any, vocabulary: int, rng: np.random.Generator) -> None:
    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(name, (rng.standard_normal(shape) * 0.05).astype(np.float32))

    def ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones((size,), np.float32))

    kv_width = _WIDTH * _KV_HEADS // _HEADS
    weights("token_embd.weight", vocabulary, _WIDTH)
    ones("output_norm.weight", _WIDTH)
    weights("output.weight", vocabulary, _WIDTH)
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight", _WIDTH)
        ones(block + "ffn_norm.weight", _WIDTH)
        for name, rows in (("attn_q", _WIDTH), ("attn_k", kv_width), ("attn_v", kv_width), ("attn_output", _WIDTH)):
            weights(f"{block}{name}.weight", rows, _WIDTH)
        weights(block + "ffn_gate.weight", _FEED_FORWARD, _WIDTH)
        weights(block + "ffn_up.weight", _FEED_FORWARD, _WIDTH)
        weights(block + "ffn_down.weight", _WIDTH, _FEED_FORWARD)
