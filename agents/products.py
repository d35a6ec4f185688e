"""What a driver calls a GPU, and what we call it: ``NVIDIA A100-SXM4-80GB`` is SKU ``a100-sxm-80``.

The table also says what a simulated device of a product looks like.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """One SKU. Figures are the vendor's nominal ones."""

    sku: str
    raw_name: str
    """A name the driver gives it."""
    memory_mib: int
    """As the driver reports it."""
    sm_clock_max_mhz: int
    power_limit_watts: int
    nvlink: bool
    """GPUs of one node share an NVLink domain."""


PRODUCTS: Mapping[str, Product] = {
    p.sku: p
    for p in (
        Product("b200-180", "NVIDIA B200", 183_359, 1965, 1000, True),
        Product("h200-141", "NVIDIA H200", 143_771, 1980, 700, True),
        Product("h200-nvl-141", "NVIDIA H200 NVL", 143_771, 1785, 600, True),
        Product("gh200-96", "NVIDIA GH200 480GB", 97_871, 1980, 700, True),
        Product("h100-sxm-80", "NVIDIA H100 80GB HBM3", 81_559, 1980, 700, True),
        Product("h100-nvl-94", "NVIDIA H100 NVL", 95_830, 1785, 400, True),
        Product("h100-pcie-80", "NVIDIA H100 PCIe", 81_559, 1755, 350, False),
        Product("h20-96", "NVIDIA H20", 97_871, 1980, 500, True),
        Product("a100-sxm-80", "NVIDIA A100-SXM4-80GB", 81_920, 1410, 400, True),
        Product("a100-sxm-40", "NVIDIA A100-SXM4-40GB", 40_960, 1410, 400, True),
        Product("a100-pcie-80", "NVIDIA A100 80GB PCIe", 81_920, 1410, 300, False),
        Product("a100-pcie-40", "NVIDIA A100-PCIE-40GB", 40_960, 1410, 250, False),
        Product("a30-24", "NVIDIA A30", 24_576, 1440, 165, False),
        Product("a10-24", "NVIDIA A10", 23_028, 1695, 150, False),
        Product("l40s-48", "NVIDIA L40S", 46_068, 2520, 350, False),
        Product("l40-48", "NVIDIA L40", 46_068, 2490, 300, False),
        Product("l4-24", "NVIDIA L4", 23_034, 2040, 72, False),
        Product("t4-16", "Tesla T4", 15_360, 1590, 70, False),
        Product("v100-sxm-32", "Tesla V100-SXM2-32GB", 32_510, 1530, 300, True),
        Product("v100-sxm-16", "Tesla V100-SXM2-16GB", 16_160, 1530, 300, True),
        Product("v100-pcie-16", "Tesla V100-PCIE-16GB", 16_160, 1380, 250, False),
        Product("mi300x-192", "AMD Instinct MI300X OAM", 196_592, 2100, 750, False),
    )
}

# What comes first decides: NVL and PCIe are written in the name, SXM boards of the newer kinds have no suffix.
_FAMILIES: tuple[tuple[re.Pattern[str], str, tuple[int, ...]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), prefix, sizes)
    for pattern, prefix, sizes in (
        (r"\bgh200\b", "gh200", (96, 144)),
        (r"\bb200\b", "b200", (180,)),
        (r"\bh200 nvl\b", "h200-nvl", (141,)),
        (r"\bh200\b", "h200", (141,)),
        (r"\bh100 nvl\b", "h100-nvl", (94,)),
        (r"\bh100\b.*\bpcie\b", "h100-pcie", (80,)),
        (r"\bh100\b", "h100-sxm", (64, 80, 96)),
        (r"\bh20\b", "h20", (96, 141)),
        (r"\ba100\b.*\bpcie\b", "a100-pcie", (40, 80)),
        (r"\ba100\b", "a100-sxm", (40, 80)),
        (r"\ba30\b", "a30", (24,)),
        (r"\ba10\b", "a10", (24,)),
        (r"\bl40s\b", "l40s", (48,)),
        (r"\bl40\b", "l40", (48,)),
        (r"\bl4\b", "l4", (24,)),
        (r"\bt4\b", "t4", (16,)),
        (r"\bv100\b.*\bpcie\b", "v100-pcie", (16, 32)),
        (r"\bv100\b", "v100-sxm", (16, 32)),
        (r"\bmi300x\b", "mi300x", (192,)),
    )
)


def sku_of(raw_name: str, memory_total_mib: int | None) -> str:
    """The SKU of a device by the driver's name and its memory; empty for a product we do not know."""
    name = re.sub(r"[-_]", " ", raw_name.partition(" MIG ")[0])
    for pattern, prefix, sizes in _FAMILIES:
        if pattern.search(name):
            size = _size(raw_name, sizes, memory_total_mib)
            return f"{prefix}-{size}" if size is not None else ""
    return ""


def _size(raw_name: str, sizes: tuple[int, ...], memory_total_mib: int | None) -> int | None:
    if len(sizes) == 1:
        return sizes[0]
    if memory_total_mib:
        return min(sizes, key=lambda gib: abs(gib - memory_total_mib / 1024))
    written = re.search(r"(\d+) ?GB", raw_name, re.IGNORECASE)
    return int(written.group(1)) if written and int(written.group(1)) in sizes else None


def shares_nvlink(product: str) -> bool:
    """True when a product's GPUs share an NVLink domain on their node. An unknown one might: isolating it is the safe side."""
    known = PRODUCTS.get(product)
    return known is None or known.nvlink


def mig_profile_of(raw_name: str) -> str:
    """``3g.20gb`` of ``NVIDIA A100-SXM4-40GB MIG 3g.20gb``; empty for a whole GPU."""
    return raw_name.partition(" MIG ")[2].strip()
