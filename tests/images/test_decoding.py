"""trainparts/images/decoding.py: regions of images, with the pixels that Pillow decodes."""

import contextlib
import ctypes
import importlib
import io
import os
import random
import re
import signal
import struct
import sys
import types
import warnings
import zlib
from unittest import mock

import numpy as np
import PIL.features
import PIL.Image
import pytest
import torch
from conftest import FETCH, POINTER, ROOT, no_table, run
from test_data import encode, grown, photo, pillow, whole

from trainparts import errors
from trainparts.images import decoding

pytestmark = pytest.mark.usefixtures("own_decoder")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="nvImageCodec is for Linux")


@pytest.mark.parametrize(
    "kind",
    ["plain", "grey", "progressive", "4:4:4", "CMYK", "restarts", "turned", "damaged EXIF", "PNG"],
)
def test_a_region_is_that_part_of_what_pillow_decodes(kind, decoder):
    exif = PIL.Image.Exif()
    exif[0x112] = 6
    options = {
        "progressive": {"progressive": True},
        "4:4:4": {"subsampling": 0},
        "restarts": {"restart_marker_rows": 1},
        "turned": {"exif": exif},
        "damaged EXIF": {"exif": b"Exif\0\0MM\0*\xff\xff\xff\xff\1"},
        "PNG": {"kind": "PNG"},
    }
    mode = {"grey": "L", "CMYK": "CMYK"}.get(kind, "RGB")
    image = PIL.Image.fromarray(photo(203, 307)).convert(mode)
    encoded = encode(image, **options.get(kind, {}))
    expected = pillow(encoded).astype(int)
    for box in whole(203, 307), (17, 33, 101, 64), (202, 306, 1, 1), (0, 200, 203, 107):
        top, left, height, width = box
        region = decoding.decode(encoded, choose=lambda *size, box=box: box)
        assert region.dtype == np.uint8
        difference = region - expected[top : top + height, left : left + width]
        assert np.abs(difference).max() <= (kind == "CMYK"), box


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "PPM"])
def test_the_orientation_is_said_and_not_applied(kind):
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :8] = 200
    for orientation in range(11):
        exif = PIL.Image.Exif()
        exif[0x112] = orientation
        encoded = encode(PIL.Image.fromarray(pixels), kind, exif=exif)
        # Pillow turns a TIFF; a PPM has no EXIF data.
        turns = kind in ("JPEG", "PNG", "WEBP") and 2 <= orientation <= 8
        assert decoding.orientation(io.BytesIO(encoded)) == (orientation if turns else 1)
        if kind != "TIFF":
            found = decoding.decode(encoded, choose=lambda height, width: (0, 0, height, width))
            assert np.abs(found.astype(int) - pixels).mean() < 9
    odd = encode(PIL.Image.fromarray(pixels), "PNG", exif=b"Exif\0\0garbage!")
    for damaged in b"", b"\xff\xd8 no image", encoded[:40], odd:
        assert decoding.orientation(io.BytesIO(damaged)) == 1


def test_a_region_of_a_ppm_is_a_view():
    pixels = photo(20, 30)
    encoded = encode(pixels, "PPM")
    assert encoded.startswith(b"P6\n"), "Pillow's, which Pillow decodes"
    assert (decoding.decode(encoded, choose=whole) == pixels).all()
    ours = b"P6 30 20 255\n" + pixels.tobytes()
    region = decoding.decode(ours, choose=lambda *size: (3, 4, 10, 5))
    assert (region == pixels[3:13, 4:9]).all() and not region.flags.owndata
    with pytest.raises(errors.BadInput):
        decoding.decode(ours[:-1], choose=whole)
    assert (decoding.decode(ours + b"another image", choose=whole) == pixels).all(), (
        "as Pillow reads it"
    )


