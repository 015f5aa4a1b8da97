"""trainparts/images/augmentation_policies.py: torchvision's and timm's policies, by a seed."""

import random
import sys

import numpy as np
import PIL.Image
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

from trainparts.images import augmentation_policies

GREY = (124, 116, 104)
needs_timm = pytest.mark.usefixtures("theirs")


@pytest.fixture
def theirs():
    """timm's module of policies."""
    return pytest.importorskip("timm.data.auto_augment")


def picture(seed=0):
    """Returns a tensor of an image, uint8 (H, W, 3), of some edges and colours."""
    rough = np.random.RandomState(seed).randint(0, 256, (6, 8, 3)).astype(np.uint8)
    return torch.from_numpy(np.array(PIL.Image.fromarray(rough).resize((40, 30))))


def applied(policy, seed, image=None):
    """Returns what a policy makes of an image."""
    image = picture() if image is None else image
    augmentation_policies.apply_policy(policy, image, seed=seed)
    return image


# -------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    ["off", "trivial", "rand", "auto", "augmix", "rand-m6-mstd0.5-inc1", "rand-m9"]
    + ["rand-p0.5-n2-mmax10.5-m3", "rand-m0", "rand-p1-m10-inc0"],
)
def test_these_names_are_known(name):
    assert augmentation_policies.is_known(name)


@pytest.mark.parametrize(
    "name",
    ["", "Trivial", "off ", "rand-", "rand-x1", "rand-m", "rand-m1.5", "rand-m6-", "rand-m6\n"]
    + ["rand-n2.5", "rand-mstd", "rand-mstd.5", "rand-p1.", "augmix-m3", "original", "v0"]
    + ["xrand-m6", "rand-m-1", "rand_m6", "rand-w0", "rand-tforms"],
)
def test_other_names_are_not_known(name):
    """timm would take some of them as another policy, in silence."""
    assert not augmentation_policies.is_known(name)


def test_the_names_are_listed_for_a_reader():
    expected = "off, trivial, rand, auto, augmix, or one of timm's such as rand-m6-mstd0.5-inc1"
    assert expected == augmentation_policies.NAMES


# ------------------------------------------------------------------------------------ torchvision's


def test_off_is_no_policy():
    assert augmentation_policies.make_policy("off", "bilinear", GREY) is None


@pytest.mark.parametrize(
    ("name", "kind", "interpolation"),
    [
        ("trivial", v2.TrivialAugmentWide, "bilinear"),
        ("trivial", v2.TrivialAugmentWide, "bicubic"),
        ("rand", v2.RandAugment, "bicubic"),
        ("auto", v2.AutoAugment, "bicubic"),
        ("augmix", v2.AugMix, "bilinear"),
    ],
)
def test_torchvisions_policies_are_its_own_and_resample_as_asked(name, kind, interpolation):
    compare(augmentation_policies.make_policy(name, interpolation, GREY), kind, interpolation)


def test_augmix_is_bilinear_where_the_model_is_bicubic():
    """torchvision computes AugMix on tensors, which it does not resample bicubically."""
    compare(augmentation_policies.make_policy("augmix", "bicubic", GREY), v2.AugMix, "bilinear")


def compare(policy, kind, interpolation):
    """Asserts that a policy does what torchvision's does that resamples so."""
    assert type(policy) is kind
    expected = kind(interpolation=InterpolationMode(interpolation))
    for seed in range(12):
        image = PIL.Image.fromarray(picture().numpy())
        torch.manual_seed(seed)
        right = torch.from_numpy(np.array(expected(image)))
        assert torch.equal(applied(policy, seed), right)


# ------------------------------------------------------------------------------------------- timm's


def test_timms_policies_are_its_own(theirs):
    """Of the same draws; a posterization to 0 bits, which Pillow refuses, is left out of these."""
    name, changed = "rand-m4-mstd0.5-inc1", 0
    policy = augmentation_policies.make_policy(name, "bilinear", GREY)
    expected = theirs.rand_augment_transform(name, {"img_mean": GREY})
    for seed in range(30):
        image = PIL.Image.fromarray(picture().numpy())
        random.seed(seed)
        np.random.seed(seed)
        right = torch.from_numpy(np.array(expected(image)))
        assert torch.equal(applied(policy, seed), right), seed
        changed += not torch.equal(right, picture())
    assert changed > 10


