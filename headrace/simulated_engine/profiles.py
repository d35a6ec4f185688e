"""How fast one replica is: step times of a GPU product x model x tensor parallelism x precision, from measured operators."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fleet.errors import FieldError, InvalidInput

# Names of the data file to the SKUs used everywhere else.
PRODUCTS = {
    "a100_sxm": "a100-sxm-80",
    "b200_sxm": "b200-180",
    "h100_sxm": "h100-sxm-80",
    "h200_sxm": "h200-141",
    "l40s": "l40s-48",
    "l4": "l4-24",
    "v100_sxm2_32gb": "v100-sxm-32",
    "mi300x": "mi300x-192",
}
DEFAULT_MODEL = "Meta-Llama-3.1-8B"


@dataclass(frozen=True, slots=True)
class ReplicaProfile:
    """Parameters of one replica. Units stand in the names; ``prefill_q`` prices attention over what is already cached."""

    product: str
    model: str
    tensor_parallel: int
    precision: str
    prefill_floor_ms: float
    prefill_a_ms: float
    prefill_b_us_per_token: float
    prefill_q_ns_per_token2: float
    decode_d0_ms: float
    decode_d1_us_per_sequence: float
    decode_d2_ns_per_kv_token: float
    kv_tokens: int
    usd_per_gpu_hour: float
    basis: str
    """``measured-operators`` or ``roofline-derived``."""

    @property
    def token_budget(self) -> int:
        """Tokens of one step, vLLM's default for the product."""
        return 8192 if self.product.startswith(("h100", "h200", "b200", "mi300x")) else 2048

    def prefill_ms(self, new_tokens: int, cached_tokens: int) -> float:
        """Share of a step that a prefill chunk adds, in milliseconds."""
        return (
            self.prefill_b_us_per_token * new_tokens / 1e3
            + self.prefill_q_ns_per_token2 * new_tokens * (cached_tokens + new_tokens / 2) / 1e6
        )

    def step_seconds(self, decoding: int, context_tokens: int, chunks: Iterable[tuple[int, int]]) -> float:
        """Duration of one engine step.

        ``decoding`` sequences whose contexts sum to ``context_tokens``, beside prefill ``chunks`` of (new tokens, tokens
        already cached).
        """
        prefill = sum(self.prefill_ms(new, cached) for new, cached in chunks)
        if decoding:
            total = (
                self.decode_d0_ms
                + self.decode_d1_us_per_sequence * decoding / 1e3
                + self.decode_d2_ns_per_kv_token * context_tokens / 1e6
                + prefill
            )
        else:
            total = max(self.prefill_floor_ms, self.prefill_a_ms + prefill)
        return total / 1e3


@cache
def load_profiles() -> tuple[ReplicaProfile, ...]:
    """Every row that ships with the package."""
    text = resources.files(__package__).joinpath("data/replica_profiles.csv").read_text(encoding="utf-8")
    return tuple(
        ReplicaProfile(
            PRODUCTS[row["gpu"]],
            row["model"],
            int(row["tp"]),
            row["prec"],
            float(row["prefill_floor_ms"]),
            float(row["prefill_a_ms"]),
            float(row["prefill_b_us_per_tok"]),
            float(row["prefill_q_ns_per_tok2"]),
            float(row["decode_d0_ms"]),
            float(row["decode_d1_us_per_seq"]),
            float(row["decode_d2_ns_per_kvtok"]),
            int(row["kv_capacity_tokens"]),
            float(row["usd_per_gpu_hour"]),
            row["basis"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def find_profile(
    product: str, model: str = DEFAULT_MODEL, tensor_parallel: int = 1, precision: str | None = None
) -> ReplicaProfile:
    """The profile of a replica; without a precision the one of 16 bits, else the first there is.

    Raises InvalidInput that lists what exists.
    """
    rows = [p for p in load_profiles() if (p.product, p.model, p.tensor_parallel) == (product, model, tensor_parallel)]
    if precision is not None:
        rows = [p for p in rows if p.precision == precision]
    for profile in rows:
        if profile.precision in ("bf16", "fp16"):
            return profile
    if rows:
        return rows[0]
    known = sorted({p.product for p in load_profiles()})
    raise InvalidInput(
        [
            FieldError(
                "/product",
                f"no profile of {model} on {tensor_parallel} x {product}"
                + (f" in {precision}" if precision else "")
                + f"; known products: {', '.join(known)}",
            )
        ]
    )