def chunk(kind, content):
    """Returns a chunk of a PNG."""
    sum_of = zlib.crc32(kind + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + kind + content + sum_of


def deep_png(channels, bits=16, first=b""):
    """Returns a PNG of 2 x 3 pixels with 16 bits a channel, which no library here writes; `first`
    is a chunk before its header, which Pillow allows."""
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + b"\x0f\xff"[-bits // 8 :] * 3 * channels for _ in range(2))
    head = (3).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes([bits, colour, 0, 0, 0])
    parts = first, chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def deep_tiff():
    """Returns a TIFF of 2 x 3 pixels of three channels of 16 bits."""
    pixels, entries = b"\xff\x0f" * 18, 8
    after = 8 + 2 + 12 * entries + 4
    tags = [(256, 3, 1, 3), (257, 3, 1, 2), (258, 3, 3, after), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [(273, 4, 1, after + 6), (277, 3, 1, 3), (279, 4, 1, len(pixels))]
    ifd = struct.pack("<H", entries) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return (
        b"II*\0" + struct.pack("<I", 8) + ifd + bytes(4) + struct.pack("<3H", 16, 16, 16) + pixels
    )


TEXT = chunk(b"tEXt", b"comment\0" + b"z" * 20)
DEEP = {
    "I;16": lambda: encode(PIL.Image.new("I;16", (3, 2), 4095), "PNG"),
    "PGM": lambda: b"P5 2 1 65535\n" + b"\x0f\xff" * 2,
    "grey and alpha": lambda: deep_png(2),
    "RGB": lambda: deep_png(3),
    "RGBA": lambda: deep_png(4),
    "RGB behind text": lambda: deep_png(3, first=TEXT),
    "RGB, TIFF": deep_tiff,
    **{
        f"{kind.__name__}, TIFF": lambda kind=kind: encode(
            PIL.Image.fromarray(np.arange(64).reshape(8, 8).astype(kind)), "TIFF"
        )
        for kind in (np.uint16, np.int32, np.float32)
    },
}


@pytest.mark.parametrize("kind", DEEP)
def test_images_of_more_than_8_bits_are_refused(kind):
    """Nobody knows what is white; Pillow would clip them at 255, or take the upper 8 bits."""
    encoded = DEEP[kind]()
    assert pillow(encoded).shape[2] == 3, "Pillow reads it"
    with pytest.raises(errors.BadInput) as refused:
        decoding.decode(encoded, choose=whole)
    cure = "convert it to 8 bits, by a range that you choose"
    assert str(refused.value) == f"more than 8 bits a channel, of an unknown range: {cure}"


def test_a_range_that_the_file_says_is_used():
    """A PPM has its largest value in its header; 5, 6 and 5 bits of a BMP are 16 a pixel."""
    ppm = b"P6 2 1 4095\n" + b"\x0f\xff" * 3 + b"\x08\x00" * 3
    assert decoding.decode(ppm, choose=whole).tolist() == [[[255] * 3, [128] * 3]]
    head = struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 16, 3, 4, 0, 0, 0, 0)
    head += struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    bmp = b"BM" + struct.pack("<IHHI", 70, 0, 0, 66) + head + b"\xff\xff\0\0"
    assert decoding.decode(bmp, choose=whole).tolist() == [[[255] * 3, [0] * 3]]
    assert decoding.decode(deep_png(3, 8, TEXT), choose=whole).tolist() == 2 * [3 * [[255] * 3]]


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF"])
def test_formats_of_pillow(kind):
    if kind == "AVIF" and not PIL.features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    encoded = encode(photo(40, 50), kind)
    found = decoding.decode(encoded, choose=lambda height, width: (3, 4, 30, 20))
    assert (found == pillow(encoded)[3:33, 4:24]).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_a_region_of_every_mode_is_converted_like_the_whole(mode, decoder):
    kind = {"CMYK": "TIFF", "YCbCr": "TIFF"}.get(mode, "PNG")
    encoded = encode(PIL.Image.fromarray(photo(40, 50)).convert(mode), kind)
    found = decoding.decode(encoded, choose=lambda height, width: (3, 4, 30, 20))
    assert (found == pillow(encoded)[3:33, 4:24]).all()
    assert (decoding.decode(encoded, choose=whole) == pillow(encoded)).all()


NOT_ONE = "not one of " + ", ".join(decoding.FORMATS)


def test_these_formats_are_read():
    avif = ["AVIF"] if PIL.features.check("avif") else []
    assert decoding.FORMATS == ["JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP", *avif]


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        (b"", "Pillow cannot identify it: it begins with b''"),
        (b"<!DOCTYPE html><html>", "Pillow cannot identify it: it begins with b'<!DOCTYPE html><'"),
        (
            b"\0\0\0\x18ftypheic",
            r"Pillow cannot identify it: it begins with b'\x00\x00\x00\x18ftypheic'",
        ),
        (POINTER, f"it {FETCH}"),
        (encode(photo(8, 8), "TGA"), f"it is TGA, {NOT_ONE}"),
        (encode(photo(8, 8), "ICO"), f"it is ICO, {NOT_ONE}"),
    ],
)
def test_what_a_file_is_that_is_not_read(encoded, why):
    with pytest.raises(errors.BadInput) as refused:
        decoding.decode(encoded, choose=whole)
    assert str(refused.value) == why


