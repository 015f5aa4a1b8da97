"""The peaks of GPUs, to say which share of them a run uses.

Use it beside model_flops; it imports nothing but `re`.
"""

from __future__ import annotations

import re

# Dense TFLOPS of the tensor cores in bfloat16, which the data sheets give with sparsity, twice as
# much, by the whole name of the device: a part of a card (MIG) or another model has another peak.
PEAKS = {
    # NVIDIA H200 data sheet, H200 SXM: 1,979 with sparsity.
    r"NVIDIA H200": 989,
    # NVIDIA H100 data sheet, H100 SXM: 1,979 with sparsity; H100 PCIe: 1,513 with sparsity.
    r"NVIDIA H100 80GB HBM3": 989,
    r"NVIDIA H100 PCIe": 756,
    # NVIDIA A100 data sheet, all four models: 312, and 624 with sparsity.
    r"NVIDIA A100-(SXM4|PCIE)-[48]0GB|NVIDIA A100 80GB PCIe": 312,
    # NVIDIA L40S data sheet: 362.05, and 733 with sparsity.
    r"NVIDIA L40S": 362,
    # NVIDIA L4 data sheet: 242 with sparsity.
    r"NVIDIA L4": 121,
    # NVIDIA V100 data sheet, SXM2: 125, of float16, since it has no bfloat16.
    r"Tesla V100-SXM2-(16|32)GB": 125,
}


def peak_tflops(device: str) -> int | None:
    """Returns the peak of the card with this name, dense bfloat16, or None."""
    return next((peak for name, peak in PEAKS.items() if re.fullmatch(name, device)), None)
