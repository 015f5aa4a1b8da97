"""Images that are no files, on several ranks: rows of a Parquet file, as Hugging Face has datasets.

    torchrun --nproc_per_node=2 examples/own_images.py ROWS.parquet RUN

ROWS.parquet has the columns `image`, {"bytes": an encoded image}, and `label`, a number from 0. RUN
is the folder of the run; the same command resumes it.
"""

import functools
import os
import sys

import numpy as np
import pyarrow.parquet
import torch
import torch.distributed as dist
import torchvision
from torchvision.transforms import RandomResizedCrop

from trainparts import devices
from trainparts.images import decoding, image_loading
from trainparts.runs import checkpointing, run_folder

SIZE, BATCH, STEPS, SAVE_EVERY, WORKERS, SEED = 224, 64, 1000, 100, 2, 0  # BATCH: of all ranks


class Rows:
    """What load_images() needs of images: their classes, bytes, and what errors call them.

    For another place, write another read(), as `return dataset[index]["image"]["bytes"]` of a
    Hugging Face dataset whose images are not decoded (`datasets.Image(decode=False)`), or
    `return client.get_object(Bucket=BUCKET, Key=self.keys[index])["Body"].read()`. An OSError is
    tried again; any other exception ends the loop.
    """

    def __init__(self, path):
        """Reads a Parquet file into memory, on each rank."""
        self.name, self.table = path, pyarrow.parquet.read_table(path)
        self.target = np.asarray(self.table["label"])

    def read(self, index):
        """Returns the bytes of an image."""
        return self.table["image"][int(index)]["bytes"].as_py()

    def path(self, index):
        """Returns what errors call an image."""
        return f"{self.name}, row {index}"


def crop(out, key, epoch):
    """Writes a random region into `out`, drawn from (seed, epoch, image)."""
    torch.default_generator.manual_seed(devices.seed_from(SEED, epoch, key))
    region = yield lambda height, width: RandomResizedCrop.get_params(
        torch.empty(height, width, device="meta"), scale=(0.08, 1), ratio=(3 / 4, 4 / 3)
    )
    decoding.resize(region, size=out.shape[:2], mode="bilinear", out=out)
    yield


@functools.lru_cache(1)  # drawn once an epoch
def order_of(images, epoch):
    """Returns the order of the images in an epoch, drawn from (seed, epoch)."""
    generator = torch.Generator().manual_seed(devices.seed_from(SEED, epoch))
    return torch.randperm(images, generator=generator)


def schedule(images, step, rank, ranks):
    """Yields this rank's part of the batches from this step on: the batch of a step is the same on
    any number of ranks that divides it."""
    own = BATCH // ranks
    for each in range(step, STEPS):
        epoch, number = divmod(each, images // BATCH)
        first = number * BATCH + rank * own
        yield "train", epoch, first, order_of(images, epoch)[first:][:own].tolist()


def from_rank_0(work):
    """Returns what work() returns on rank 0, or raises what it raises there, on all ranks: else the
    others would wait for a rank that has ended."""
    result = [None]
    if dist.get_rank() == 0:
        try:
            result = [work()]
        except Exception as error:
            result = [error]
    dist.broadcast_object_list(result)
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


def open_run(folder, about):
    """Locks the folder of the run, and returns its newest checkpoint, or None to begin."""
    run_folder.open_folder(folder)  # no second process writes there
    needs = {"step", "about", "model", "optimizer"}
    path, saved = checkpointing.newest_checkpoint(folder, needs=needs) or (None, None)
    if saved and saved["about"] != about:  # other images in each step, and nobody would notice
        raise ValueError(f"{path} is of {saved['about']}, not {about}: give another RUN")
    return saved


def main():
    """Trains on each rank; rank 0 reads and writes the folder."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows, folder = Rows(sys.argv[1]), sys.argv[2]
    images = len(rows.target)
    if images < BATCH or BATCH % ranks:
        sys.exit(f"{images} images on {ranks} ranks cannot have batches of {BATCH}: change BATCH")
    torch.manual_seed(SEED)
    model = torchvision.models.resnet18(num_classes=int(rows.target.max()) + 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    step, about = 0, {"seed": SEED, "batch": BATCH, "size": SIZE, "images": images}
    if saved := from_rank_0(lambda: open_run(folder, about)):
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    batches = image_loading.load_images(
        schedule(images, step, rank, ranks),
        sources={"train": rows},
        crops={"train": crop},
        size_of=lambda split, epoch: SIZE,
        batch_bytes=BATCH // ranks * SIZE * SIZE * 3,
        workers=WORKERS,
        device=device,
    )
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for pixels, target, _split, _epoch, _position in batches:
        torch.manual_seed(devices.seed_from(SEED, step, rank))  # for dropout
        inputs = pixels.to(device).permute(0, 3, 1, 2).float().sub_(118).div_(58)
        loss = torch.nn.functional.cross_entropy(parallel(inputs), target.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % SAVE_EVERY == 0 or step == STEPS:
            if rank == 0:
                print(f"step {step}  loss {loss.item():.4f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            saved = {"step": step, "about": about, **state}
            save = functools.partial(checkpointing.write_newest, folder, checkpoint=saved)
            from_rank_0(save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