def test_no_image_has_another_program_run(monkeypatch):
    """Pillow goes by what is in a file, not by its name: PostScript would go to Ghostscript."""
    started = []
    plugin = importlib.import_module("PIL.EpsImagePlugin")
    monkeypatch.setattr(plugin, "Ghostscript", lambda *given: started.append(given))
    encoded = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n"
    with pytest.raises(errors.BadInput):
        decoding.decode(encoded, choose=whole)
    assert not started


@pytest.mark.parametrize("kept", [0, 2, 100, 0.3, 0.9, -2])
def test_a_truncated_jpeg_cannot_be_read(kept, decoder):
    encoded = encode(photo(200, 300))
    end = int(kept * len(encoded)) if isinstance(kept, float) else kept
    for region in whole(200, 300), (0, 0, 10, 10):
        with pytest.raises(errors.BadInput):
            decoding.decode(encoded[:end], choose=lambda *size, region=region: region)


@pytest.mark.parametrize("kind", ["plain", "4:4:4", "progressive", "grey"])
def test_a_jpeg_that_is_damaged_in_its_middle_is_never_half_grey(kind, decoder):
    """Refused where the damage is in the region or above it; what is decoded above it is right."""
    pixels = photo(200, 160)[..., 0] if kind == "grey" else photo(200, 160)
    options = {"4:4:4": {"subsampling": 0}, "progressive": {"progressive": True}}.get(kind, {})
    good = encode(pixels, **options)
    damaged, right = no_table(good), pillow(good)
    for top, left, height, width in whole(200, 160), (150, 0, 40, 160), (190, 70, 10, 5):
        with pytest.raises(errors.BadInput, match="broken data stream"):
            decoding.decode(damaged, choose=lambda *_, box=(top, left, height, width): box)
    box = 0, 30, 16, 70
    try:
        region = decoding.decode(damaged, choose=lambda *_: box)
    except errors.BadInput:
        assert decoder == "Pillow" or kind == "progressive"
    else:
        assert (region == right[:16, 30:100]).all()


@ON_LINUX
def test_only_libjpeg_turbo_decodes_regions(monkeypatch, capfd):
    """Also if it printed nothing where it fails, no other decoder of nvImageCodec goes on."""
    monkeypatch.setattr(decoding, "hushed", lambda: contextlib.nullcontext([]))
    good = encode(photo(64, 64))
    assert decoding.decode_region(good, whole) is not None
    assert decoding.decode_region(no_table(good), whole) is None
    assert "Bogus marker length" in capfd.readouterr().err


def test_one_region_is_drawn_though_two_decoders_try():
    """Or the crop would depend on whether nvImageCodec is installed."""
    encoded, chosen = encode(photo(64, 64)), []

    def choose(height, width):
        chosen.append((height, width))
        return 34 + len(chosen), 2, 29, 20

    half = len(encoded) // 2  # libjpeg warns of it, and reads it
    second = encoded[:half] + bytes(64) + encoded[half + 64 :]
    assert decoding.decode_region(second, lambda *_: (35, 2, 29, 20)) is None
    assert (decoding.decode(second, choose=choose) == pillow(second)[35:64, 2:22]).all()
    assert chosen == [(64, 64)]


