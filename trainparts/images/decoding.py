"""From an image's bytes to pixels, of the region alone that is needed, and resized.

Use it to decode images as Pillow does, faster where nvImageCodec is installed, and to resize uint8
pixels without a copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import io
import math
import os
import re
import warnings
from collections.abc import Callable, Generator, Sequence
from types import ModuleType
from typing import IO, Protocol

import numpy as np
import PIL.ExifTags
import PIL.Image
import torch

from trainparts import errors

__all__ = ["Choose", "Region", "decode", "resize"]

# top, left, height, width
Region = tuple[int, int, int, int]
# Returns the region that is needed of an image of this height and width.
Choose = Callable[[int, int], Region]


class CodeStream(Protocol):
    """nvImageCodec's: an encoded image, or a region of it."""

    height: int
    width: int

    def get_sub_code_stream(self, *, region: object) -> CodeStream: ...


class Decoder(Protocol):
    """nvImageCodec's."""

    def decode(
        self, streams: Sequence[CodeStream], *, params: object
    ) -> Sequence[np.ndarray | None]: ...


def decode(encoded: bytes, *, choose: Choose) -> np.ndarray:
    """Returns the region (top, left, height, width) of an image that choose(H, W) returns, uint8
    (height, width, 3), as Pillow converts it to RGB. Raises BadInput if it cannot be decoded."""
    choose = functools.cache(choose)  # one region, even if both decoders try
    region = decode_region(encoded, choose)
    return decode_by_pillow(encoded, choose) if region is None else region


def decode_region(encoded: bytes, choose: Choose) -> np.ndarray | None:
    """Returns what decode() does, of a JPEG by nvImageCodec; None if that cannot."""
    most = 2 * (PIL.Image.MAX_IMAGE_PIXELS or math.inf)  # Pillow's limit
    region = find_region(encoded, choose, most)
    return None if region is None else decode_regions([region])[0]


def find_region(encoded: bytes, choose: Choose, most: float) -> CodeStream | None:
    """Returns the region of a JPEG that choose(H, W) returns, for decode_regions(). Returns None
    if the bytes are not a JPEG, if the image has more than `most` pixels or the file is as large as
    one of more pixels, or if nvImageCodec is not installed."""
    # nvImageCodec does not notice a truncated file, so look for JPEG's last marker.
    if encoded[:2] != b"\xff\xd8" or b"\xff\xd9" not in encoded[-1024:]:
        return None
    if not (found := region_decoder()):
        return None
    codec = found[0]
    try:
        stream = codec.CodeStream(encoded)
        sides = stream.height, stream.width
    except RuntimeError:
        return None
    if max(math.prod(sides), len(encoded) / 3) > most:
        return None
    top, left, height, width = choose(*sides)  # what it raises keeps its type
    with contextlib.suppress(RuntimeError):
        region = codec.Region(top, left, top + height, left + width)
        return stream.get_sub_code_stream(region=region)
    return None


def decode_regions(regions: Sequence[CodeStream]) -> list[np.ndarray | None]:
    """Decodes what find_region() returned, in one call; has None for those that nvImageCodec
    cannot decode."""
    if not regions or not (found := region_decoder()):
        return [None for _ in regions]
    _, decoder, parameters = found
    decoded = None
    with contextlib.suppress(RuntimeError), hushed() as warnings_of_c:
        decoded = decoder.decode(regions, params=parameters)
    # If an image is damaged in the middle, libjpeg only warns there. It raises its error at the
    # image's end, which decoding a region seldom reaches. So after a warning, Pillow reads the
    # whole image.
    if decoded is None or warnings_of_c or any(image is None for image in decoded):
        # Only decoding the images one by one shows which of them caused the warning. Such a list
        # takes twice as long.
        return [None] if len(regions) == 1 else [decode_regions([one])[0] for one in regions]
    return [np.asarray(image) for image in decoded]


@functools.cache
def region_decoder() -> tuple[ModuleType, Decoder, object] | None:
    """Returns nvImageCodec's (module, decoder on the CPU, parameters), or None without it."""
    # It decodes only the region of a JPEG that is needed, to the same pixels as libjpeg-turbo.
    # Called where images are decoded, so that every loader worker makes its own.
    # nvImageCodec passes damaged images, which its libjpeg-turbo refuses, on to its OpenCV, which
    # would decode them half grey. OpenCV reads this limit when it is loaded, and refuses all images
    # if it is 0.
    limits = {"OPENCV_IO_MAX_IMAGE_PIXELS": "0"}
    if "PYNVIMGCODEC_VERBOSITY" not in os.environ:
        limits["PYNVIMGCODEC_VERBOSITY"] = "0"  # Pillow reports what neither can read
    before = {name: os.environ.get(name) for name in limits}
    os.environ.update(limits)
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # it lists the GPU libraries that it lacks
    try:
        codec = importlib.import_module("nvidia.nvimgcodec")
        on_cpu = {"device_id": codec.NVIMGCODEC_DEVICE_CPU_ONLY, "max_num_cpu_threads": 1}
        decoder = codec.Decoder(**on_cpu, backends=[codec.Backend(codec.BackendKind.CPU_ONLY)])
        return codec, decoder, codec.DecodeParams(apply_exif_orientation=False)  # like ImageFolder
    except (ImportError, AttributeError, TypeError, RuntimeError):  # absent, or another release
        return None
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        for name, value in before.items():  # for OpenCV elsewhere
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def hushed() -> Generator[list[bool]]:
    """Keeps C libraries from printing: libjpeg and libtiff do not say of which file. Yields a list
    that is not empty afterwards if they would have printed something."""
    libc, stderr, shown, kept = c_stderr()
    said = []
    stderr.value = kept
    try:
        yield said
    finally:
        stderr.value = shown
        if libc and shown != kept and libc.ftell(kept):
            libc.rewind(kept)
            said.append(True)


