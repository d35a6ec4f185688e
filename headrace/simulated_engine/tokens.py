"""Text to tokens and back, without a vocabulary: four UTF-8 bytes make a token, and answers are words drawn by hash."""

from __future__ import annotations

import math
from collections.abc import Sequence

import xxhash

from headrace.simulated_engine.blocks import BLOCK_TOKENS

TOKEN_BYTES = 4
_BLOCK_BYTES = TOKEN_BYTES * BLOCK_TOKENS
_WORDS = tuple(
    """
    water turbine channel gate river head race flow level basin spill weir lock dam wheel stream valve delta source mouth
    bank ford bridge mill tide current pool lake rain cloud snow ice field meadow stone sand clay root leaf branch
    """.split()  # noqa: SIM905  forty quoted words are no easier to read
)
MEAN_ANSWER_TOKENS = 120


def count(text: bytes) -> int:
    """Tokens of a text; never 0, since a template always adds something."""
    return max(1, -(-len(text) // TOKEN_BYTES))


def block_hashes(text: bytes, salt: int = 0) -> list[int]:
    """Chained 64-bit hashes of the text's full blocks: equal hashes mean equal prefixes up to and with that block."""
    value, hashes = salt, []
    for start in range(0, len(text) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        value = xxhash.xxh3_64_intdigest(text[start : start + _BLOCK_BYTES], value)
        hashes.append(value)
    return hashes


def natural_length(seed: int) -> int:
    """How many tokens the model would say if nobody stopped it: geometric, the same for the same seed."""
    uniform = (xxhash.xxh3_64_intdigest(b"length", seed) + 1) / 2**64
    return max(1, min(4 * MEAN_ANSWER_TOKENS, math.ceil(-MEAN_ANSWER_TOKENS * math.log(uniform))))


def answer_seed(prompt: bytes, seed: int, choice: int) -> int:
    """The same prompt, seed and choice always give the same answer."""
    return xxhash.xxh3_64_intdigest(prompt, (seed * 0x9E3779B1 + choice) & 0xFFFFFFFFFFFFFFFF)


def words(seed: int, length: int) -> list[str]:
    """The answer's tokens as text; joined they are the answer."""
    out = []
    for index in range(length):
        word = _WORDS[xxhash.xxh3_64_intdigest(index.to_bytes(4, "little"), seed) % len(_WORDS)]
        out.append(word if index == 0 else " " + word)
    return out


def cut_at_stop(tokens: list[str], stops: Sequence[str]) -> tuple[list[str], str] | None:
    """The tokens up to the first stop string, the last one trimmed, and which string it was; None when none occurs."""
    text = "".join(tokens)
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return None
    position, stop = min(found)
    kept: list[str] = []
    length = 0
    for token in tokens:
        kept.append(token[: max(0, position - length)])
        length += len(token)
        if length >= position + len(stop):
            break
    return kept, stop


def embedding(text: bytes, dimensions: int) -> list[float]:
    """A unit vector that depends on the text only."""
    raw = [xxhash.xxh3_64_intdigest(text, index) / 2**63 - 1.0 for index in range(dimensions)]
    norm = math.sqrt(sum(value * value for value in raw)) or 1.0
    return [value / norm for value in raw]