def test_damaged_jpegs_are_read_as_pillow_reads_them(capfd, decoder):
    """Or as it refuses them, in its words; without a warning that does not say of which file."""
    rng, refused, read = random.Random(0), 0, 0
    images = [encode(photo(96, 128, seed), progressive=seed == 1) for seed in range(4)]
    for number in range(120):
        encoded, other = images[number % 4], images[(number + 1) % 4]
        at, length = rng.randrange(700, len(encoded) - 600), 2 ** rng.randrange(3, 9)
        put = [rng.randbytes(length), other[:length], b"", bytes(length)][number // 4 % 4]
        damaged = encoded[:at] + put + encoded[at + length :]
        try:
            expected = pillow(damaged)
        except OSError as error:
            refused += 1
            with pytest.raises(errors.BadInput, match=re.escape(str(error).split(" <_io")[0])):
                decoding.decode(damaged, choose=whole)
        else:
            read += 1
            assert (decoding.decode(damaged, choose=whole) == expected).all()
    assert refused > 20 and read > 20
    assert capfd.readouterr() == ("", "")
    ctypes.CDLL(None).perror(b"C libraries")
    assert capfd.readouterr().err.startswith("C libraries: "), "print when nothing is decoded"


def test_the_decoder_leaves_the_environment(monkeypatch):
    """OpenCV elsewhere in the process keeps its limit, which is not a part of this one."""
    limit = "OPENCV_IO_MAX_IMAGE_PIXELS"
    for before in None, "12345":
        monkeypatch.delenv(limit, raising=False)
        if before:
            monkeypatch.setenv(limit, before)
        decoding.region_decoder.cache_clear()
        decoding.region_decoder()
        assert os.environ.get(limit) == before


def test_the_decoder_leaves_no_files(tmp_path):
    """Also in a process that is killed."""
    code = "import os, signal, sys, types; sys.modules['torch'] = types.ModuleType('torch')\n"
    code += "from trainparts.images import decoding\n"  # which has no use for torch here
    code += f"assert decoding.region_decoder() or {sys.platform != 'linux'}\n"
    code += f"assert os.listdir({str(tmp_path)!r}) == []\nos.kill(os.getpid(), signal.SIGKILL)"
    env = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run([sys.executable, "-c", code], tmp_path, status=-signal.SIGKILL, env=env)
    assert os.listdir(tmp_path) == []


def test_pillows_warnings_are_not_printed():
    """They do not say of which file. A palette whose transparency has levels, for one."""
    image = PIL.Image.fromarray(photo(8, 8)).convert("P")
    encoded = encode(image, "PNG", transparency=bytes(range(256)))
    with pytest.warns(UserWarning, match="Palette images with Transparency"):
        pillow(encoded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoding.decode(encoded, choose=whole)


@pytest.mark.parametrize("compression", ["tiff_lzw", "group4"])
def test_libtiff_does_not_print(compression, capfd):
    """It would not say of which file."""
    image = PIL.Image.fromarray(photo(64, 64)).convert("1" if compression == "group4" else "RGB")
    encoded = encode(image, "TIFF", compression=compression)
    half = len(encoded) // 2
    damaged = encoded[:half] + b"\xff\x0f\xff" + encoded[half + 3 :]
    with contextlib.suppress(OSError):
        pillow(damaged)
    assert capfd.readouterr().err, "libtiff prints"
    with contextlib.suppress(errors.BadInput):
        decoding.decode(damaged, choose=whole)
    assert capfd.readouterr() == ("", "")


def test_without_glibc_its_libraries_print(monkeypatch, capfd):
    """And images are read."""
    monkeypatch.setattr(decoding.ctypes, "CDLL", lambda name: object())
    decoding.c_stderr.cache_clear()
    try:
        encoded = encode(photo(64, 64))
        assert (decoding.decode(encoded, choose=whole) == pillow(encoded)).all()
        with pytest.raises(errors.BadInput):
            decoding.decode(no_table(encoded), choose=whole)
        assert decoding.c_stderr()[0] is None
    finally:
        decoding.c_stderr.cache_clear()


def test_a_huge_claim_takes_the_memory_that_the_page_says(decoder):
    """An RGB JPEG of 179 megapixels 2 GB, so 25 megapixels 280 MB; a region has no copy of all."""
    encoded = bytearray(encode(photo(60, 60)))
    at = encoded.index(b"\0\x3c\0\x3c")
    encoded[at : at + 4] = (5_000).to_bytes(2, "big") * 2
    for region, most in (whole(5_000, 5_000), 280), ((2000, 2000, 100, 100), 130):

        def work(region=region):
            return decoding.decode(bytes(encoded), choose=lambda *_: region).shape

        shape, megabytes = grown(work)
        assert shape == (*region[2:], 3) and megabytes < most + 30  # of libraries


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_header_of_too_many_pixels_is_refused_unread(kind, monkeypatch):
    encoded = bytearray(encode(photo(40, 50), kind))
    sides = {"JPEG": b"\0\x28\0\x32", "PNG": b"\0\0\0\x32\0\0\0\x28"}[kind]
    at, half = encoded.index(sides), len(sides) // 2
    encoded[at : at + 2 * half] = (30_000).to_bytes(half, "big") * 2
    if kind == "PNG":
        encoded[29:33] = zlib.crc32(encoded[12:29]).to_bytes(4, "big")
    answer, megabytes = grown(lambda: decoding.decode(bytes(encoded), choose=whole) is None)
    assert str(answer).startswith("refused") and megabytes < 200, answer


# ------------------------------------------------------------------------------ regions and lists


def chooses(*region):
    """Returns a function of (H, W) that chooses this region, and has what it was asked."""

    def choose(height, width):
        choose.asked.append((height, width))
        return region

    choose.asked = []
    return choose


@ON_LINUX
@pytest.mark.parametrize("most", [20 * 30, 20 * 30 - 1])
def test_a_region_is_found_of_an_image_up_to_so_many_pixels(most):
    encoded, choose = encode(photo(20, 30), quality=50), chooses(3, 4, 10, 5)
    assert len(encoded) / 3 < most
    region = decoding.find_region(encoded, choose, most)
    assert choose.asked == [(20, 30)] * (most == 600) and (region is None) == (most < 600)
    if region:
        (pixels,) = decoding.decode_regions([region])
        assert (pixels == pillow(encoded)[3:13, 4:9]).all()


@ON_LINUX
def test_a_region_is_found_of_a_file_up_to_as_many_bytes_as_the_most_pixels_have():
    encoded = encode(photo(20, 30))
    padded = encoded[:2] + b"\xff\xef\x0f\xff" + bytes(0xFFD) + encoded[2:]  # a maker's segment
    most = len(padded) / 3
    assert most > 20 * 30 and decoding.find_region(padded, whole, most)
    choose = chooses(0, 0, 1, 1)
    assert decoding.find_region(padded, choose, most - 1 / 3) is None and not choose.asked


NO_WHOLE_JPEG = {
    "PNG": encode(photo(20, 30), "PNG"),
    "PPM": encode(photo(20, 30), "PPM"),
    "truncated": encode(photo(20, 30))[:-2],
    "empty": b"",
    "no JPEG between the marks": b"\xff\xd8 no JPEG \xff\xd9",
}


@pytest.mark.parametrize("kind", NO_WHOLE_JPEG)
def test_no_region_is_found_of_what_is_no_whole_jpeg(kind):
    choose = chooses(0, 0, 1, 1)
    assert decoding.find_region(NO_WHOLE_JPEG[kind], choose, 10**9) is None and not choose.asked
    assert decoding.decode_region(NO_WHOLE_JPEG[kind], choose) is None


@pytest.mark.parametrize("after", [0, 1, 1022, 1023, 3000])
def test_bytes_behind_a_jpeg_change_nothing(after, decoder):
    """Cameras and programs append some; up to a kilobyte of them, nvImageCodec decodes it."""
    encoded = encode(photo(20, 30))
    assert (decoding.decode(encoded + bytes(after), choose=whole) == pillow(encoded)).all()
    found = decoding.decode_region(encoded + bytes(after), whole)
    assert (found is not None) == (decoder == "nvImageCodec" and after <= 1022)


def test_a_list_has_none_where_an_image_cannot_be_decoded(decoder):
    """And the others in their order."""
    files = [encode(photo(40, 30 + each, each)) for each in range(3)]
    files[1:1] = [no_table(files[0])]
    regions = [decoding.find_region(encoded, whole, 10**9) for encoded in files]
    if decoder == "Pillow":
        assert regions == [None] * 4
        assert decoding.decode_regions([object(), object()]) == [None, None]
    else:
        found = decoding.decode_regions(regions)
        assert found[1] is None
        for number in 0, 2, 3:
            assert (found[number] == pillow(files[number])).all()
    assert decoding.decode_regions([]) == []


@pytest.mark.parametrize(("limit", "read"), [(300, True), (299, False), (None, True)])
def test_an_image_has_up_to_twice_pillows_limit_of_pixels(limit, read, decoder, monkeypatch):
    encoded = encode(photo(20, 30))
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", limit)
    if read:
        assert decoding.decode(encoded, choose=whole).shape == (20, 30, 3)
        return
    with pytest.raises(errors.BadInput) as refused:
        decoding.decode(encoded, choose=whole)
    why = "Image size (600 pixels) exceeds limit of 598 pixels, could be decompression bomb DOS "
    assert str(refused.value) == f"{why}attack."


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "raw"])
@pytest.mark.parametrize("error", [RuntimeError, KeyError, OSError, PIL.UnidentifiedImageError])
def test_an_error_of_choose_keeps_its_type(error, kind, decoder):
    """Whichever decoder calls it; it is called once."""
    pixels, calls = photo(20, 30), []
    encoded = b"P6 30 20 255\n" + pixels.tobytes() if kind == "raw" else encode(pixels, kind)

    def choose(height, width):
        calls.append((height, width))
        raise error("mine")

    with pytest.raises(error, match="mine"):
        decoding.decode(encoded, choose=choose)
    assert calls == [(20, 30)]


