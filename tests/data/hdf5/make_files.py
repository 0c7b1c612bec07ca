#!/usr/bin/env python3
"""Writes the HDF5 files beside it with h5py, as other programs write them: good_*.h5, which must load, and odd_*.h5, which
must not do any harm. They are the fuzzer's corpus, too, so they are small. In good files, the elements of every dataset are
0, 1, 2, ... 99, 0, ..."""
import json
from pathlib import Path

import h5py
import numpy as np

FOLDER = Path(__file__).parent


def numbers(shape, dtype="f4"):
    return (np.arange(np.prod(shape, dtype=int)) % 100).reshape(shape).astype(dtype)


def create(name, **options):
    return h5py.File(FOLDER / f"{name}.h5", "w", meta_block_size=64, **options)


def types(f):
    for dtype in ["f8", ">f4", "f2", "i1", ">i2", "u2", "i4", "u4", ">i8", "u8", "u1"]:
        f[f"types/{dtype.replace('>', 'big_')}"] = numbers((3, 5), dtype)
    f["types/bool"] = numbers((2,), "?")
    f["scalar"] = np.float32(0)
    f["empty"] = np.zeros((0, 3), "f4")
    for i in range(10):
        f.attrs[f"attribute_{i}"] = np.bytes_(f"value {i}")


def chunked(f):
    a = numbers((10, 7, 3), "u1")
    f.create_dataset("plain", data=a, chunks=(4, 3, 3))
    f.create_dataset("filtered", data=a.astype("f4"), chunks=(4, 3, 2), compression="gzip", shuffle=True, fletcher32=True)
    f["tied"] = f["plain"]


def growing(f):
    a = numbers((10, 7, 3), "u1")
    f.create_dataset("one", data=a, chunks=(10, 7, 3), compression="gzip")
    f.create_dataset("growing", data=a, chunks=(1, 2, 3), maxshape=(None, 7, 3))
    f.create_dataset("growing_second", data=a, chunks=(4, 1, 3), maxshape=(20, None, 6), fletcher32=True)
    f.create_dataset("growing_twice", data=a, chunks=(4, 3, 3), maxshape=(None, None, 3))
    f.create_dataset("larger", data=a[:2], chunks=(8, 8, 3), maxshape=(None, 8, 3))


def wide(f):
    x = f.create_dataset("name_00", data=numbers((1,), "u1"))
    for i in range(1, 60):
        f[f"name_{i:02}"] = x


def keras():
    with create("good_keras") as f:
        f.attrs["keras_version"] = "2.12.0"
        weights = f.create_group("model_weights")
        weights.attrs["layer_names"] = np.array([b"dense", b"dense_1"])
        for layer in ("dense", "dense_1"):
            group = weights.create_group(f"{layer}/{layer}")
            group.create_dataset("kernel:0", data=numbers((4, 3)))
            group.create_dataset("bias:0", data=numbers((3,)))
        f["optimizer_weights/iteration:0"] = np.int64(0)


def checkpoint(name, change=lambda f: None):
    with create(name, libver="v110") as f:
        f.attrs["format"] = np.bytes_(b"glade")
        f.attrs["format_version"] = 1
        f.attrs["step"] = 7
        f.attrs["config"] = np.bytes_(json.dumps({"model_type": "gla"}))
        f.attrs["created"] = np.bytes_("2026-01-01T00:00:00Z")
        f.attrs["library_version"] = np.bytes_("0.1.0")
        f.create_dataset("model/layer/weight", data=numbers((3, 5)), chunks=(2, 5), fletcher32=True)
        f["random/default"] = np.array([1, 2], "i8")
        change(f)


