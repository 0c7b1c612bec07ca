"""Times glade's gated recurrence beside fla's kernels (flash-linear-attention) and torch's attention on the same GPU.

    compare_fla.py build/benchmarks/linear_attention_benchmark [--filter REGEX] [--json FILE] [--plot FILE]

Runs the benchmark program, then fla's fused_recurrent_* and chunk_* functions on inputs of the same shapes, and prints
one line for each: both medians in milliseconds, their ratio, the time of causal scaled_dot_product_attention (for gk in the
chunk form, where K is V), the memory of a forward and backward pass, inputs included, as a fraction of fla's, and what part of
glade's time the bytes would take at the rate of a copy, and the products at that of a large matrix product. Lines of errors
follow: of the chunk form's results and gradients in bfloat16, relative to a recurrence in float64, glade's and fla's.

Without torch or fla it prints glade's figures alone. --json writes what was measured, line by line; runs with the same file
add to it. --plot draws time over length from the lines of 131072 tokens of 8 heads in that file.

fla refuses to run the backward pass of chunk_simple_gla on Hopper with some versions of Triton, whose results are wrong
(fla issue 640). It is timed all the same: the refusal is switched off here.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

CACHE_BYTES = 128 << 20  # inputs together are larger than this, so that no cache holds them


def glade_results(program, pattern):
    """-> {name: (milliseconds, counters)}, medians of the program's repetitions."""
    command = [program, "--benchmark_format=json", "--benchmark_min_time=0.05s", "--benchmark_repetitions=5",
               "--benchmark_report_aggregates_only=true"]
    if pattern:
        command.append(f"--benchmark_filter={pattern}")
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    return {x["run_name"].removesuffix("/manual_time"): (x["real_time"] * scale[x["time_unit"]], x)
            for x in report["benchmarks"] if x.get("aggregate_name") == "median"}


def input_bytes(gate, B, T, H, K, V):
    """Of query, key, value, the gate and the gradient of the output, in bfloat16."""
    return 2 * B * T * H * (2 * K + 2 * V + {"gk": K, "g": 1, "g_gamma": 0}[gate])


def passed_bytes(what, gate, B, T, H, K, V):
    """What a call must at least read and write, in bfloat16."""
    inputs = 2 * K + V + {"gk": K, "g": 1, "g_gamma": 0}[gate]
    forward = inputs + V
    return 2 * B * T * H * (forward if what == "forward" else 2 * forward + inputs)


def operations(what, B, T, H, K, V):
    """Of the chunk form's products, in chunks of 64 tokens."""
    return B * T * H * (2 * 64 * (K + V) + 4 * K * V) * (1 if what == "forward" else 4)