@pytest.mark.parametrize("cut", [30, 31])
def test_the_line_of_a_truncated_image_says_how_much_is_left(cut, decoder):
    encoded = encode(photo(20, 30), "BMP")[:-cut]
    with pytest.raises(errors.BadInput) as refused:
        decoding.decode(encoded, choose=whole)
    left = len(encoded) - 54  # behind the headers: rows of 92 bytes
    assert str(refused.value) == f"image file is truncated ({left % 92} bytes not processed)"


def test_a_ppm_is_read_by_the_sizes_in_its_header():
    """Comments, other white space and other depths are Pillow's."""
    pixels = photo(20, 30)
    for head in b"P6\n# a comment\n30 20\n255\n", b"P6\t30 20\n255 ", b"P6 30 20 255\n":
        found = decoding.decode(head + pixels.tobytes(), choose=chooses(3, 4, 10, 5))
        assert (found == pixels[3:13, 4:9]).all(), head
    grey = b"P5 30 20 255\n" + pixels[..., 0].tobytes()
    assert (decoding.decode(grey, choose=whole) == pixels[..., :1]).all()


# ---------------------------------------------------------------------------------- nvImageCodec


class OtherCodec(types.ModuleType):
    """Another release: something is missing of it, or it refuses; it prints meanwhile."""

    def __init__(self, error):
        super().__init__("nvidia.nvimgcodec")
        self.error = error

    def __getattr__(self, name):
        os.write(2, b"no GPU library here\n")
        raise self.error


