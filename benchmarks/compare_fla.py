"""Times glade's gated recurrence beside fla's kernels (flash-linear-attention) and torch's attention on the same GPU.

    compare_fla.py build/benchmarks/linear_attention_benchmark [--only chunk,shapes,unseen,decode,recurrent,first,plot,long]
                   [--json FILE] [--plot FILE] [--time-limit SECONDS] [--configurations N] [--compile PROCESSES]

Runs the benchmark program, then fla's fused_recurrent_* and chunk_* functions on random inputs of the same shapes, and prints one
line for each: both medians in milliseconds, their ratio and the ratio that is wanted, the time of causal
scaled_dot_product_attention (for gk in the chunk form, where K is V), the memory of a forward and backward pass, inputs
included, as a fraction of fla's, and what part of glade's time the bytes would take at the rate of a copy, and the products at
that of a large matrix product. A time is the median of five measurements, each of calls in a row for a tenth of a second between
two events, on inputs that no cache holds: in a shorter time a GPU does not get so hot that it takes longer, as it does in use.

The other parts: decode, one token a sequence on states that no cache holds, in a CUDA graph; first, the first call of a process;
plot, the lines that --plot draws (time over length, 131072 tokens); long, up to a million tokens, glade alone.

fla compiles its kernels anew for every number of heads and every size of a head, which takes longer than to time them. --compile does
that first, in many processes at once; Triton keeps the kernels in TRITON_CACHE_DIR.

Without torch or fla it prints glade's figures alone. --json writes what was measured, line by line; runs with the same file
add to it.

fla refuses to run the backward pass of chunk_simple_gla on Hopper with some versions of Triton, whose results are wrong
(fla issue 640). It is timed all the same: the refusal is switched off here.
"""
import argparse
import gc
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time

import fla_tuning
import worker_pool

SECONDS = 0.1  # of a measurement
CACHE_BYTES = 128 << 20  # inputs together are larger than this, so that no cache holds them
MAIN = (4, 2048, 16, 128, 128)
SMALL, WIDE, LONG = (8, 1024, 8, 64, 64), (8, 2048, 4, 128, 256), (2, 16384, 16, 128, 128)
# The layers of the published models of 1.3 and 2.7 billion parameters first, then heads and lengths that no row above has.
SHAPES = {
    "gk": ((4, 2048, 4, 256, 512), (4, 4096, 8, 256, 256), (3, 3000, 12, 96, 96), (64, 256, 6, 32, 64), (64, 128, 16, 128, 128)),
    "g": ((4, 4096, 8, 128, 128), (8, 2048, 32, 64, 64), (4, 4096, 8, 256, 256)),
    "g_gamma": ((4, 4096, 8, 256, 256), (1, 8192, 64, 128, 128)),
}
# In no table, so nothing was chosen by them.
UNSEEN = ((2, 2048, 5, 256, 512), (2, 1500, 7, 64, 128), (6, 700, 10, 128, 64), (1, 5000, 3, 192, 384), (3, 2222, 20, 96, 192),
          (16, 512, 4, 256, 256), (1, 20000, 2, 128, 128), (128, 100, 2, 64, 64))
