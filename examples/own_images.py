"""Images that are no files, on several ranks: rows of a Parquet file, as Hugging Face has datasets.

    torchrun --nproc_per_node=2 examples/own_images.py ROWS.parquet RUN

ROWS.parquet has the columns `image`, {"bytes": an encoded image}, and `label`, a number from 0. RUN
is the folder of the run; the same command resumes it.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import torch
import torch.distributed as dist
import torchvision
from torchvision.transforms import RandomResizedCrop

from trainparts import devices, errors
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


def schedule(images, step, rank, ranks):
    """Yields this rank's part of the batches from this step on: the batch of a step is the same on
    any number of ranks that divides it."""
    own = BATCH // ranks
    for each in range(step, STEPS):
        epoch, number = divmod(each, images // BATCH)
        generator = torch.Generator().manual_seed(devices.seed_from(SEED, epoch))
        order, first = torch.randperm(images, generator=generator), number * BATCH + rank * own
        yield "train", epoch, first, order[first:][:own].tolist()


def main():
    """Trains on each rank; rank 0 reads and writes the folder."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows, folder = Rows(sys.argv[1]), Path(sys.argv[2])
    torch.manual_seed(SEED)
    model = torchvision.models.resnet18(num_classes=int(rows.target.max()) + 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    found = [None]
    if rank == 0:
        try:  # or the other ranks would wait
            run_folder.open_folder(folder)
            needs = {"step", "model", "optimizer"}
            found = [checkpointing.newest_checkpoint(folder, needs=needs)]
        except (errors.BadInput, errors.Fault) as error:
            found = [error]
    dist.broadcast_object_list(found)
    if isinstance(found[0], Exception):
        raise found[0]
    step = 0
    if found[0]:
        _, saved = found[0]
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    batches = image_loading.load_images(
        schedule(len(rows.target), step, rank, ranks),
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
                checkpointing.write_newest(folder, checkpoint={"step": step, **state})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