@pytest.mark.parametrize("error", [ImportError, AttributeError, TypeError, RuntimeError])
def test_another_release_of_nvimagecodec_is_none(error, monkeypatch, capfd):
    limit, known = "OPENCV_IO_MAX_IMAGE_PIXELS", os.listdir("/dev/fd")
    monkeypatch.setenv(limit, "12345")
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", OtherCodec(error("another release")))
    assert decoding.region_decoder() is None
    assert os.environ[limit] == "12345" and os.listdir("/dev/fd") == known
    assert capfd.readouterr() == ("", "")
    os.write(2, b"printed again\n")
    assert capfd.readouterr().err == "printed again\n"
    encoded = encode(photo(20, 30))
    assert (
        decoding.decode(encoded, choose=chooses(3, 4, 10, 5)) == pillow(encoded)[3:13, 4:9]
    ).all()


@pytest.mark.parametrize("before", [None, "5"])
def test_nvimagecodec_is_as_verbose_as_the_user_says(before, monkeypatch):
    monkeypatch.delenv("PYNVIMGCODEC_VERBOSITY", raising=False)
    if before:
        monkeypatch.setenv("PYNVIMGCODEC_VERBOSITY", before)
    seen, environ = [], dict(os.environ)
    absent = mock.Mock(side_effect=lambda _: seen.append(dict(os.environ)) or 1 / 0)
    monkeypatch.setattr(importlib, "import_module", absent)
    decoding.region_decoder.cache_clear()
    with pytest.raises(ZeroDivisionError):
        decoding.region_decoder()
    assert seen[0]["PYNVIMGCODEC_VERBOSITY"] == (before or "0")
    assert dict(os.environ) == environ, "as it was"