@needs_timm
def test_timms_policies_fill_with_the_mean_colour():
    """As timm's transforms do; torchvision's fill with black."""
    colour, white = (10, 200, 30), np.full((64, 64, 3), 255, np.uint8)
    policy = augmentation_policies.make_policy("rand-m9-p1", "bicubic", colour)
    rotate = next(op for op in policy.ops if op.name == "Rotate")
    corner = np.asarray(rotate(PIL.Image.fromarray(white)))[0, 0]
    assert corner.tolist() == [*colour]


@pytest.mark.parametrize("name", ["rand-m9-mstd0.5-inc1", "rand-m0"])
def test_a_bit_is_kept_however_large_the_magnitude(theirs, name):
    """Pillow posterizes to one bit at least; more bits are as many as timm keeps."""
    options, white = {"img_mean": GREY}, PIL.Image.new("RGB", (4, 4), (255, 255, 255))
    policy = augmentation_policies.make_policy(name, "bilinear", GREY)
    found = 0
    for op, own in zip(policy.ops, theirs.rand_augment_transform(name, options).ops, strict=True):
        assert op.name == own.name
        if op.name.startswith("Posterize"):
            found += 1
            bits = [op.level_fn(level, op.hparams) for level in range(11)]
            right = [own.level_fn(level, own.hparams)[0] for level in range(11)]
            assert bits == [(max(1, each),) for each in right] and 0 in right and 4 in right
            for level in 0, 10:
                op.prob, op.magnitude, op.magnitude_std = 1, level, 0
                assert np.asarray(op(white)).min() >= 128, "the first bit"
    assert found == 1


def test_a_missing_timm_is_an_import_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.data.auto_augment", None)
    with pytest.raises(ImportError):
        augmentation_policies.make_policy("rand-m9", "bilinear", GREY)
    assert augmentation_policies.make_policy("rand", "bilinear", GREY)


# -------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 3, 2**63 - 1])
def test_all_three_generators_draw_from_the_seed(seed):
    drawn = []

    def policy(image):
        drawn.extend([float(torch.rand(())), random.random(), np.random.rand()])
        return image

    applied(policy, seed)
    generator = torch.Generator().manual_seed(seed)
    assert drawn == [
        float(torch.rand((), generator=generator)),
        random.Random(seed).random(),
        np.random.RandomState(seed % 2**32).rand(),
    ]


def test_pytorchs_generator_alone_is_left_as_it_was():
    """Dropout draws from it in the same process."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    applied(lambda image: (torch.rand(9), image)[1], 1)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="a policy's own"):
        applied(drawn_and_failed, 1)
    assert torch.equal(torch.get_rng_state(), before)


def drawn_and_failed(image):
    torch.rand(9)
    raise ValueError("a policy's own")


@pytest.mark.parametrize("name", ["trivial", "rand-m9-mstd0.5-inc1"])
def test_a_seed_decides_what_is_drawn(name):
    if "-" in name:
        pytest.importorskip("timm")
    policy = augmentation_policies.make_policy(name, "bilinear", GREY)
    once, again = ([applied(policy, seed) for seed in range(20)] for _ in range(2))
    assert all(map(torch.equal, once, again))
    assert len({image.numpy().tobytes() for image in once}) > 10


def test_the_image_alone_is_changed_in_place():
    """One of a batch, in the pixels' order."""
    batch = torch.stack([picture(seed) for seed in range(3)])
    before, seen = batch.clone(), []

    def policy(image):
        seen.append(np.array(image))
        return image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)

    assert augmentation_policies.apply_policy(policy, batch[1], seed=0) is None
    assert np.array_equal(seen[0], before[1].numpy())
    assert torch.equal(batch[1], before[1].flip(1))
    assert torch.equal(batch[0], before[0]) and torch.equal(batch[2], before[2])