@functools.cache
def c_stderr() -> tuple[ctypes.CDLL | None, ctypes.c_void_p, int | None, int | None]:
    """Returns (the C library, its variable stderr, what it points to, a stream in memory)."""
    # The variable, not the descriptor 2, to which others print meanwhile.
    try:
        libc = ctypes.CDLL(None)
        stderr = ctypes.c_void_p.in_dll(libc, "stderr")
        libc.fmemopen.restype = ctypes.c_void_p
        libc.fmemopen.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        libc.ftell.argtypes = libc.rewind.argtypes = [ctypes.c_void_p]
        return libc, stderr, stderr.value, libc.fmemopen(None, 4096, b"w") or stderr.value
    except (ValueError, AttributeError, TypeError):  # not glibc: they print
        return None, ctypes.c_void_p(), None, None


# Not every format of Pillow: for PostScript it would run another program on the file.
FORMATS = ["JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP"]
FORMATS += ["AVIF"] * bool(importlib.util.find_spec("PIL.AvifImagePlugin"))  # since Pillow 11.3


def decode_by_pillow(encoded: bytes, choose: Choose) -> np.ndarray:
    """Returns what decode() does, of any format in FORMATS by Pillow."""
    # choose() is called outside as_bad_input(), so what it raises keeps its type.
    if ppm := re.match(rb"P6 ([1-9]\d{0,6}) ([1-9]\d{0,6}) 255\n", encoded):
        # Written by make_shards.py --raw: the region is a view.
        shape = int(ppm[2]), int(ppm[1]), 3
        with as_bad_input(encoded):
            pixels = np.frombuffer(encoded, np.uint8, math.prod(shape), ppm.end()).reshape(shape)
        top, left, height, width = choose(*shape[:2])
        return pixels[top : top + height, left : left + width]
    with as_bad_input(encoded):
        image = PIL.Image.open(io.BytesIO(encoded), formats=FORMATS)
        deep = image.format == "PNG" and ";16" in str(image.tile)  # bits a channel
        tags = getattr(image, "tag_v2", {})  # TIFF's
        deep |= image.format == "TIFF" and max(tags.get(258, [1])) > 8
        if deep or image.mode[0] in "IF":  # Pillow takes the upper 8, or clips at 255
            cure = "convert it to 8 bits, by a range that you choose"
            raise ValueError(f"more than 8 bits a channel, of an unknown range: {cure}")
        image.load()
    top, left, height, width = choose(image.height, image.width)
    with as_bad_input(encoded):
        box = left, top, left + width, top + height
        # No copy that is not needed: of a huge image, each takes gigabytes.
        region = image if box == (0, 0, *image.size) else image.crop(box)
        return np.asarray(region if region.mode == "RGB" else region.convert("RGB"))


@contextlib.contextmanager
def as_bad_input(encoded: bytes) -> Generator[None]:
    """Raises BadInput for what Pillow raises of an image, and keeps its libraries from printing."""
    with hushed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's do not say of which file, either
        try:
            yield
        except PIL.UnidentifiedImageError:
            raise errors.BadInput(why_unread(encoded)) from None
        except Exception as error:  # Pillow's decoders raise errors of any kind
            raise errors.BadInput(errors.first_line(error)) from None


def orientation(file: IO[bytes]) -> int:
    """Returns the EXIF orientation of an image: 1 is upright, 2 to 8 are to be turned or mirrored,
    which decode() does not do, as torchvision does not. Pillow does it for a TIFF, which is 1."""
    with contextlib.suppress(Exception), hushed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with PIL.Image.open(file, formats=FORMATS) as image:
            found = image.getexif().get(PIL.ExifTags.Base.Orientation, 1)
            return found if image.format != "TIFF" and found in range(2, 9) else 1
    return 1  # decode() says what is wrong with it


def why_unread(encoded: bytes) -> str:
    """Returns what a file is, as text, if its format is not in FORMATS."""
    if pointer := errors.lfs_pointer(encoded):
        return f"it {pointer}"
    with contextlib.suppress(Exception), PIL.Image.open(io.BytesIO(encoded)) as image:
        return f"it is {image.format}, not one of {', '.join(FORMATS)}"
    return f"Pillow cannot identify it: it begins with {encoded[:16]}"


def resize(image: np.ndarray, *, size: Sequence[int], mode: str, out: torch.Tensor) -> None:
    """Resizes uint8 (H, W, 3) to (height, width) into `out`, antialiased like Pillow."""
    # interpolate() returns planes, and interleaving them again takes as long as resizing. The
    # operator behind it writes into a tensor of any layout.
    pixels = torch.from_numpy(np.require(image, requirements=["C", "W"]))
    planes, into = (tensor.permute(2, 0, 1)[None] for tensor in (pixels, out))
    resizer(mode)(planes, size, False, None, None, out=into)


@functools.cache
def resizer(mode: str) -> Callable[..., torch.Tensor]:
    """Returns PyTorch's operator; to look it up takes a while."""
    return getattr(torch.ops.aten, f"_upsample_{mode}2d_aa").out
