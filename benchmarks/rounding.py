"""How far two loss curves part in float32 that are equal but for the order of their sums.

    python benchmarks/rounding.py                        # nine models
    python benchmarks/rounding.py --rate 0.5 timm/test_vit

imagenet_nd.py trains each model twice on the demo set, with the same seed and batch: as a whole,
and as four parts whose gradients are accumulated. Nothing else differs, so their losses differ by
float32's rounding, which grows from step to step. text_nd.py does the same with its transformer.
Printed, as a table, are the largest relative differences in the second step, after one update, and
over all 20, and by how much the loss has fallen; nothing is kept. Logs have losses in float32, so
a difference below 6e-8 may be 0 here.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]
STEPS, BATCH = 20, 16
MODELS = {
    "text_nd.py's transformer": ["text_nd.py"],
    **{
        f"timm/{name}": ["imagenet_nd.py", "-a", f"timm/{name}", "--image-size", "64", "-j", "0"]
        for name in (
            "test_vit",
            "test_vit2",
            "test_convnext",
            "test_mambaout",
            "test_nfnet",
            "test_efficientnet_evos",
            "test_efficientnet_ln",
            "test_efficientnet_gn",
        )
    },
}


def losses(words, folder, parts):
    """Returns the loss of each step of a run in this folder, in `parts` of a batch."""
    script, *options = words
    sizes = ["-b", BATCH // parts, "--accumulation", parts, "--steps-per-epoch", STEPS]
    sizes += ["--epochs", 1, "--warmup-epochs", 0, "-p", 1, "--no-accel"]
    command = [sys.executable, ROOT / script, *options, *sizes, "--output-dir", folder / str(parts)]
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode())
    log = EventAccumulator(str(folder / str(parts))).Reload()
    return [event.value for event in log.Scalars("Loss/step")]


def main():
    """Prints a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="some of those in the table")
    parser.add_argument("--rate", default="0.1", help="the learning rate (%(default)s)")
    args = parser.parse_args()
    if odd := [name for name in args.models if name not in MODELS]:
        parser.error(f"{odd[0]} is none of {', '.join(MODELS)}")
    print(f"| model | step 2 | {STEPS} steps | loss |\n|---|---|---|---|")
    for name in args.models or MODELS:
        words = MODELS[name]
        if words[0] == "imagenet_nd.py":  # text's has the rate of its optimizer, AdamW
            words = [*words, "--lr", args.rate]
        with tempfile.TemporaryDirectory() as folder:
            one, four = (losses(words, Path(folder), parts) for parts in (1, 4))
        apart = [abs(a - b) / a for a, b in zip(one, four, strict=True)]
        fell = f"{one[0]:.3f} to {min(one):.3f}"
        print(f"| {name} | {apart[1]:.1e} | {max(apart):.1e} | {fell} |", flush=True)


if __name__ == "__main__":
    main()
