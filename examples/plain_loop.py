"""A loop of its own that may be killed at any step: the same command resumes it, bit for bit.

    python examples/plain_loop.py DIR/train RUN

DIR/train holds a folder for each class, or shards of tools/make_shards.py. RUN is the folder of the
run, for its checkpoints.
"""

import functools
import sys

import torch
import torchvision
from torchvision.transforms import RandomResizedCrop

from trainparts import devices, endings
from trainparts.images import decoding, image_files, image_loading
from trainparts.runs import checkpointing, run_folder

SIZE, BATCH, STEPS, SAVE_EVERY, WORKERS, SEED = 224, 32, 1000, 100, 2, 0


def crop(out, key, epoch):
    """Writes a random region, mirrored or not, into `out`. It draws from (seed, epoch, image)."""
    torch.default_generator.manual_seed(devices.seed_from(SEED, epoch, key))
    region = yield lambda height, width: RandomResizedCrop.get_params(
        torch.empty(height, width, device="meta"), scale=(0.08, 1), ratio=(3 / 4, 4 / 3)
    )
    decoding.resize(region, size=out.shape[:2], mode="bilinear", out=out)
    if torch.rand(()) < 0.5:
        out.copy_(out.flip(1))
    yield


@functools.lru_cache(1)  # drawn once an epoch
def order_of(images, epoch):
    """Returns the order of the images in an epoch, drawn from (seed, epoch)."""
    generator = torch.Generator().manual_seed(devices.seed_from(SEED, epoch))
    return torch.randperm(images, generator=generator)


def schedule(images, step):
    """Yields the batches from this step on."""
    for each in range(step, STEPS):
        epoch, number = divmod(each, images // BATCH)
        first = number * BATCH
        yield "train", epoch, first, order_of(images, epoch)[first:][:BATCH].tolist()


def main():
    """Trains, saves, and resumes."""
    source, folder = image_files.open_source(sys.argv[1]), sys.argv[2]
    images = len(source.target)
    if images < BATCH:
        sys.exit(f"{sys.argv[1]} has {images} images, fewer than a batch of {BATCH}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(SEED)
    model = torchvision.models.resnet18(num_classes=len(source.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    run_folder.open_folder(folder)  # no second process writes there
    step, about = 0, {"seed": SEED, "batch": BATCH, "size": SIZE, "images": images}
    needs = {"step", "about", "model", "optimizer"}
    if newest := checkpointing.newest_checkpoint(folder, needs=needs):
        path, saved = newest
        if saved["about"] != about:  # other images in each step, and nobody would notice
            sys.exit(f"{path} is of {saved['about']}, not {about}: give another RUN")
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    batches = image_loading.load_images(
        schedule(images, step),
        sources={"train": source},
        crops={"train": crop},
        size_of=lambda split, epoch: SIZE,
        batch_bytes=BATCH * SIZE * SIZE * 3,
        workers=WORKERS,
        device=device,
    )
    signals = []  # SIGTERM, Ctrl-C and the like: the loop saves, and ends
    endings.handle_signals(functools.partial(endings.on_signal, signals))
    for pixels, target, _split, _epoch, _position in batches:  # uint8 (N, SIZE, SIZE, 3), (N,)
        torch.manual_seed(devices.seed_from(SEED, step))  # for dropout
        inputs = pixels.to(device).permute(0, 3, 1, 2).float().sub_(118).div_(58)
        loss = torch.nn.functional.cross_entropy(model(inputs), target.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if signals or step % SAVE_EVERY == 0 or step == STEPS:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpointing.write_newest(folder, checkpoint={"step": step, "about": about, **state})
        if signals:
            sys.exit(143)  # as a process that SIGTERM has ended


if __name__ == "__main__":
    main()
