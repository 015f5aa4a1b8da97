"""Images/s per core of decoding a JPEG, cropping and resizing it to 224 pixels, by many decoders.

    python benchmarks/decoders.py DIR                          # has train/<class>/*.JPEG
    python benchmarks/decoders.py DIR --only simplejpeg        # this one, and Pillow

The same --images random training images with the same random crops for all, from memory, on one
core: the time is the processor's. The error is the mean difference, in grey levels of 255, from the
whole image decoded by Pillow, cropped, and resized in float64 with antialiasing.
"""

import functools
import io
import sys
import time

import common
import numpy as np
import PIL.ExifTags
import PIL.Image
import torch
import torchvision
from common import DIR, ONLY, UNMEASURED, count, option
from torchvision import transforms

import imagenet_nd as nd

SIZE = 224  # pixels
BASELINE, ERROR = "Pillow", "error, grey levels"


def resize(image):
    """Returns uint8 (SIZE, SIZE, 3) of an array (H, W, 3)."""
    planes = torch.as_tensor(image).permute(2, 0, 1)[None]  # a view, channels last: a fast path
    planes = torch.nn.functional.interpolate(planes, (SIZE, SIZE), mode="bilinear", antialias=True)
    return planes[0].permute(1, 2, 0).numpy()


def cut(image, box):
    """Returns the box (top, left, height, width) of an array (H, W, 3)."""
    top, left, height, width = box
    return image[top : top + height, left : left + width]


# ------------------------------------------------------------------------------------- the decoders
# Each takes the bytes of a JPEG, uint8 (N,), and a box, and returns uint8 (SIZE, SIZE, 3).


def pillow(encoded, box):
    top, left, height, width = box
    image = PIL.Image.open(io.BytesIO(encoded)).convert("RGB")
    image = image.crop((left, top, left + width, top + height))
    return np.asarray(image.resize((SIZE, SIZE), PIL.Image.BILINEAR))


