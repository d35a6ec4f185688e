"""What a GPU product promises: the speed an endpoint starts from until its own answers correct it (req-9).

Source of the table: fits of vLLM step times in this project's engine data (`replica_profiles`, bf16 or fp16; fp8 where
nothing else fits), computed with aiconfigurator 0.12.0 (NVIDIA, Apache-2.0) from operator times measured on those GPUs; L4,
V100 and MI300X are derived from data sheets (30 % either way). Weights in GiB stand for models of 8, 32 and 70 billion
parameters. Products that are not in the table are scaled by the ratio of their data-sheet memory bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Speeds:
    """One replica's expected times, all in seconds."""

    prefill_floor: float
    """A prompt takes at least this, however short."""
    prefill_per_token: float
    step_base: float
    """One decode step with nothing in the batch..."""
    step_per_sequence: float
    """... and for each sequence in it..."""
    step_per_context_token: float
    """... and for each token of context they have together."""
    known: bool = True
    """False: nobody knows this product; the reference product stands in."""


class Profile(NamedTuple):
    product: str
    weights_gib: float
    tensor_parallel: int
    prefill_floor_ms: float
    prefill_us_per_token: float
    step_base_ms: float
    step_us_per_sequence: float
    step_ns_per_context_token: float


REFERENCE_PRODUCT = "h100-sxm-80"
DEFAULT_WEIGHTS_GIB = 15.0

# fmt: off
PROFILES: tuple[Profile, ...] = (
    Profile("a100-sxm-80", 15.0, 1, 14.508, 55.2522, 11.5426, 29.989, 84.7454),
    Profile("a100-sxm-80", 15.0, 2, 8.862, 33.3842, 6.672, 19.474, 44.1495),
    Profile("a100-sxm-80", 61.0, 1, 55.049, 225.89, 43.8554, 89.801, 171.385),
    Profile("a100-sxm-80", 61.0, 2, 34.364, 125.605, 24.5967, 81.217, 88.5053),
    Profile("a100-sxm-80", 61.0, 4, 21.94, 73.3396, 14.5238, 44.098, 44.5813),
    Profile("a100-sxm-80", 131.0, 2, 63.108, 260.573, 49.9641, 144.935, 111.617),
    Profile("a100-sxm-80", 131.0, 4, 37.89, 148.331, 27.6913, 99.28, 55.7775),
    Profile("a100-sxm-80", 131.0, 8, 25.606, 92.3565, 17.3193, 67.812, 27.1166),
    Profile("b200-180", 15.0, 1, 4.318, 10.0233, 3.3965, 3.955, 18.157),
    Profile("b200-180", 15.0, 2, 3.771, 6.1928, 2.677, 5.524, 9.0837),
    Profile("b200-180", 61.0, 1, 15.954, 44.2044, 12.5406, 10.367, 37.0313),
    Profile("b200-180", 61.0, 2, 12.74, 24.4294, 7.9064, 17.472, 18.4589),
    Profile("b200-180", 61.0, 4, 10.171, 15.2618, 5.6729, 13.161, 9.6276),
    Profile("b200-180", 131.0, 2, 19.795, 53.2069, 14.2619, 31.14, 23.2394),
    Profile("b200-180", 131.0, 4, 13.813, 31.614, 9.0367, 24.652, 12.1203),
    Profile("b200-180", 131.0, 8, 10.625, 21.6387, 7.1477, 16.185, 6.473),
    Profile("h100-sxm-80", 15.0, 1, 7.615, 20.3108, 6.4051, 10.539, 41.9492),
    Profile("h100-sxm-80", 15.0, 2, 5.101, 12.8793, 3.9747, 7.893, 20.898),
    Profile("h100-sxm-80", 61.0, 1, 30.883, 88.8635, 25.2885, 30.756, 84.4079),
    Profile("h100-sxm-80", 61.0, 2, 18.893, 50.3123, 13.5971, 25.973, 42.3591),
    Profile("h100-sxm-80", 61.0, 4, 12.689, 29.1583, 8.3076, 19.6, 21.4318),
    Profile("h100-sxm-80", 131.0, 2, 31.66, 108.057, 27.3653, 30.026, 52.0475),
    Profile("h100-sxm-80", 131.0, 4, 20.066, 62.338, 15.1991, 32.302, 26.5699),
    Profile("h100-sxm-80", 131.0, 8, 13.774, 38.9439, 9.9667, 23.543, 13.4454),
    Profile("h200-141", 15.0, 1, 6.035, 20.555, 4.9522, 10.657, 29.5919),
    Profile("h200-141", 15.0, 2, 4.359, 12.5258, 3.3303, 7.836, 14.7317),
    Profile("h200-141", 61.0, 1, 23.486, 89.5906, 19.0563, 33.548, 60.1036),
    Profile("h200-141", 61.0, 2, 15.403, 49.6116, 10.764, 24.386, 29.5584),
    Profile("h200-141", 61.0, 4, 11.402, 29.5694, 6.9239, 18.756, 15.1187),
    Profile("h200-141", 131.0, 2, 24.282, 106.597, 20.9495, 35.312, 36.307),
    Profile("h200-141", 131.0, 4, 16.375, 62.0766, 12.1978, 32.058, 18.4732),
    Profile("h200-141", 131.0, 8, 12.013, 37.884, 8.188, 24.796, 9.5669),
    Profile("l4-24", 15.0, 1, 80.3, 207.386, 66.917, 134, 553.05),
    Profile("l40s-48", 15.0, 1, 26.924, 69.4453, 22.221, 34.032, 192.605),
    Profile("l40s-48", 15.0, 2, 18.049, 64.3031, 11.8222, 43.475, 95.229),
    Profile("l40s-48", 61.0, 1, 66.095, 190.948, 53.7721, 87.439, 378.465),
    Profile("l40s-48", 61.0, 2, 70.2, 223.458, 48.1228, 145.755, 189.762),
    Profile("l40s-48", 131.0, 2, 93.084, 349.123, 60.9984, 236.854, 236.087),
    Profile("mi300x-192", 15.0, 1, 6.06, 27.306, 5.05, 7.58, 32.97),
    Profile("mi300x-192", 61.0, 1, 24.755, 111.536, 20.629, 7.58, 65.95),
    Profile("mi300x-192", 131.0, 2, 26.642, 138.043, 22.201, 7.58, 41.22),
    Profile("v100-sxm2-32", 15.0, 1, 32.944, 285.511, 27.453, 44.67, 242.73),
    Profile("v100-sxm2-32", 61.0, 4, 33.641, 335.289, 28.034, 44.67, 121.36),
    Profile("v100-sxm2-32", 131.0, 8, 36.205, 360.844, 30.171, 44.67, 75.85),
)
# fmt: on

