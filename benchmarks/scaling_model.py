"""A model of the time of a training step against the number of GPUs, hosts and bandwidth: docs/scaling.md shows its tables.

    python benchmarks/scaling_model.py                              both tables
    python benchmarks/scaling_model.py --network 12.5               the second one for hosts that are joined by 100 Gbit/s
"""

import argparse
import math
from dataclasses import dataclass

FLOAT32 = 4  # bytes of parameters and gradients
BUCKET = 25 * 2**20  # bytes of gradients in a collective

# Bus bandwidth in GB/s of NCCL on four H200 of one host, by the size of the message: measured.
NVLINK = {"all_reduce": {1e6: 36, 16e6: 261, 128e6: 326, 512e6: 347},
          "reduce_scatter": {1e6: 21, 16e6: 217, 128e6: 282, 512e6: 308},
          "all_gather": {1e6: 21, 16e6: 190, 128e6: 288, 512e6: 316}}  # fmt: skip

# Fitted to the measured steps of two GPUs, below.
EXPOSED = 0.57  # of the time of communication, which the computation does not hide or which slows it down
FIXED = 1.3e-3  # seconds that a step of several ranks takes in any case

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
    step: float  # milliseconds on one H200, measured
    step_of_two: float  # on two, each with as many tokens


MODELS = [Model("11M", 10_875_264, 6, 6 * 32 * 64, 6 * 32, 30.55, 31.81), Model("134M", 134_333_952, 12, 4 * 96 * 192, 4 * 96, 50.49, 53.74),
          Model("374M", 374_475_776, 24, 4 * 128 * 256, 4 * 128, 76.41, 80.19), Model("1.3B", 1_365_514_240, 24, 4 * 256 * 512, 4 * 256, 138.20, 151.00)]  # fmt: skip


def bus_bandwidth(kind, size, gpus, network):
    """Bytes a second: NVLink's within a host, interpolated between the logarithms of measured sizes; between hosts at most the network's."""
    points = sorted(NVLINK[kind].items())
    size = min(max(size, points[0][0]), points[-1][0])
    for (small, low), (large, high) in zip(points, points[1:]):
        if size <= large:
            nvlink = low + (high - low) * math.log(size / small) / math.log(large / small)
            break
    return 1e9 * (nvlink if gpus <= GPUS_OF_A_HOST else min(nvlink, network))


def seconds_of(kind, size, gpus, network):
    """Of one collective. An all-reduce goes up and down a tree of hosts; the others go round a ring of them."""
    factor = (2 if kind == "all_reduce" else 1) * (gpus - 1) / gpus  # times the size: what leaves a GPU
    hosts = -(-gpus // GPUS_OF_A_HOST)
    hops = 2 * math.ceil(math.log2(hosts)) if kind == "all_reduce" else hosts - 1
    return factor * size / bus_bandwidth(kind, size, gpus, network) + hops * HOP


def collectives(model, shard, accumulate=1):
    """(kind, bytes of one, how many) of a step."""
    size = FLOAT32 * model.parameters
    buckets = -(-size // BUCKET)
    if shard == 0:
        return [("all_reduce", size / buckets, buckets)]
    if shard < 3:
        return [("reduce_scatter", size / buckets, buckets * (accumulate if shard == 2 else 1)), ("all_gather", size / buckets, buckets)]
    parts = model.layers + 2  # and embedding and head
    return [("reduce_scatter", size / parts, parts * accumulate), ("all_gather", size / 2 / parts, 2 * parts * accumulate)]  # in 16 bits


def bytes_sent(model, gpus, shard, accumulate=1):
    """What leaves a GPU in a step."""
    return sum((2 if kind == "all_reduce" else 1) * (gpus - 1) / gpus * size * count for kind, size, count in collectives(model, shard, accumulate))


def sequence_bytes_sent(model, ranks, sequences=1):
    """What leaves a GPU in a step where so many ranks share each sequence: a layer's state and decays forward, the state's gradient back."""
    return model.layers * (ranks - 1) * FLOAT32 * sequences * (2 * model.state + model.keys)


def step_seconds(model, gpus, shard=0, network=400, accumulate=1):
    if gpus == 1:
        return model.step / 1e3
    communication = sum(count * seconds_of(kind, size, gpus, network) for kind, size, count in collectives(model, shard, accumulate))
    return accumulate * model.step / 1e3 + FIXED + EXPOSED * communication


def efficiency(model, gpus, shard=0, network=400, accumulate=1):
    return accumulate * model.step / 1e3 / step_seconds(model, gpus, shard, network, accumulate)


def check_table():
    lines = ["| model | gradients, GB | measured, ms | model, ms | measured efficiency | model's |", "|---|---|---|---|---|---|"]
    for model in MODELS:
        seconds = step_seconds(model, 2)
        lines.append(
            f"| {model.name} | {FLOAT32 * model.parameters / 1e9:.2f} | {model.step_of_two:.1f} | {1e3 * seconds:.1f} "
            f"| {100 * model.step / model.step_of_two:.1f}% | {100 * efficiency(model, 2):.1f}% |"
        )
    return lines


def large_table(network):
    gpus = [4, 8, 16, 64, 256, 1024]
    lines = ["| model | shard | " + " | ".join(f"{n} GPUs" for n in gpus) + " |", "|---|---|" + "---|" * len(gpus)]
    for model in MODELS[2:]:
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
