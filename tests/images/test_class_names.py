"""trainparts/images/class_names.py: classes of folders, as the numbers of a model's outputs."""

import numpy as np
import pytest
import timm.data
from torchvision import models

from trainparts import errors
from trainparts.images import architectures, class_names, image_files

CLASSES = ["bird", "cat", "dog"]
IDS = class_names.IMAGENET
NUMBERS = [str(number) for number in range(1000)]
WORDS = [f"{name}{'_ -'[label % 3]}word" for label, name in enumerate(IDS)]
PUBLISHED, THEIRS = ({"what": "W", "published": each} for each in (True, False))


def source(classes, target, folder="DIR/val", **more):
    """Returns the Source of images in these classes, by numbers."""
    nothing = np.zeros(len(target), int)
    names = np.array([b"0.png"])
    target = np.array(target, int)
    return image_files.Source(folder, classes, names, nothing, nothing, nothing, target, **more)


def refusal(call, *words):
    """Returns the line of the BadInput that a call raises."""
    with pytest.raises(errors.BadInput) as raised:
        call(*words)
    return str(raised.value)


def test_imagenets_classes_are_in_the_order_of_published_weights():
    """timm has a list of its own."""
    info = timm.data.ImageNetInfo()
    assert [info.index_to_label_name(number) for number in range(1000)] == IDS
    assert (IDS[0], IDS[7], IDS[999]) == ("n01440764", "n01514668", "n15075141")


# --------------------------------------------------------------------------------- order of outputs


def test_names_of_1000_outputs():
    """Of published weights they are ImageNet's, if all folders are: by ids, which a word may
    follow, or by all numbers. Of others they are as many folders. What a file says goes first."""
    for about in PUBLISHED, THEIRS:
        for found in IDS, WORDS, WORDS[:200] + IDS[200:]:
            assert class_names.order_classes(found, 1000, about) == found
        assert class_names.order_classes(WORDS, 1000, about | {"classes": CLASSES}) == CLASSES
        assert class_names.order_classes(CLASSES, 3, about) == CLASSES
        assert class_names.order_classes(IDS[5:8], 3, about) == IDS[5:8], "a model of these"
    some = class_names.order_classes(WORDS[7:9], 1000, PUBLISHED)
    assert some == [*IDS[:7], *WORDS[7:9], *IDS[9:]]
    assert class_names.order_classes(IDS[5:200:3], 1000, PUBLISHED) == IDS
    assert class_names.order_classes(sorted(NUMBERS), 1000, PUBLISHED) == NUMBERS
    assert class_names.order_classes(sorted(NUMBERS), 1000, THEIRS) == sorted(NUMBERS)
    categories = sorted(models.ResNet18_Weights.DEFAULT.meta["categories"])
    assert class_names.order_classes(categories, 1000, THEIRS) == categories


CATEGORY = sorted(models.ResNet18_Weights.DEFAULT.meta["categories"])[0]


@pytest.mark.parametrize(
    ("found", "name", "how"),
    [
        ([IDS[0], f"{IDS[0]}_again"], f"{IDS[0]}_again", "is a second one"),
        ([*IDS[:-1], "n15075142"], "n15075142", "is none"),
        ([*IDS[:-1], IDS[-1].upper()], IDS[-1].upper(), "is none"),
        ([f"{IDS[0]}5"[1:]], f"{IDS[0]}5"[1:], "is none"),
        (["0", "1"], "0", "is none"),  # fewer numbers are those of any data set
        ([str(number) for number in range(1, 1001)], "1", "is none"),
        ([*map(str, range(999)), "0999"], "0", "is none"),
        ([IDS[7], "cat"], "cat", "is none"),
        (sorted(models.ResNet18_Weights.DEFAULT.meta["categories"]), CATEGORY, "is none"),
    ],
)
def test_a_folder_that_is_no_class_of_imagenets_is_named(found, name, how):
    line = (
        f"W: its outputs are ImageNet's 1,000 classes, and DIR's folder {name} {how}: call each by "
        "its WordNet id, such as n01440764, or call all by 0 to 999"
    )
    assert refusal(class_names.order_classes, found, 1000, PUBLISHED) == line
    assert refusal(class_names.name_imagenet, found, "W") == line


@pytest.mark.parametrize(
    ("outputs", "about"), [(7, PUBLISHED), (7, THEIRS), (1000, THEIRS), (3, THEIRS)]
)
@pytest.mark.parametrize("found", [["11", "7"], IDS[5:7], [*"abcd"]])
def test_outputs_that_nothing_names_are_refused(outputs, about, found):
    """A model of 1,000 outputs that was trained on three classes has them first."""
    names = ", ".join(found[:3]) + ", ..." * (len(found) > 3)
    assert refusal(class_names.order_classes, found, outputs, about) == (
        f"W: its number of outputs is {outputs:,}, that of DIR's classes is {len(found)} ({names}):"
        " give train/ a folder for each output, which may be empty"
    )


# ------------------------------------------------------------------------------- targets of outputs


def test_targets_are_outputs_of_the_classes_that_a_file_names():
    """Whatever the order of DIR's folders, and though it has fewer."""
    train, val = source(["cat", "dog"], []), source(["dog"], [0, 0])
    about = THEIRS | {"num_classes": 3, "classes": CLASSES}
    train, val, outputs = class_names.name_outputs(train, val, about, None)
    assert (train.classes, val.classes, outputs) == (CLASSES, CLASSES, 3)
    assert val.target.tolist() == [2, 2]