class Fla:
    """fla's kernels; raises ImportError where they are not installed."""

    def __init__(self):
        import torch
        from fla.ops import gla, lightning_attn, simple_gla
        from fla.ops.common import chunk_o
        chunk_o.IS_NVIDIA_HOPPER = False  # see above
        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        self.torch = torch
        attention = torch.nn.functional.scaled_dot_product_attention
        self.functions = {
            ("attention", "gk"):
                lambda x: attention(*(x[name].transpose(1, 2) for name in "qkv"), is_causal=True).transpose(1, 2)[None],
            ("recurrent", "gk"): lambda x: gla.fused_recurrent_gla(x["q"], x["k"], x["v"], gk=x["g"]),
            ("recurrent", "g"): lambda x: simple_gla.fused_recurrent_simple_gla(x["q"], x["k"], x["v"], g=x["g"]),
            ("recurrent", "g_gamma"):
                lambda x: lightning_attn.fused_recurrent_lightning_attn(x["q"], x["k"], x["v"], layer_idx=1, num_layers=8),
            ("chunk", "gk"): lambda x: gla.chunk_gla(x["q"], x["k"], x["v"], g=x["g"]),
            ("chunk", "g"): lambda x: simple_gla.chunk_simple_gla(x["q"], x["k"], x["v"], g=x["g"]),
            ("chunk", "g_gamma"):
                lambda x: lightning_attn.chunk_lightning_attn(x["q"], x["k"], x["v"], layer_idx=1, num_layers=8),
        }

    def inputs(self, gate, B, T, H, K, V, gradients):
        torch = self.torch

        def random(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        x = dict(q=random(B, T, H, K), k=random(B, T, H, K), v=random(B, T, H, V), do=random(B, T, H, V))
        if gate != "g_gamma":
            x["g"] = torch.nn.functional.logsigmoid(random(B, T, H, *((K,) if gate == "gk" else ()))) / 16
        if gradients:
            for name in set(x) - {"do"}:
                x[name].requires_grad_()
        return x

    def measure(self, algorithm, what, gate, sizes):
        """Median milliseconds of a call, and the bytes that it takes beside its inputs."""
        torch, function, gradients = self.torch, self.functions[algorithm, gate], what == "forward_backward"
        rotation = [self.inputs(gate, **sizes, gradients=gradients) for _ in range(CACHE_BYTES // input_bytes(gate, **sizes) + 2)]
        names = ("q", "k", "v") if algorithm == "attention" or gate == "g_gamma" else ("q", "k", "v", "g")

        def call(x):
            with torch.set_grad_enabled(gradients):
                o = function(x)[0]
            if gradients:
                torch.autograd.grad(o, [x[name] for name in names], x["do"])

        for i in range(5):  # compiles and tunes
            call(rotation[i % len(rotation)])
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        times = []
        for i in range(20):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call(rotation[i % len(rotation)])
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop))
        return statistics.median(times), torch.cuda.max_memory_allocated() - before

    def ceilings(self):
        """Bytes a second of a copy, read and written, and operations a second of a matrix product, in bfloat16."""
        torch = self.torch
        a, b = (torch.randn(1 << 15, 1 << 14, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        square = a[: 1 << 13, : 1 << 13].contiguous()
        return (2 * a.nbytes / self.seconds(lambda: b.copy_(a)), 2 * (1 << 13) ** 3 / self.seconds(lambda: square @ square.T))

    def seconds(self, call):
        """The median of ten calls."""
        torch, times = self.torch, []
        for _ in range(13):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1e-3)
        return statistics.median(times[3:])

    def errors(self, gate, B=2, T=512, H=4, D=128):
        """chunk_gla's, as linear_attention_benchmark measures glade's: relative to steps in float64."""
        torch = self.torch
        x = {name: torch.randn(B, T, H, D, device="cuda").bfloat16() for name in ("q", "k", "v", "do")}
        if gate.startswith("uniform"):
            x["g"] = (torch.rand(B, T, H, D, device="cuda") * -20).bfloat16()
        else:
            strength = float(gate.removeprefix("normalizer_"))
            x["g"] = (torch.nn.functional.logsigmoid(torch.randn(B, T, H, D, device="cuda")) / strength).bfloat16()
        leaves = ("q", "k", "v", "g")
        for name in leaves:
            x[name].requires_grad_()
        o = self.functions["chunk", "gk"](x)[0]
        ours = [o, *torch.autograd.grad(o, [x[name] for name in leaves], x["do"])]
        exact = {name: x[name].detach().double().requires_grad_() for name in x}
        state, outputs = torch.zeros(B, H, D, D, device="cuda", dtype=torch.float64), []
        for t in range(T):
            state = state * exact["g"][:, t].exp()[..., None] + exact["k"][:, t, :, :, None] * exact["v"][:, t, :, None, :]
            outputs.append((exact["q"][:, t, :, :, None] * state).sum(-2) * D**-0.5)
        o = torch.stack(outputs, 1)
        theirs = [o, *torch.autograd.grad(o, [exact[name] for name in leaves], exact["do"])]
        return {name: ((a.double() - b).norm() / b.norm()).item() for name, a, b in zip(("o", "dq", "dk", "dv", "dgk"), ours, theirs)}

    def try_measure(self, name, *arguments):
        """measure, or (None, None) where a kernel is refused."""
        try:
            return self.measure(*arguments)
        except RuntimeError as error:
            print(f"{name}: {arguments[0]}: {str(error).splitlines()[0]}", file=sys.stderr)
            return None, None


def plot(results, path):
    """Milliseconds over T, where B T is 131072 and H is 8."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, what in zip(axes, ("forward", "forward_backward")):
        rows = {}
        for x in results:
            match = re.fullmatch(rf"chunk/{what}/gk/B(\d+)_T(\d+)_H8_K128_V128/cuda:0", x["name"])
            if match and int(match[1]) * int(match[2]) == 131072:
                rows[int(match[2])] = x
        for key, label in (("glade_ms", "glade, chunk"), ("fla_ms", "fla, chunk_gla"), ("sdpa_ms", "torch, SDPA")):
            points = [(T, rows[T][key]) for T in sorted(rows) if rows[T].get(key)]
            if points:
                axis.loglog(*zip(*points), marker="o", label=label, base=2)
        axis.set(title=f"{what.replace('_', ' and ')}, 131072 tokens, 8 heads of 128, bfloat16", xlabel="T")
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the linear_attention_benchmark program")
    parser.add_argument("--filter", default="", help="only the program's benchmarks that match")
    parser.add_argument("--json", help="file for the measured times")
    parser.add_argument("--plot", help="file for a plot of time over length")
    arguments = parser.parse_args()

    results = {}
    if arguments.json and os.path.exists(arguments.json):
        with open(arguments.json) as file:
            results = {x["name"]: x for x in json.load(file)}

    def keep(**line):
        results[line["name"]] = line
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(list(results.values()), file, indent=1)

    glade = glade_results(arguments.program, arguments.filter)
    try:
        fla = Fla()
    except ImportError as error:
        print(f"fla is not measured: {error}", file=sys.stderr)
        fla = None

    def number(x):
        return f"{x:10.4f}" if x else " " * 10

    copy_rate = product_rate = None
    if fla:
        copy_rate, product_rate = fla.ceilings()
        print(f"copy {copy_rate * 1e-12:.2f} TB/s, matrix product {product_rate * 1e-12:.0f} TFLOP/s")
    columns = ("glade ms", "fla ms", "fla/glade", "SDPA ms", "memory/fla", "of copy", "of product")
    print(f"{'benchmark':56} " + " ".join(f"{x:>10}" for x in columns))
    for name, (ours, counters) in glade.items():
        match = re.fullmatch(r"(recurrent|chunk)/(\w+)/(\w+)/B(\d+)_T(\d+)_H(\d+)_K(\d+)_V(\d+)/cuda:0", name)
        if not match or match[3] == "none":
            continue
        algorithm, what, gate = match.groups()[:3]
        sizes = dict(zip("BTHKV", map(int, match.groups()[3:])))
        theirs = their_memory = attention = memory = of_copy = of_product = None
        our_memory = counters.get("memory")
        if fla:
            theirs, their_memory = fla.try_measure(name, algorithm, what, gate, sizes)
            if (algorithm, gate) == ("chunk", "gk") and sizes["K"] == sizes["V"]:
                attention, _ = fla.try_measure(name, "attention", what, gate, sizes)
            if our_memory and their_memory:
                memory = (our_memory + input_bytes(gate, **sizes)) / (their_memory + input_bytes(gate, **sizes))
            of_copy = passed_bytes(what, gate, **sizes) / copy_rate / (ours * 1e-3)
            if algorithm == "chunk":
                of_product = operations(what, **sizes) / product_rate / (ours * 1e-3)
        figures = (ours, theirs, theirs and theirs / ours, attention, memory, of_copy, of_product)
        print((f"{name:56} " + " ".join(map(number, figures))).rstrip(), flush=True)
        keep(name=name, glade_ms=ours, fla_ms=theirs, sdpa_ms=attention, glade_bytes=our_memory, fla_bytes=their_memory,
             of_copy=of_copy, of_product=of_product)
    for name, (_, counters) in glade.items():
        kind, gates, *_ = name.split("/")
        if kind == "accuracy":
            ours = {x: counters[x] for x in ("o", "dq", "dk", "dv", "dgk")}
            theirs = fla.errors(gates) if fla else {}
            errors = (f"{x} {error:.2e} " + (f"(fla {theirs[x]:.2e})" if theirs else "") for x, error in ours.items())
            print(f"error, {gates:15}", *errors, flush=True)
            keep(name=f"{kind}/{gates}", glade=ours, fla=theirs)
    if arguments.plot:
        plot(results.values(), arguments.plot)


if __name__ == "__main__":
    main()
