"""Shares of the peaks of GPUs, and the FLOPs of language models."""

from trainparts.device_peaks import peak_tflops


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