def test_targets_of_published_weights_are_imagenets():
    found = ["n01440764_tench", "n01514668"]
    train, val = source(found, []), source(found, [0, 1, 1])
    about = PUBLISHED | {"num_classes": 1000}
    _, val, outputs = class_names.name_outputs(train, val, about, 1000)
    assert outputs == 1000 and val.target.tolist() == [0, 7, 7]
    assert val.classes == ["n01440764_tench", *IDS[1:]]


def test_classes_of_train_name_the_outputs_of_a_file_that_names_none():
    train, val = source(CLASSES, [], "DIR/train"), source(["cat"], [0])
    for about in THEIRS | {"num_classes": 3}, THEIRS | {"num_classes": 0}, THEIRS:
        _, named, outputs = class_names.name_outputs(train, val, about, None)
        assert (named.classes, named.target.tolist(), outputs) == (CLASSES, [1], 3)


def test_a_model_that_timm_publishes_without_a_classifier_has_outputs_for_the_classes():
    dino = architectures.preset_of("timm/vit_small_patch14_dinov2.lvd142m").about()
    two = image_files.synthetic_source(4)._replace(classes=["a", "b"])
    assert dino["num_classes"] == 0
    assert class_names.name_outputs(two, two, PUBLISHED | dino, None)[2] == 2


@pytest.mark.parametrize(
    ("train", "val", "about", "line"),
    [
        (
            CLASSES,
            ["zebra"],
            THEIRS,
            "DIR/val: 1 of 1 classes are not in train/, as zebra; known are bird, cat, dog",
        ),
        (
            ["cat", "zebra"],
            ["cat"],
            THEIRS | {"classes": CLASSES},
            "DIR/train: 1 of 2 classes are not in W, as zebra; known are bird, cat, dog",
        ),
        (
            ["cat", "dog"],
            ["cat", "zebra"],
            THEIRS | {"classes": CLASSES},
            "DIR/val: 1 of 2 classes are not in W, as zebra; known are bird, cat, dog",
        ),
    ],
)
def test_a_class_that_has_no_output_is_refused(train, val, about, line):
    train, val = source(train, [], "DIR/train"), source(val, [0])
    assert refusal(class_names.name_outputs, train, val, about, None) == line


@pytest.mark.parametrize("theirs", [3, 1000])
def test_another_number_than_a_files_outputs_is_not_typed(theirs):
    two = image_files.synthetic_source(4)
    about = THEIRS | {"num_classes": theirs}
    line = f"W: its number of outputs is {theirs:,}: omit --num-classes"
    assert refusal(class_names.name_outputs, two, two, about, 4) == line
    assert class_names.name_outputs(two, two, about, theirs)[2] == theirs


def test_a_typed_number_counts_where_a_file_says_none():
    train, val = source(CLASSES, []), source(CLASSES, [0])
    assert class_names.name_outputs(train, val, THEIRS, 3)[2] == 3
    line = refusal(class_names.name_outputs, train, val, THEIRS, 5)
    assert line.startswith("W: its number of outputs is 5, that of DIR's classes is 3 (bird, cat,")


@pytest.mark.parametrize(
    ("typed", "theirs", "expected"), [(None, None, 1000), (None, 7, 7), (9, None, 9), (9, 0, 9)]
)
def test_synthetic_images_have_no_names(typed, theirs, expected):
    one, two = image_files.synthetic_source(2), image_files.synthetic_source(4)
    about = THEIRS | ({} if theirs is None else {"num_classes": theirs})
    train, val, outputs = class_names.name_outputs(one, two, about, typed)
    assert train is one and val is two and outputs == expected


# ------------------------------------------------------------------------------ lines on the images


def test_images_of_training_and_of_validation_are_counted():
    train = source(CLASSES, [0, 1, 2] * 500, "DIR/train", not_read="3 *.txt")
    val = source(CLASSES, [1, 1])
    assert class_names.about_images(train, val, 99) == [
        "1,500 training and 2 validation images, 3 classes",
        "DIR/train: files that are not read: 3 *.txt",
        "DIR/val: 1 of 3 classes have images; without: bird, dog",
    ]


def test_in_an_evaluation_train_counts_no_images_and_has_no_gaps():
    train = source(NUMBERS, [], "DIR/train", not_read="3 *.txt")
    assert class_names.about_images(train, source(NUMBERS, [*range(1000)] * 2), 99) == [
        "2,000 validation images, 1,000 classes",
        "Classes are sorted as numbers: 0, 1, 2, ...",
    ]


def test_synthetic_images_are_said_to_be_so():
    several, none = image_files.synthetic_source(4000), image_files.synthetic_source(0)
    line = "4,000 training and 4,000 validation images, 1,000 classes, all synthetic"
    assert class_names.about_images(several, several, 1000) == [line]
    line = "4,000 validation images, 10 classes, all synthetic"
    assert class_names.about_images(none, several, 10) == [line]


TEXT = "text, as torchvision does, where timm sorts them as numbers"


@pytest.mark.parametrize(
    ("classes", "line"),
    [
        (sorted(map(str, range(12))), f"Classes are sorted as {TEXT}: 0, 1, 10, ..."),
        ([*map(str, range(12))], "Classes are sorted as numbers: 0, 1, 2, ..."),
        (["10", "9", "8"], "Classes are sorted as numbers: 10, 9, 8"),
        (["10", "11", "9"], f"Classes are sorted as {TEXT}: 10, 11, 9"),
        ([*map(str, range(10))], None),
        (["08", "09", "10"], None),
        (["1", "10", "9", "a"], None),
        (["1", "-10", "9"], None),
        (CLASSES, None),
    ],
)
def test_a_line_is_on_the_order_of_numbers_where_text_has_another(classes, line):
    assert class_names.order_of_numbers(classes) == ([line] if line else [])
