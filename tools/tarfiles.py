"""Tar files of images: what would be left out of one in silence ends in one line."""

import re
import tarfile

COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
}
# Names of tar files, of which only *.tar is read.
NAMES = re.compile(r"\.(tar(\.(gz|bz2|xz|zst|lz4|Z))?|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)


class Odd(ValueError):
    """What is odd about a tar file, in one line."""


def open_tar(file, path):
    """Returns the TarFile of an open file, which `path` names. Raises Odd if it is compressed, of
    which tarfile would only say that its header is invalid."""
    try:
        return tarfile.open(fileobj=file, mode="r:")
    except tarfile.ReadError:
        file.seek(0)
        start = file.read(6)
        for magic, program in COMPRESSED.items():
            if start.startswith(magic):
                cure = f"{program} < FILE > OTHER, and put OTHER in the place of FILE"
                raise Odd(f"{path} is compressed: {cure}") from None
        raise


def members(tar, path, matters=lambda name: True):
    """Yields the members that are files; folders are passed over. Raises Odd at a link whose name
    matters, since its bytes are elsewhere, and where the tar file goes on after its end;
    tarfile.ReadError if it is cut off, which tarfile takes for the end."""
    for member in tar:
        if (member.issym() or member.islnk()) and matters(member.name):
            cure = "pack it by tar --dereference --hard-dereference"
            raise Odd(f"{path}: {member.name} is a link: {cure}")
        if member.isreg():
            yield member
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(512) != bytes(512):
        raise tarfile.ReadError("it is cut off")
    while piece := tar.fileobj.read(1 << 20):
        if piece.strip(b"\0"):
            raise Odd(f"{path} goes on after its end: join tar files by tar -A, not by cat")


def refuse_others(found, paths):
    """Raises Odd if other tar files than `paths` are among what was found: packed, for one."""
    named = (path for path in set(found) - set(paths) if NAMES.search(path.name))
    others = sorted(path for path in named if path.is_file() and path.name[0] != ".")
    if others:
        cure = "only *.tar are: gunzip, rename or move them"
        raise Odd(f"{len(others)} tar files would not be read, as {others[0]}: {cure}")