# What is compared: part -> (form, gate, sizes B, T, H, K, V, wanted ratios of forward and of forward with backward).
ROWS = {
    "chunk": [("chunk", gate, sizes, (ratio, ratio)) for gate, sizes, ratio in (
        ("gk", MAIN, 3), ("g_gamma", MAIN, 3), ("g", MAIN, 2.5), ("gk", (8, 2048, 32, 256, 256), 3), ("gk", LONG, 3),
        ("g_gamma", LONG, 3), ("gk", WIDE, 3), ("gk", SMALL, 3), ("g_gamma", SMALL, 3), ("gk", (1, 131072, 8, 128, 128), 3))],
    "shapes": [("chunk", gate, sizes, (3, 3)) for gate, shapes in SHAPES.items() for sizes in shapes],
    "unseen": [("chunk", "gk", sizes, (1, 1)) for sizes in UNSEEN],
    "recurrent": [("recurrent", gate, sizes, (8, 6) if sizes == MAIN else (6.7, 5))
                  for gate in ("g", "gk", "g_gamma") for sizes in (MAIN, SMALL, WIDE, (1, 16384, 8, 128, 128))],
    "plot": [("chunk", "gk", (131072 // T, T, 8, 128, 128), (None, None))
             for T in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)],
    "long": [("recurrent", "gk", (1, T, 8, 128, 128), (None, None)) for T in (16384, 131072, 1048576)],
}
PASSES = ("forward", "forward_backward")
DECODE_BATCHES = (1, 32, 256)
DECODE_SIZES = (16, 128, 128)  # H, K, V


def row_name(form, what, gate, sizes):
    return f"{form}/{what}/{gate}/" + "_".join(f"{letter}{size}" for letter, size in zip("BTHKV", sizes)) + "/cuda:0"


def glade_results(program, pattern, repetitions=5):
    """-> {name: (milliseconds, counters)}, medians of the program's repetitions."""
    calls_in_a_row = 10  # that the program counts as one
    command = [program, "--benchmark_format=json", f"--benchmark_min_time={SECONDS / calls_in_a_row}",
               f"--benchmark_repetitions={repetitions}", f"--benchmark_filter={pattern}"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout or '{"benchmarks": []}')
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    wanted = "median" if repetitions > 1 else None
    return {re.sub("/(iterations:|repeats:|manual_time).*", "", x["run_name"]): (x["real_time"] * scale[x["time_unit"]], x)
            for x in report["benchmarks"] if x.get("aggregate_name") == wanted}


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
        self.step = lambda x, state: gla.fused_recurrent_gla(x["q"], x["k"], x["v"], gk=x["g"], initial_state=state,
                                                             output_final_state=True)

    def inputs(self, gate, sizes, gradients):
        torch, (B, T, H, K, V) = self.torch, sizes

        def random(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        x = dict(q=random(B, T, H, K), k=random(B, T, H, K), v=random(B, T, H, V), do=random(B, T, H, V))
        if gate != "g_gamma":
            x["g"] = torch.nn.functional.logsigmoid(random(B, T, H, *((K,) if gate == "gk" else ()))) / 16
        if gradients:
            for name in set(x) - {"do"}:
                x[name].requires_grad_()
        return x

    def measure(self, form, what, gate, sizes):
        """Median milliseconds of a call, and the bytes that it takes beside its inputs."""
        torch, function, gradients = self.torch, self.functions[form, gate], what == "forward_backward"
        rotation = [self.inputs(gate, sizes, gradients) for _ in range(CACHE_BYTES // input_bytes(gate, *sizes) + 2)]
        names = ("q", "k", "v") if form == "attention" or gate == "g_gamma" else ("q", "k", "v", "g")
        turn = 0

        def call():
            nonlocal turn
            x = rotation[turn % len(rotation)]
            turn += 1
            with torch.set_grad_enabled(gradients):
                o = function(x)[0]
            if gradients:
                torch.autograd.grad(o, [x[name] for name in names], x["do"])

        call()  # compiles and tunes
        gc.collect()  # what it left counts neither as in use before nor as freed by the next
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        memory = torch.cuda.max_memory_allocated() - before
        return 1e3 * self.seconds(call), memory

    def compile(self, form, gate, sizes):
        """Compiles the kernels of a row, by calls with few tokens."""
        B, T, *channels = sizes
        x = self.inputs(gate, (B, min(T, fla_tuning.FEW_TOKENS), *channels), True)
        with self.torch.no_grad():
            self.functions[form, gate](x)
        o = self.functions[form, gate](x)[0]
        self.torch.autograd.grad(o, [x[name] for name in x if x[name].requires_grad], x["do"])
        self.torch.cuda.synchronize()

    def decode_step(self, batch):
        """Milliseconds of one token of `batch` sequences, in a CUDA graph of many steps."""
        torch, (H, K, V) = self.torch, DECODE_SIZES
        count = (256 << 20) // (4 * batch * H * K * V) + 2
        x = self.inputs("gk", (batch, 1, H, K, V), False)
        states = [torch.zeros(batch, H, K, V, device="cuda") for _ in range(count)]
        steps = max(count, 64)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            self.step(x, states[0])
            with torch.cuda.graph(graph):
                for i in range(steps):
                    self.step(x, states[i % count])
        return 1e3 * self.seconds(graph.replay) / steps

    def ceilings(self):
        """Bytes a second of a copy, read and written, and operations a second of a matrix product, in bfloat16."""
        torch = self.torch
        a, b = (torch.randn(1 << 15, 1 << 14, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        square = a[: 1 << 13, : 1 << 13].contiguous()
        return (2 * a.nbytes / self.seconds(lambda: b.copy_(a)), 2 * (1 << 13) ** 3 / self.seconds(lambda: square @ square.T))

    def seconds(self, call):
        """The median of five measurements of as many calls in a row as SECONDS allow."""
        calls = max(round(SECONDS / fla_tuning.seconds_of(self.torch, call, 3)), 1)
        return statistics.median(fla_tuning.seconds_of(self.torch, call, calls) for _ in range(5))

    def attempt(self, name, function, *arguments):
        """function(*arguments), or None where a kernel is refused."""
        try:
            return function(*arguments)
        except RuntimeError as error:
            print(f"{name}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
            return None


def compiler(configurations):
    """What a process of --compile does with a row."""
    fla_tuning.tune_briefly(configurations, fla_tuning.only_compile)
    fla = Fla()
    fla.torch.cuda.init()

    def compile_row(row):
        return fla.attempt(row_name(row[0], "compile", *row[1:]), fla.compile, *row), False

    return compile_row


def compile_all(processes, parts, configurations, deadline):
    rows = dict.fromkeys((form, gate, sizes) for part in parts for form, gate, sizes, _ in ROWS.get(part, ()) if part != "long")

    def keep(row, seconds, _, error):
        print(f"{row_name(row[0], 'compile', *row[1:])}: {error or f'{seconds:.0f} s'}", file=sys.stderr, flush=True)

    try:
        worker_pool.Pool(processes, float("inf"), deadline, compiler, configurations).run(rows, keep)
    except worker_pool.NotStarted:
        sys.exit("compare_fla.py: fla's kernels are not compiled, its process did not start")


def plot(results, path):
    """Milliseconds over T, where B T is 131072 and H is 8."""
    from plotting import pyplot
    figure, axes = pyplot().subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, what in zip(axes, PASSES):
        rows = {sizes[1]: results.get(row_name(form, what, gate, sizes), {}) for form, gate, sizes, _ in ROWS["plot"]}
        for key, label in (("glade_ms", "glade, chunk"), ("fla_ms", "fla, chunk_gla"), ("sdpa_ms", "torch, SDPA")):
            points = [(T, row[key]) for T, row in rows.items() if row.get(key)]
            if points:
                axis.plot(*zip(*points), marker="o", label=label)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set(title=f"{what.replace('_', ' and ')}, 131072 tokens, 8 heads of 128, bfloat16", xlabel="T")
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path)


class Comparison:
    """The parts, and where their lines go."""

    def __init__(self, program, fla, json_file, deadline):
        self.program, self.fla, self.json_file, self.deadline = program, fla, json_file, deadline
        self.results = {}
        if json_file and os.path.exists(json_file):
            with open(json_file) as file:
                self.results = {x["name"]: x for x in json.load(file)}
        if fla:
            self.copy_rate, self.product_rate = fla.ceilings()
            print(f"copy {self.copy_rate * 1e-12:.2f} TB/s, matrix product {self.product_rate * 1e-12:.0f} TFLOP/s")
            self.keep(name="ceilings", copy_bytes_per_s=self.copy_rate, product_flop_per_s=self.product_rate)

    def keep(self, **line):
        self.results[line["name"]] = line
        if self.json_file:
            with open(self.json_file, "w") as file:
                json.dump(list(self.results.values()), file, indent=1)

    def late(self, part):
        late = time.monotonic() > self.deadline
        if late:
            print(f"{part}: left out, the time limit is over", file=sys.stderr)
        return late

    def table(self, part):
        rows = {row_name(form, what, gate, sizes): (form, what, gate, sizes, wanted)
                for form, gate, sizes, ratios in ROWS[part] for what, wanted in zip(PASSES, ratios)}
        glade = glade_results(self.program, "^(" + "|".join(rows) + ")(/|$)", repetitions=1 if part == "long" else 5)
        columns = ("glade ms", "fla ms", "fla/glade", "wanted", "SDPA ms", "memory/fla", "of copy", "of product")
        print(f"{part:53} " + " ".join(f"{x:>10}" for x in columns))
        for name, (form, what, gate, sizes, wanted) in rows.items():
            if name not in glade:
                print(f"{name}: not measured", file=sys.stderr)
                continue
            ours, counters = glade[name]
            line = dict(name=name, glade_ms=ours, glade_bytes=counters.get("memory"))
            theirs = their_bytes = attention = memory = of_copy = of_product = None
            if self.fla:
                of_copy = passed_bytes(what, gate, *sizes) / self.copy_rate / (ours * 1e-3)
                if form == "chunk":
                    of_product = operations(what, *sizes) / self.product_rate / (ours * 1e-3)
                if part != "long" and not self.late(name):
                    theirs, their_bytes = self.fla.attempt(name, self.fla.measure, form, what, gate, sizes) or (None, None)
                    if (form, gate) == ("chunk", "gk") and sizes[3] == sizes[4]:
                        measured = self.fla.attempt(name, self.fla.measure, "attention", what, gate, sizes)
                        attention = measured and measured[0]
            if line["glade_bytes"] and their_bytes:
                inputs = input_bytes(gate, *sizes)
                memory = (line["glade_bytes"] + inputs) / (their_bytes + inputs)
            ratio = theirs and theirs / ours
            figures = (ours, theirs, ratio, wanted, attention, memory, of_copy, of_product)
            cells = " ".join(f"{x:10.4g}" if x else " " * 10 for x in figures)
            print(f"{name.removesuffix('/cuda:0'):53} {cells}".rstrip(), flush=True)
            self.keep(**line, fla_ms=theirs, fla_bytes=their_bytes, sdpa_ms=attention, ratio=ratio, wanted=wanted, memory=memory,
                      of_copy=of_copy, of_product=of_product)

    def decode(self):
        H, K, V = DECODE_SIZES
        print("decode, one token           glade us     fla us  fla/glade    of copy")
        for name, (ours, _) in glade_results(self.program, "^generate/gk/").items():
            batch = int(name.rpartition("/B")[2])
            theirs = self.fla and self.fla.attempt(name, self.fla.decode_step, batch)
            of_copy = self.fla and 2 * 4 * batch * H * K * V / self.copy_rate / (ours * 1e-3)
            figures = (1e3 * ours, theirs and 1e3 * theirs, theirs and theirs / ours, of_copy)
            print((f"{name:25} " + " ".join(f"{x:10.3f}" if x else " " * 10 for x in figures)).rstrip(), flush=True)
            self.keep(name=name, glade_ms=ours, fla_ms=theirs, of_copy=of_copy)

    def first(self):
        for name, (ours, _) in glade_results(self.program, "^first_call/", repetitions=1).items():
            print(f"{name}: {ours:.2f} ms (wanted: at most 50)", flush=True)
            self.keep(name=name, glade_ms=ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the linear_attention_benchmark program")
    parser.add_argument("--only", default="chunk,decode,recurrent,first,plot,long", help="parts, in the order wanted (default: %(default)s)")
    parser.add_argument("--json", help="file for the measured times")
    parser.add_argument("--plot", help="file for a plot of time over length, of these lines and those in --json's file")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which nothing more is begun")
    parser.add_argument("--configurations", type=int, default=0,
                        help="most candidates of each of fla's kernels in tuning, which takes minutes (default: 0, all)")
    parser.add_argument("--compile", type=int, default=0, metavar="PROCESSES", help="compile fla's kernels first, in so many processes")
    arguments = parser.parse_args()
    deadline, parts = time.monotonic() + arguments.time_limit, arguments.only.split(",")
    if arguments.compile and all(importlib.util.find_spec(name) for name in ("torch", "triton", "fla")):
        compile_all(arguments.compile, parts, arguments.configurations, deadline)
    try:
        if arguments.configurations:
            fla_tuning.tune_briefly(arguments.configurations, fla_tuning.time_briefly)
        fla = Fla()
    except ImportError as error:
        print(f"fla is not measured: {error}", file=sys.stderr)
        fla = None
    comparison = Comparison(arguments.program, fla, arguments.json, deadline)
    for part in parts:
        if not comparison.late(part):
            {"decode": comparison.decode, "first": comparison.first}.get(part, lambda: comparison.table(part))()
    if arguments.plot:
        plot(comparison.results, arguments.plot)


if __name__ == "__main__":
    main()
