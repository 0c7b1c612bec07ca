"""Where the GPU's time goes in a training step of a GLA or lightning model, by its kernels.

    PYTHONPATH=build/python step_parts.py --size 1.3B --batch 4 [--seq-len 2048] [--model gla] [--json FILE]

Runs steps (forward, backward, clipping, AdamW) in a CUDA graph on random tokens, as train_throughput does, and adds up the times of their
kernels, which PyTorch's profiler reads from CUPTI. "beside others" is the time in which two or more kernels ran, "idle" that in which none did.
"""

import argparse
import json
import re
import statistics
import sys
import time

SIZES = {"134M": (768, 12, 4), "374M": (1024, 24, 4), "1.3B": (2048, 24, 4), "2.7B": (2560, 32, 5)}  # width, layers, heads
VOCABULARY, STEPS = 32000, 5
# The first expression that a kernel's name holds says what it is.
PARTS = (
    ("matrix products", r"nvjet|gemm|cutlass|cublas|splitK|product_kernel"),
    ("recurrence", r"linear_attention|pass_kernel|intra_chunk|state_scan|constant_decay|head_gate|join_segments|sum_parts|chunk_gradients"),
    ("short convolutions", r"convolution"),
    ("gates", r"gate_kernel|gate_backward_kernel|low_rank|[Ll]ogsigmoid"),
    ("norms", r"norm"),
    ("SwiGLU", r"[Ss]wiglu|multiply_backward"),
    ("cross entropy", r"cross_entropy"),
    ("AdamW, clipping", r"adamw|squares"),
    ("copies and zeros", r"[Mm]emcpy|[Mm]emset"),
)


def make_step(options):
    """A function that runs one step, and the number of the model's parameters."""
    import glade
    from glade import optim

    width, layers, heads = SIZES[options.size]
    glade.manual_seed(0)
    kind = dict(gla=glade.nn.models.GLAForCausalLM, lightning=glade.nn.models.LightningForCausalLM)[options.model]
    model = kind(hidden_size=width, num_hidden_layers=layers, num_heads=heads, expand_k=0.5, vocab_size=VOCABULARY, dtype="bfloat16")
    device = glade.Device("cuda")
    model = model.to(device)
    optimizer = optim.AdamW(optim.decay_matrices(model.named_parameters(), 0.1), lr=1e-3)

    def step(batch):
        loss = model.loss(*batch)
        loss.backward()
        optimizer.step(max_norm=1.0)
        optimizer.zero_grad()
        return [loss.detach()]

    graphed = glade.cuda.GraphedFunction(device, step)
    batch = [glade.randint(0, VOCABULARY, (options.batch, options.seq_len), device=device) for _ in range(2)]
    return lambda: graphed(batch)[0].item(), sum(x.numel() for x in model.parameters())


def kernels_of(step):
    """(name, begin, end) in microseconds of every kernel, copy and fill of STEPS steps."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(STEPS):
            step()
    events = profiled.profiler.kineto_results.events()
    return [(x.name(), x.start_ns() / 1e3, (x.start_ns() + x.duration_ns()) / 1e3) for x in events if str(x.device_type()).endswith("CUDA")]


def covered(kernels):
    """Microseconds in which at least one kernel ran, and those in which at least two did."""
    times = sorted([(begin, 1) for _, begin, _ in kernels] + [(end, -1) for _, _, end in kernels])
    running, last, one, two = 0, 0.0, 0.0, 0.0
    for at, change in times:
        one += (at - last) * (running >= 1)
        two += (at - last) * (running >= 2)
        running, last = running + change, at
    return one, two


def part_of(name):
    return next((part for part, pattern in PARTS if re.search(pattern, name)), "all else")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="374M", help="parameters (default: %(default)s)")
    parser.add_argument("--model", choices=("gla", "lightning"), default="gla", help="kind of attention (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step (default: %(default)s)")
    parser.add_argument("--seq-len", type=int, default=2048, help="tokens of a sequence (default: %(default)s)")
    parser.add_argument("--kernels", type=int, default=0, help="print so many kernels as well, the longest (default: %(default)s)")
    parser.add_argument("--json", help="file for the parts and all kernels")
    options = parser.parse_args()
    try:
        import torch  # noqa: F401
    except ImportError:
        sys.exit("step_parts.py: needs PyTorch, whose profiler reads the times of kernels")
    step, parameters = make_step(options)
    for _ in range(8):
        step()
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    kernels = kernels_of(step)
    parts, names = {}, {}
    for name, begin, end in kernels:
        for table, key in ((parts, part_of(name)), (names, name)):
            calls, total = table.get(key, (0, 0.0))
            table[key] = calls + 1 / STEPS, total + (end - begin) / STEPS / 1e3
    one, two = (x / STEPS / 1e3 for x in covered(kernels))
    milliseconds = statistics.median(times)
    print(f"{options.model} {options.size}, {options.batch} x {options.seq_len}, {parameters / 1e6:.0f} million parameters: {milliseconds:.2f} ms a step")
    for part, (calls, total) in sorted(parts.items(), key=lambda x: -x[1][1]):
        print(f"{part:22} {total:8.2f} ms {calls:7.0f} kernels")
    print(f"{'beside others':22} {two:8.2f} ms\n{'idle':22} {milliseconds - one:8.2f} ms")
    longest = sorted(names.items(), key=lambda x: -x[1][1])
    for name, (calls, total) in longest[: options.kernels]:
        print(f"  {total:8.3f} ms {calls:6.1f} x {1e3 * total / calls:8.1f} us  {name[:120]}")
    if options.json:
        settings = dict(model=options.model, size=options.size, batch=options.batch, seq_len=options.seq_len, step_ms=milliseconds)
        with open(options.json, "w") as file:
            json.dump(settings | dict(parts=parts, beside_ms=two, idle_ms=milliseconds - one, kernels=longest), file, indent=1)


if __name__ == "__main__":
    main()
