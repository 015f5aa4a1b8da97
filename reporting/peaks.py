"""The peaks of GPUs, and the FLOPs of language models: what shares of the peak are computed by."""

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


def peak_tflops(device):
    """Returns the peak of the card with this name, dense bfloat16, or None."""
    return next((peak for name, peak in PEAKS.items() if re.fullmatch(name, device)), None)


def share_of_peak(images_per_second, flops, device):
    """Returns the share in %, "-" for an unknown card."""
    peak = peak_tflops(device)
    return f"{100 * images_per_second * flops / (peak * 1e12):.1f}" if peak else "-"


def gpt_flops(layers, width, vocabulary, length):
    """Returns the FLOPs of training on a token, a multiply-add being two: 6 for each weight that is
    multiplied with, and 12 x layers x width x length for attention (Chowdhery et al. 2022, appendix
    B). A model of text_nd.py has 12 x width^2 weights a layer, and the output layer's."""
    weights = 12 * layers * width**2 + vocabulary * width
    return 6 * weights + 12 * layers * width * length
