"""A model of the time of a training step against the number of GPUs, hosts and bandwidth: docs/scaling.md shows its tables.

    python benchmarks/scaling_model.py                              both tables
    python benchmarks/scaling_model.py --network 12.5               the second one for hosts that are joined by 100 Gbit/s
"""

import argparse
import math
from dataclasses import dataclass

FLOAT32 = 4  # bytes of parameters and gradients
BUCKET, COPIED_BUCKET = 25 * 2**20, 64 * 2**20  # bytes of gradients in a collective

# Bus bandwidth in GB/s by the size of the message: measured, of copy engines on two H200 of one host, of NCCL's thread blocks on four.
COPIES = {"all_to_all": {1e6: 19, 8.4e6: 108, 26e6: 205, 134e6: 290, 537e6: 320},
          "all_gather": {1e6: 28, 8.4e6: 146, 26e6: 249, 134e6: 352, 537e6: 382}}  # fmt: skip
THREAD_BLOCKS = {"all_reduce": {1e6: 36, 16e6: 261, 128e6: 326, 512e6: 347},
                 "reduce_scatter": {1e6: 21, 16e6: 217, 128e6: 282, 512e6: 308},
                 "all_gather": {1e6: 21, 16e6: 190, 128e6: 288, 512e6: 316}}  # fmt: skip

# Fitted to measured steps of two GPUs: seconds that a step of several ranks takes in any case, and the part of the time of
# communication which the computation does not hide or which slows it down.
FIT_OF_COPIES = 1.4e-3, 0.41
FIT_OF_THREAD_BLOCKS = 1.3e-3, 0.57

# Assumed, not measured.
HOP = 10e-6  # seconds from host to host
GPUS_OF_A_HOST = 8


@dataclass
class Model:
    """A model of gated linear attention, and its step on one GPU."""

    name: str
    parameters: int
    layers: int
    state: int  # elements of a layer's state: heads * K * V
    keys: int  # of a layer: heads * K
    # Milliseconds of a step on two H200: every GPU by itself, by NCCL's thread blocks, by copies, and with shard 3 by copies.
    step: float
    thread_blocks: float
    copies: float
    shard3: float


MODELS = [Model("134M", 134_333_952, 12, 4 * 96 * 192, 4 * 96, 51.27, 54.62, 53.21, 53.57),
          Model("374M", 374_475_776, 24, 4 * 128 * 256, 4 * 128, 74.95, 80.06, 79.35, 79.87),
          Model("1.3B", 1_365_514_240, 24, 4 * 256 * 512, 4 * 256, 137.12, 150.61, 145.88, 143.83)]  # fmt: skip


def bus_bandwidth(measured, size):
    """Bytes a second, interpolated between the logarithms of measured sizes."""
    points = sorted(measured.items())
    size = min(max(size, points[0][0]), points[-1][0])
    for (small, low), (large, high) in zip(points, points[1:]):
        if size <= large:
            return 1e9 * (low + (high - low) * math.log(size / small) / math.log(large / small))


def sent(kind, size, gpus):
    """Bytes that leave a GPU in one collective."""
    return (2 if kind == "all_reduce" else 1) * (gpus - 1) / gpus * size


def seconds_of(kind, size, gpus, network, copies):
    """Of one collective. Between hosts an all-reduce goes up and down a tree of them; the others go round a ring."""
    bandwidth = bus_bandwidth((COPIES if copies else THREAD_BLOCKS)[kind], size)
    hosts = -(-gpus // GPUS_OF_A_HOST)
    if hosts > 1:
        bandwidth = min(bandwidth, 1e9 * network)
    hops = 2 * math.ceil(math.log2(hosts)) if kind == "all_reduce" else hosts - 1
    return sent(kind, size, gpus) / bandwidth + hops * HOP


def collectives(model, shard, accumulate, copies):
    """(kind, bytes of one, how many) of a step."""
    size = FLOAT32 * model.parameters
    reduction = "all_to_all" if copies else "reduce_scatter"
    if shard == 3:
        parts = model.layers + 2  # and embedding and head
        gathers = 1 if copies else 2  # of each part, in 16 bits: in memory that GPUs share the values stay
        return [(reduction, size / parts, parts * accumulate), ("all_gather", size / 2 / parts, gathers * parts * accumulate)]
    buckets = -(-size // (COPIED_BUCKET if copies and shard == 0 else BUCKET))
    if shard == 0 and not copies:
        return [("all_reduce", size / buckets, buckets)]
    return [(reduction, size / buckets, buckets * (accumulate if shard == 2 else 1)), ("all_gather", size / buckets, buckets)]


def bytes_sent(model, gpus, shard, accumulate=1):
    """What leaves a GPU in a step."""
    return sum(count * sent(kind, size, gpus) for kind, size, count in collectives(model, shard, accumulate, gpus <= GPUS_OF_A_HOST))


def sequence_bytes_sent(model, ranks, sequences=1):
    """What leaves a GPU in a step where so many ranks share each sequence: a layer's state and decays forward, the state's gradient back."""
    return model.layers * (ranks - 1) * FLOAT32 * sequences * (2 * model.state + model.keys)


def step_seconds(model, gpus, shard=0, network=400, accumulate=1, copies=None):
    """copies: whether data travel by copies instead of thread blocks; by default they do within a host."""
    if gpus == 1:
        return accumulate * model.step / 1e3
    copies = gpus <= GPUS_OF_A_HOST if copies is None else copies
    fixed, exposed = FIT_OF_COPIES if copies else FIT_OF_THREAD_BLOCKS
    communication = sum(count * seconds_of(kind, size, gpus, network, copies) for kind, size, count in collectives(model, shard, accumulate, copies))
    return accumulate * model.step / 1e3 + fixed + exposed * communication


def efficiency(model, gpus, shard=0, network=400, accumulate=1, copies=None):
    return accumulate * model.step / 1e3 / step_seconds(model, gpus, shard, network, accumulate, copies)


def check_table():
    lines = ["| model | shard | no communication, ms | thread blocks, ms | copies, ms | model, ms | measured efficiency | model's |", "|---|---|" + "---|" * 6]
    for model in MODELS:
        for shard, thread_blocks, copies in ((0, f"{model.thread_blocks:.1f}", model.copies), (3, "", model.shard3)):
            lines.append(
                f"| {model.name} | {shard} | {model.step:.1f} | {thread_blocks} | {copies:.1f} | {1e3 * step_seconds(model, 2, shard):.1f} "
                f"| {100 * model.step / copies:.1f}% | {100 * efficiency(model, 2, shard):.1f}% |"
            )
    return lines


def large_table(network):
    gpus = [4, 8, 16, 64, 256, 1024]
    lines = ["| model | shard | " + " | ".join(f"{n} GPUs" for n in gpus) + " |", "|---|---|" + "---|" * len(gpus)]
    for model in MODELS[1:]:
        for shard in (0, 3):
            lines.append(f"| {model.name} | {shard} | " + " | ".join(f"{100 * efficiency(model, n, shard, network):.0f}%" for n in gpus) + " |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Predicts the time of training steps on many GPUs.")
    parser.add_argument("--network", type=float, default=400, help="GB/s between two hosts, all network cards together [400]")
    network = parser.parse_args().network
    if not network > 0:
        parser.error(f"argument --network: {network:g}, expected a number above 0")
    print("\n".join([*check_table(), "", *large_table(network)]))
