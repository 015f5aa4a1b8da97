"""Has TensorBoard's records checked in C. Its own function, in Python, takes 15 ms for the text of
a script, which each log has: a tenth of what a run of two steps takes."""

import google_crc32c
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow


def crc32c(data):
    """Returns what TensorBoard's function does."""
    return google_crc32c.value(bytes(data))


pywrap_tensorflow.crc32c = crc32c
