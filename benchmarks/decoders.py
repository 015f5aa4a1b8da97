"""Images/s per core of decoding a JPEG, cropping and resizing it to 224 pixels, by many decoders.

    python benchmarks/decoders.py DIR                          # has train/<class>/*.JPEG
    python benchmarks/decoders.py DIR --only simplejpeg        # this one, and Pillow

The same --images random training images with the same random crops for all, from memory, on one
core: the time is the processor's. The error is the mean difference, in grey levels of 255, from the
whole image decoded by Pillow, cropped, and resized in float64 with antialiasing.
"""

import io
import sys
import time
from pathlib import Path

import numpy as np
import PIL.ExifTags
import PIL.Image
import torch
import torchvision
from common import ROOT, about, count, interleave, option_parser, pick_images, select, write
from torchvision import transforms

import imagenet_nd as nd

SIZE = 224  # pixels
BASELINE = "Pillow"


def resize(image):
    """Returns uint8 (SIZE, SIZE, 3) of an array (H, W, 3)."""
    planes = torch.as_tensor(image).permute(2, 0, 1)[None]  # a view, channels last: a fast path
    planes = torch.nn.functional.interpolate(planes, (SIZE, SIZE), mode="bilinear", antialias=True)
    return planes[0].permute(1, 2, 0).numpy()


def cut(image, box):
    """Returns the box (top, left, height, width) of an array (H, W, 3)."""
    top, left, height, width = box
    return image[top : top + height, left : left + width]


# A maker returns a function of (bytes of a JPEG, uint8 (N,); box) that gives (SIZE, SIZE, 3) uint8.


def pillow():
    def decode(encoded, box):
        top, left, height, width = box
        image = PIL.Image.open(io.BytesIO(encoded)).convert("RGB")
        image = image.crop((left, top, left + width, top + height))
        return np.asarray(image.resize((SIZE, SIZE), PIL.Image.BILINEAR))

    return decode


def pillow_draft():
    def decode(encoded, box):
        top, left, height, width = box
        image = PIL.Image.open(io.BytesIO(encoded))
        whole = image.width, image.height
        # An eighth, quarter or half of the image, so that the crop still has SIZE pixels.
        image.draft("RGB", (SIZE * image.width // width + 1, SIZE * image.height // height + 1))
        x, y = image.width / whole[0], image.height / whole[1]
        part = left * x, top * y, (left + width) * x, (top + height) * y
        image = image.convert("RGB").resize((SIZE, SIZE), PIL.Image.BILINEAR, box=part)
        return np.asarray(image)

    return decode


def pillow_gap():
    def decode(encoded, box):
        top, left, height, width = box
        image = PIL.Image.open(io.BytesIO(encoded)).convert("RGB")
        part = left, top, left + width, top + height
        size = SIZE, SIZE
        return np.asarray(image.resize(size, PIL.Image.BILINEAR, box=part, reducing_gap=2))

    return decode


def torchvision_io():
    rgb = torchvision.io.ImageReadMode.RGB

    def decode(encoded, box):
        image = torchvision.io.decode_jpeg(torch.from_numpy(encoded), rgb)
        return resize(cut(image.permute(1, 2, 0), box))

    return decode


def torchcodec():
    from torchcodec.decoders import decode_jpeg

    def decode(encoded, box):
        return resize(cut(decode_jpeg(torch.from_numpy(encoded)).permute(1, 2, 0), box))

    return decode


def simplejpeg():
    from simplejpeg import decode_jpeg

    return lambda encoded, box: resize(cut(decode_jpeg(encoded), box))


def pyturbojpeg():
    from turbojpeg import TJPF_RGB, TurboJPEG

    library = TurboJPEG()
    return lambda encoded, box: resize(
        cut(library.decode(encoded.tobytes(), pixel_format=TJPF_RGB), box)
    )


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
    BASELINE: pillow,
    "Pillow, draft": pillow_draft,
    "Pillow, resize(box=, reducing_gap=2)": pillow_gap,
    "OpenCV, INTER_AREA": opencv,
    "torchvision.io": torchvision_io,
    "torchcodec": torchcodec,
    "PyTurboJPEG": pyturbojpeg,
    "simplejpeg": simplejpeg,
    "nvImageCodec, CPU, the crop alone": nvimagecodec,
}


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


def measure(makers, jpegs, rounds):
    """Returns rows: images/s of every round, after one to warm up, and the error; or why not."""
    rows, ways = {}, {}
    exact = [reference(*each) for each in jpegs]
    for name, make in makers.items():
        row = rows[name] = {
            "name": name,
            "values": [],
            "error, grey levels": "",
            "not measured": "",
        }
        try:
            decode = make()
            print(f"warming up: {name}", file=sys.stderr, flush=True)
            errors = [
                np.abs(decode(*each) - right).mean()
                for each, right in zip(jpegs, exact, strict=True)
            ]
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            missing = isinstance(error, ModuleNotFoundError) and f"{error.name} is not installed"
            row["not measured"] = missing or nd.first_line(error)
            continue
        row["error, grey levels"] = float(np.mean(errors))
        ways[name] = images_per_second(decode, jpegs)
    for name, values in interleave(ways, rounds).items():
        rows[name]["values"] = values
    return list(rows.values())


def images_per_second(decode, jpegs):
    """Returns a function that decodes all and returns the images per second of processor time."""

    def way():
        started = time.process_time()
        for each in jpegs:
            decode(*each)
        return len(jpegs) / (time.process_time() - started)

    return way


def main():
    """Measures all decoders, writes the table."""
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("dir", metavar="DIR", type=Path, help="has train/<class>/*.JPEG")
    add("--images", type=count, default=240, help="(%(default)s)")
    add("--rounds", type=count, default=5, help="(%(default)s)")
    add("--only", nargs="+", metavar="NAME", help="rows with these words, beside the baseline")
    add("--out", type=Path, default=ROOT / "logs" / "benchmarks" / "decoders.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        makers = select(DECODERS, args.only, BASELINE)
        jpegs, pixels = read_jpegs(pick_images(args.dir, args.images))
        rows = measure(makers, jpegs, args.rounds)
    except (nd.BadInput, OSError) as error:  # Pillow names the file
        parser.error(nd.first_line(error))
    kilobytes = np.mean([len(encoded) for encoded, _ in jpegs]) / 1000
    facts = {"images": len(jpegs), "mean_kB": round(kilobytes)}
    facts["mean_megapixels"] = round(pixels / 1e6, 2)
    packages = ("torchcodec", "simplejpeg", "pyturbojpeg", "opencv-python-headless")
    versions = about(*packages, "nvidia-nvimgcodec")
    title = f"Decoding, cropping and resizing to {SIZE} pixels"
    write(args.out, title, "images/s per core", rows, BASELINE, versions, facts)


if __name__ == "__main__":
    main()