def pillow_draft(encoded, box):
    top, left, height, width = box
    image = PIL.Image.open(io.BytesIO(encoded))
    whole = image.width, image.height
    # An eighth, quarter or half of the image, so that the crop still has SIZE pixels.
    image.draft("RGB", (SIZE * image.width // width + 1, SIZE * image.height // height + 1))
    x, y = image.width / whole[0], image.height / whole[1]
    part = left * x, top * y, (left + width) * x, (top + height) * y
    return np.asarray(image.convert("RGB").resize((SIZE, SIZE), PIL.Image.BILINEAR, box=part))


def pillow_gap(encoded, box):
    top, left, height, width = box
    image = PIL.Image.open(io.BytesIO(encoded)).convert("RGB")
    part, size = (left, top, left + width, top + height), (SIZE, SIZE)
    return np.asarray(image.resize(size, PIL.Image.BILINEAR, box=part, reducing_gap=2))


# The others are made, since they may not be installed, and some are objects.


def whole_by(decode):
    """Returns a decoder: all of the image by decode(encoded), uint8 (H, W, 3), cut and resized."""
    return lambda encoded, box: resize(cut(decode(encoded), box))


def torchvision_io():
    decode, rgb = torchvision.io.decode_jpeg, torchvision.io.ImageReadMode.RGB
    return whole_by(lambda encoded: decode(torch.from_numpy(encoded), rgb).permute(1, 2, 0))


def torchcodec():
    from torchcodec.decoders import decode_jpeg

    return whole_by(lambda encoded: decode_jpeg(torch.from_numpy(encoded)).permute(1, 2, 0))


def simplejpeg():
    from simplejpeg import decode_jpeg

    return whole_by(decode_jpeg)


def pyturbojpeg():
    from turbojpeg import TJPF_RGB, TurboJPEG

    decode = TurboJPEG().decode
    return whole_by(lambda encoded: decode(encoded.tobytes(), pixel_format=TJPF_RGB))


def opencv():
    import cv2

    cv2.setNumThreads(0)
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION

    def decode(encoded, box):
        image = cut(cv2.imdecode(encoded, flags), box)
        # INTER_AREA is nearest-neighbour where it enlarges.
        mode = cv2.INTER_AREA if min(image.shape[:2]) > SIZE else cv2.INTER_LINEAR
        return cv2.resize(image, (SIZE, SIZE), interpolation=mode)

    return decode


def nvimagecodec():
    from nvidia import nvimgcodec as nv

    backends = [nv.Backend(nv.BackendKind.CPU_ONLY)]
    options = {"max_num_cpu_threads": 1, "backends": backends}
    decoder = nv.Decoder(device_id=nv.NVIMGCODEC_DEVICE_CPU_ONLY, **options)
    plain = nv.DecodeParams(apply_exif_orientation=False, color_spec=nv.ColorSpec.SRGB)

    def decode(encoded, box):
        top, left, height, width = box
        region = nv.Region(top, left, top + height, left + width)
        stream = nv.CodeStream(encoded).get_sub_code_stream(region=region)
        return resize(np.asarray(decoder.decode(stream, params=plain)))

    return decode


DECODERS = {
    BASELINE: lambda: pillow,
    "Pillow, draft": lambda: pillow_draft,
    "Pillow, resize(box=, reducing_gap=2)": lambda: pillow_gap,
    "OpenCV, INTER_AREA": opencv,
    "torchvision.io": torchvision_io,
    "torchcodec": torchcodec,
    "PyTurboJPEG": pyturbojpeg,
    "simplejpeg": simplejpeg,
    "nvImageCodec, CPU, the crop alone": nvimagecodec,
}


# --------------------------------------------------------------------------------------- measuring


def reference(encoded, box):
    """Returns what is exact, float64 (SIZE, SIZE, 3)."""
    image = np.array(PIL.Image.open(io.BytesIO(encoded)).convert("RGB"), np.float64)
    return resize(cut(image, box))


def read_jpegs(paths):
    """Returns [(bytes, uint8 (N,); a crop's box)] of those that are RGB JPEGs, not turned by
    EXIF, and the mean number of their pixels."""
    jpegs, pixels = [], []
    torch.manual_seed(0)
    for path in paths:
        with PIL.Image.open(path) as image:
            turned = image.getexif().get(PIL.ExifTags.Base.Orientation, 1) != 1
            if (image.format, image.mode) != ("JPEG", "RGB") or turned:
                continue  # ImageNet has a few, which not all of these decode, or not alike
            shape = torch.empty(3, image.height, image.width, device="meta")
        box = transforms.RandomResizedCrop.get_params(shape, [0.08, 1], [3 / 4, 4 / 3])
        jpegs.append((np.fromfile(path, np.uint8), box))
        pixels.append(shape.shape[1] * shape.shape[2])
    if not jpegs:
        raise nd.BadInput(f"{paths[0]} and {len(paths) - 1} more: none is an upright RGB JPEG")
    return jpegs, np.mean(pixels)


def images_per_second(decode, jpegs):
    """Returns the images per second of processor time in which all are decoded."""
    started = time.process_time()
    for each in jpegs:
        decode(*each)
    return len(jpegs) / (time.process_time() - started)


def measure(args, _):
    """Measures all decoders after one round to warm up, with their errors; writes the table."""
    torch.set_num_threads(1)
    makers = common.select(DECODERS, args.only, BASELINE)
    jpegs, pixels = read_jpegs(common.pick_images(args.dir, args.images))
    exact, rows, ways = [reference(*each) for each in jpegs], {}, {}
    for name, make in makers.items():
        print(f"warming up: {name}", file=sys.stderr, flush=True)
        row = rows[name] = {"name": name, "values": [], ERROR: "", UNMEASURED: ""}
        try:
            decode = make()
            pairs = zip(jpegs, exact, strict=True)
            row[ERROR] = float(
                np.mean([abs(decode(*each) - right).mean() for each, right in pairs])
            )
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            row[UNMEASURED] = common.reason(error)
        else:
            ways[name] = functools.partial(images_per_second, decode, jpegs)
    for name, values in common.interleave(ways, args.rounds).items():
        rows[name]["values"] = values
    kilobytes = np.mean([len(encoded) for encoded, _ in jpegs]) / 1000
    facts = {"images": len(jpegs), "mean_kB": round(kilobytes)}
    facts["mean_megapixels"] = round(pixels / 1e6, 2)
    packages = "torchcodec simplejpeg pyturbojpeg opencv-python-headless nvidia-nvimgcodec".split()
    title, rows = f"Decoding, cropping and resizing to {SIZE} pixels", list(rows.values())
    common.write(args.out, title, "images/s per core", rows, BASELINE, facts, *packages)


OPTIONS = [
    DIR,
    option("--images", type=count, default=240),
    option("--rounds", type=count, default=5),
    ONLY,
]
main = functools.partial(common.main, __doc__, measure, "decoders", OPTIONS)

if __name__ == "__main__":
    main()