# Other products: (product of the table they resemble, how many times slower they are). Ratio of memory bandwidth in
# GB/s from the makers' data sheets, since decoding is bound by it.
LIKE: dict[str, tuple[str, float]] = {
    "h100-pcie-80": ("h100-sxm-80", 3350 / 2000),
    "h100-nvl-94": ("h100-sxm-80", 3350 / 3900),
    "h20-96": ("h100-sxm-80", 3350 / 4000),
    "h200-nvl-141": ("h200-141", 1.0),
    "gh200-96": ("h100-sxm-80", 3350 / 4000),
    "a100-sxm-40": ("a100-sxm-80", 2039 / 1555),
    "a100-pcie-80": ("a100-sxm-80", 2039 / 1935),
    "a100-pcie-40": ("a100-sxm-80", 2039 / 1555),
    "a40-48": ("l40s-48", 864 / 696),
    "a30-24": ("l40s-48", 864 / 933),
    "a10-24": ("l40s-48", 864 / 600),
    "a10g-24": ("l40s-48", 864 / 600),
    "l40-48": ("l40s-48", 1.0),
    "t4-16": ("l4-24", 300 / 320),
    "v100-sxm2-16": ("v100-sxm2-32", 1.0),
    "v100-pcie-16": ("v100-sxm2-32", 1.0),
    "b100-180": ("b200-180", 1.0),
    "gb200-186": ("b200-180", 1.0),
}

_PRODUCTS = tuple(dict.fromkeys(p.product for p in PROFILES))


def _canonical(product: str) -> tuple[str, float] | None:
    """The table's product for a SKU, and how many times slower the SKU is; by family when the SKU itself is not known."""
    if product in _PRODUCTS:
        return product, 1.0
    if product in LIKE:
        return LIKE[product]
    family = product.split("-", 1)[0]
    if not family:
        return None
    for name in _PRODUCTS:
        if name.split("-", 1)[0] == family:
            return name, 1.0
    for name, like in LIKE.items():
        if name.split("-", 1)[0] == family:
            return like
    return None


@lru_cache(maxsize=4096)
def speeds_of(product: str, weights_gib: float | None, tensor_parallel: int) -> Speeds:
    """Expected speeds of one replica. The nearest fit is scaled by weights per GPU, on which both phases depend."""
    found = _canonical(product)
    name, slower = found or (REFERENCE_PRODUCT, 1.0)
    weights = weights_gib if weights_gib else DEFAULT_WEIGHTS_GIB
    tp = max(1, tensor_parallel)

    def distance(p: Profile) -> float:
        return abs(math.log(p.weights_gib / weights)) + abs(math.log(p.tensor_parallel / tp))

    nearest = min((p for p in PROFILES if p.product == name), key=distance)
    scale = slower * (weights / tp) / (nearest.weights_gib / nearest.tensor_parallel)
    return Speeds(
        nearest.prefill_floor_ms * 1e-3 * scale,
        nearest.prefill_us_per_token * 1e-6 * scale,
        nearest.step_base_ms * 1e-3 * scale,
        nearest.step_us_per_sequence * 1e-6 * scale,
        nearest.step_ns_per_context_token * 1e-9 * scale,
        found is not None,
    )
