"""Times glade's gated recurrence beside fla's kernels (flash-linear-attention) on the same GPU.

    compare_fla.py build/benchmarks/linear_attention_benchmark [--filter REGEX] [--json FILE]

Runs the benchmark program, then fla's fused_recurrent_* and chunk_* functions on inputs of the same shapes, and prints
one line for each: both medians in milliseconds and their ratio. Without torch or fla it prints glade's times alone.
--json writes what was measured.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys

CACHE_BYTES = 128 << 20  # inputs together are larger than this, so that no cache holds them


def glade_times(program, pattern):
    """-> {name: milliseconds}, medians of the program's repetitions."""
    command = [program, "--benchmark_format=json", "--benchmark_repetitions=5", "--benchmark_report_aggregates_only=true"]
    if pattern:
        command.append(f"--benchmark_filter={pattern}")
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    return {x["run_name"].removesuffix("/manual_time"): x["real_time"] * scale[x["time_unit"]]
            for x in report["benchmarks"] if x.get("aggregate_name") == "median"}


class Fla:
    """fla's kernels; raises ImportError where they are not installed."""

    def __init__(self):
        import torch
        from fla.ops import gla, lightning_attn, simple_gla
        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        self.torch = torch
        self.functions = {
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

    def time(self, algorithm, what, gate, sizes):
        """Median milliseconds of a call."""
        torch, function, gradients = self.torch, self.functions[algorithm, gate], what == "forward_backward"
        bytes_each = 2 * sizes["B"] * sizes["T"] * sizes["H"] * (2 * sizes["K"] + 2 * sizes["V"])
        rotation = [self.inputs(gate, **sizes, gradients=gradients) for _ in range(CACHE_BYTES // bytes_each + 2)]

        def call(x):
            with torch.set_grad_enabled(gradients):
                o = function(x)[0]
            if gradients:
                torch.autograd.grad(o, [x[name] for name in ("q", "k", "v", "g") if name in x], x["do"])

        for i in range(5):  # compiles and tunes
            call(rotation[i % len(rotation)])
        times = []
        for i in range(20):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call(rotation[i % len(rotation)])
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop))
        return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the linear_attention_benchmark program")
    parser.add_argument("--filter", default="", help="only the program's benchmarks that match")
    parser.add_argument("--json", help="file for the measured times")
    arguments = parser.parse_args()

    glade = glade_times(arguments.program, arguments.filter)
    try:
        fla = Fla()
    except ImportError as error:
        print(f"fla is not measured: {error}", file=sys.stderr)
        fla = None

    results = []
    print(f"{'benchmark':64} {'glade ms':>10} {'fla ms':>10} {'fla/glade':>10}")
    for name, ours in glade.items():
        match = re.fullmatch(r"(recurrent|chunk)/(\w+)/(\w+)/B(\d+)_T(\d+)_H(\d+)_K(\d+)_V(\d+)/cuda:0", name)
        theirs = None
        if fla and match and match[3] != "none":
            sizes = dict(zip("BTHKV", map(int, match.groups()[3:])))
            try:
                theirs = fla.time(match[1], match[2], match[3], sizes)
            except RuntimeError as error:  # fla refuses some kernels on some versions of Triton
                print(f"{name}: fla: {str(error).splitlines()[0]}", file=sys.stderr)
        columns = f"{theirs:10.4f} {theirs / ours:10.2f}" if theirs else ""
        print(f"{name:64} {ours:10.4f} {columns}".rstrip(), flush=True)
        results.append(dict(name=name, glade_ms=ours, fla_ms=theirs))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