def odd():
    with create("odd_links") as f:
        f["a/x"] = numbers((2,))
        f["a/again"] = f["a"]
        f["a/root"] = f["/"]
        f["soft"] = h5py.SoftLink("/a/x")
        f["loop"] = h5py.SoftLink("/loop")
        f["external"] = h5py.ExternalLink("good_keras.h5", "/model_weights")
    with create("odd_types", libver="v110") as f:
        f["text"] = "text"
        f["pairs"] = np.zeros(2, dtype=[("a", "f4"), ("b", "i4")])
        f["complex"] = np.zeros(2, "c8")
        f["long"] = np.zeros(2, "g")
        f["null"] = h5py.Empty("f4")
        f["enum"] = np.zeros(2, dtype=h5py.enum_dtype({"RED": 0, "BLUE": 1}))
        f["unsigned"] = np.full(2, 2**64 - 1, "u8")
        f["named_type"] = np.dtype("f4")
        f["bits"] = h5py.Empty("S3")
        f["nine_dims"] = np.zeros((1,) * 9, "f4")
    with create("odd_sizes", libver="v110") as f:
        f.create_dataset("unwritten", (1 << 40,), "f4")
        f.create_dataset("chunked", (1 << 30, 1 << 20), "f4", chunks=(1, 1 << 20))
        f.create_dataset("partly", (100, 100), "f4", chunks=(10, 10))[:10, :10] = 1
        f.create_dataset("zeros", data=np.zeros(1 << 20, "f4"), chunks=(1 << 20,), compression="gzip")
    with create("odd_storage", libver="v110") as f:
        f.create_dataset("elsewhere", (10,), "u1", external=[("elsewhere.bin", 0, 10)])
        layout = h5py.VirtualLayout((2,), "f4")
        layout[:] = h5py.VirtualSource("good_keras.h5", "x", (2,))
        f.create_virtual_dataset("virtual", layout)
        f.create_dataset("lzf", data=numbers((10, 10)), compression="lzf")
        f.create_dataset("scaled", data=numbers((10, 10), "i4"), scaleoffset=4)


def lookup3(data):
    """The checksum of HDF5's metadata: Bob Jenkins' hash (public domain) with initial value 0."""
    def rotated(x, n):
        return (x << n | x >> 32 - n) & 0xffffffff

    a = b = c = (0xdeadbeef + len(data)) & 0xffffffff
    words = [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)]
    words += [0] * (-len(words) % 3)
    for i in range(0, len(words), 3):
        a, b, c = ((x + y) & 0xffffffff for x, y in zip((a, b, c), words[i:i + 3]))
        if i + 3 < len(words):
            for n in (4, 6, 8, 16, 19, 4):
                a, c = (a - c) & 0xffffffff ^ rotated(c, n), (c + b) & 0xffffffff
                a, b, c = b, c, a
    for n in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - rotated(b, n)) & 0xffffffff
        a, b, c = b, c, a
    return b


def odd_pages():
    """The first blocks of a growing index in pages, of which it would have no bitmap. Its checksum is right."""
    with create("odd_pages", libver="v110") as f:
        f.create_dataset("growing", data=numbers((40,), "u1"), chunks=(1,), maxshape=(None,))
    path = FOLDER / "odd_pages.h5"
    data = bytearray(path.read_bytes())
    header, page_bits, checksum = data.index(b"EAHD"), 11, 68
    assert lookup3(data[header:header + checksum]) == int.from_bytes(data[header + checksum:header + checksum + 4], "little")
    data[header + page_bits] = 0
    data[header + checksum:header + checksum + 4] = lookup3(data[header:header + checksum]).to_bytes(4, "little")
    path.write_bytes(data)


def main():
    for name, options in {
        "oldest": {"libver": ("earliest", "v108")},
        "v110": {"libver": "v110", "track_order": True, "userblock_size": 512},
        "latest": {"libver": "latest"},
    }.items():
        for write in (types, chunked, growing, wide):
            if write is growing and name == "oldest":  # which has one kind of index for all
                continue
            with create(f"good_{name}_{write.__name__}", **options) as f:
                write(f)
    keras()
    odd()
    odd_pages()
    checkpoint("good_checkpoint", lambda f: f.attrs.modify("config", "{}"))  # a string of variable length
    for name in ("format", "format_version", "step", "config", "created", "library_version"):
        checkpoint(f"odd_without_{name}", lambda f: f.attrs.pop(name))
    checkpoint("odd_version", lambda f: f.attrs.modify("format_version", 2))
    checkpoint("odd_step", lambda f: f.attrs.create("step", "seven"))
    checkpoint("odd_config", lambda f: f.attrs.create("config", [1, 2]))
    checkpoint("odd_random", lambda f: f.create_dataset("random/other", data=numbers((3,))))


if __name__ == "__main__":
    main()