@pytest.mark.skipif(not decoding.c_stderr()[0], reason="another C library than glibc")
def test_what_c_libraries_print_is_noticed_and_not_shown(capfd):
    libc = ctypes.CDLL(None)
    for printed in False, True, True, False:
        with decoding.hushed() as said:
            assert said == []
            if printed:
                libc.perror(b"libjpeg")
        assert bool(said) == printed
    with pytest.raises(KeyError), decoding.hushed():
        raise KeyError
    assert capfd.readouterr() == ("", "")
    libc.perror(b"libjpeg")
    assert capfd.readouterr().err.startswith("libjpeg: ")


# ---------------------------------------------------------------------------------------- resize


@pytest.mark.parametrize("size", [(17, 40), (64, 48), (90, 31), (90, 70)], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resized_as_pytorch_and_pillow_resize(mode, size):
    """To the pixel; and within half a grey level on average."""
    pixels, out = photo(64, 48), torch.zeros(*size, 3, dtype=torch.uint8)
    before = pixels.copy()
    decoding.resize(pixels, size=size, mode=mode, out=out)
    planes = torch.from_numpy(before).permute(2, 0, 1)[None]
    theirs = torch.nn.functional.interpolate(planes, size, mode=mode, antialias=True)
    assert torch.equal(out, theirs[0].permute(1, 2, 0)) and (pixels == before).all()
    sampling = {"bilinear": PIL.Image.BILINEAR, "bicubic": PIL.Image.BICUBIC}[mode]
    theirs = PIL.Image.fromarray(before).resize(size[::-1], sampling)
    assert np.abs(out.numpy().astype(int) - np.asarray(theirs)).mean() < 0.5


def test_a_region_that_is_a_view_of_bytes_is_resized_in_silence():
    """Bytes cannot be written to, of which PyTorch would warn."""
    pixels = photo(20, 30)
    region = decoding.decode(b"P6 30 20 255\n" + pixels.tobytes(), choose=chooses(3, 4, 10, 5))
    found, expected = torch.zeros(2, 8, 6, 3, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoding.resize(region, size=(8, 6), mode="bilinear", out=found)
    decoding.resize(pixels[3:13, 4:9].copy(), size=(8, 6), mode="bilinear", out=expected)
    assert torch.equal(found, expected) and found.any()


def test_resized_into_a_part_of_a_batch():
    out = torch.zeros(3, 8, 6, 3, dtype=torch.uint8)
    decoding.resize(np.full((4, 4, 3), 7, np.uint8), size=[8, 6], mode="bilinear", out=out[1])
    assert out[1].unique().tolist() == [7] and not out[0].any() and not out[2].any()
