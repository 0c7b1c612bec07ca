"""Times glade's gated recurrence on the CPU beside PyTorch and JAX, on the same cores.

    compare_cpu.py build/benchmarks/linear_attention_benchmark [--threads N] [--rounds N] [--gates gk,g] [--json FILE]

At B4 T1024 H4 K64 V64 in float32: glade's two algorithms; PyTorch's eager step-by-step form and its eager chunked form;
jax.lax.scan, compiled by XLA. Inputs of all of them are [B, T, H, D]. Every round runs each of them, so that what else the
machine does meets all alike; a time is the fastest of all rounds, in milliseconds. What is not installed is left out.
--json writes what was measured.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
import time

B, T, H, K, V = 4, 1024, 4, 64, 64
CHUNK = 64


def glade_times(program, gate):
    """-> {(algorithm, what): milliseconds}."""
    command = [program, "--benchmark_format=json", "--benchmark_repetitions=40", "--benchmark_min_time=0.001",
               f"--benchmark_filter=/{gate}/B{B}_T{T}_H{H}_K{K}_V{V}/cpu"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    times = {}
    for x in report["benchmarks"]:
        if x["run_type"] == "iteration":
            key = tuple(x["run_name"].split("/")[:2])
            times[key] = min(times.get(key, float("inf")), x["real_time"] * {"us": 1e-3, "ms": 1.0}[x["time_unit"]])
    return times


def numpy_inputs(gate):
    import numpy as np
    random = np.random.default_rng(0)
    rows = {name: random.standard_normal((B, T, H, size), dtype=np.float32)
            for name, size in (("q", K), ("k", K), ("v", V), ("do", V))}
    x = random.standard_normal((B, T, H, K if gate == "gk" else 1), dtype=np.float32)
    rows["gate"] = -np.log1p(np.exp(-x)) / 16  # logsigmoid
    return rows


class Torch:
    """The eager forms of PyTorch, on [B, H, T, .] views."""

    def __init__(self, threads):
        import torch
        self.torch = torch
        torch.set_num_threads(threads)

    def functions(self, gate):
        torch = self.torch
        x = {name: torch.from_numpy(values) for name, values in numpy_inputs(gate).items()}
        leaves = [x["q"], x["k"], x["v"]] + ([] if gate == "none" else [x["gate"]])

        def run(form, gradients):
            for leaf in leaves:
                leaf.requires_grad_(gradients)
            with torch.set_grad_enabled(gradients):
                o = form(*(leaf.transpose(1, 2) for leaf in leaves)).transpose(1, 2)
            if gradients:
                torch.autograd.grad(o, leaves, x["do"])

        return {(name, what): lambda form=form, gradients=gradients: run(form, gradients)
                for name, form in (("torch steps", self.steps), ("torch chunks", self.chunks))
                for what, gradients in (("forward", False), ("forward_backward", True))}

    def steps(self, q, k, v, gate=None):
        torch = self.torch
        q, k, v = (q * K**-0.5).unsqueeze(-2).unbind(2), k.unsqueeze(-1).unbind(2), v.unsqueeze(-2).unbind(2)
        decays = None if gate is None else gate.exp().unsqueeze(-1).unbind(2)
        state = torch.zeros(B, H, K, V)
        outputs = []
        for t in range(T):
            state = torch.addcmul(state if decays is None else state * decays[t], k[t], v[t])
            outputs.append(q[t] @ state)
        return torch.cat(outputs, 2)

    def chunks(self, q, k, v, gate=None):
        torch = self.torch
        q, k, v = (x.reshape(B, H, T // CHUNK, CHUNK, -1) for x in (q * K**-0.5, k, v))
        if gate is None:
            scores, from_start, to_end, total = (q @ k.mT).tril(), q, k, None
        else:
            sums = gate.reshape(B, H, T // CHUNK, CHUNK, -1).cumsum(-2)
            last = sums[..., -1:, :]
            if gate.size(-1) == 1:  # per-head gates: decays of pairs of tokens
                scores = (q @ k.mT) * (sums - sums.mT).tril().exp().tril()
            else:  # per-channel gates: measured from the middle, which is safe for gates as weak as these
                scores = ((q * (sums - last / 2).exp()) @ (k * (last / 2 - sums).exp()).mT).tril()
            from_start, to_end, total = q * sums.exp(), k * (last - sums).exp(), last.exp().mT
        added = to_end.mT @ v
        state, states = torch.zeros(B, H, K, V), []
        for i in range(T // CHUNK):
            states.append(state)
            state = (state if total is None else state * total[:, :, i]) + added[:, :, i]
        return (scores @ v + from_start @ torch.stack(states, 2)).reshape(B, H, T, V)


class Jax:
    """The recurrence as a scan, compiled."""

    def __init__(self):
        import jax
        self.jax = jax

    def functions(self, gate):
        jax, jnp = self.jax, self.jax.numpy
        x = {name: jnp.asarray(values) for name, values in numpy_inputs(gate).items()}
        arguments = tuple(x[name] for name in (("q", "k", "v") if gate == "none" else ("q", "k", "v", "gate")))

        def form(*rows):
            def step(state, row):
                q, k, v, *gates = row
                for log_decay in gates:
                    state = state * jnp.exp(log_decay)[..., None]
                state = state + k[..., None] * v[..., None, :]
                return state, jnp.einsum("bhk,bhkv->bhv", q, state)

            _, o = jax.lax.scan(step, jnp.zeros((B, H, K, V)), tuple(jnp.moveaxis(row, 1, 0) for row in rows))
            return jnp.moveaxis(o, 0, 1) * K**-0.5

        def with_gradients(do, *rows):
            o, derivative = jax.vjp(form, *rows)
            return o, derivative(do)

        forward, forward_backward = jax.jit(form), jax.jit(with_gradients)
        return {("xla scan", "forward"): lambda: jax.block_until_ready(forward(*arguments)),
                ("xla scan", "forward_backward"): lambda: jax.block_until_ready(forward_backward(x["do"], *arguments))}


def fastest(function, seconds):
    """Milliseconds of the fastest call in about so many seconds, at least one; the first has been made before."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        function()
        stop = time.perf_counter()
        best = min(best, stop - start)
        if stop >= end:
            return 1e3 * best


def peers(threads):
    found = []
    for name, make in (("PyTorch", lambda: Torch(threads)), ("JAX", Jax)):
        try:
            found.append(make())
        except ImportError as error:
            print(f"{name} is not measured: {error}", file=sys.stderr)
    return found


def processor():
    with open("/proc/cpuinfo") as file:
        names = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
    return ", ".join(sorted(names)) or platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the linear_attention_benchmark program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="cores to run on (all)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, each of all forms (default: %(default)s)")
    parser.add_argument("--gates", default="gk,g,none", help="gates, out of gk (per channel), g (per head) and none (default: %(default)s)")
    parser.add_argument("--json", help="file for the measured times")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:arguments.threads])
    os.environ.update(OMP_NUM_THREADS=str(arguments.threads), JAX_PLATFORMS="cpu")

    others = peers(arguments.threads)
    results = []
    print(f"{processor()}, {arguments.threads} threads, B{B} T{T} H{H} K{K} V{V} float32; milliseconds")
    print(f"{'gate':6}{'':18}{'recurrent':>11}{'chunk':>11}{'torch steps':>14}{'torch chunks':>14}{'xla scan':>11}")
    for gate in arguments.gates.split(","):
        functions = {key: function for peer in others for key, function in peer.functions(gate).items()}
        times = {}
        for _ in range(arguments.rounds):
            measured = glade_times(arguments.program, gate)
            for key, function in functions.items():
                if key not in times:
                    function()  # compiles, fills caches
                measured[key] = fastest(function, 0.3)
            for key, value in measured.items():
                times[key] = min(times.get(key, float("inf")), value)
        for what in ("forward", "forward_backward"):
            row = {name: times.get((name, what)) for name in ("recurrent", "chunk", "torch steps", "torch chunks", "xla scan")}
            cells = (f"{value:{width}.2f}" if value else " " * width for value, width in zip(row.values(), (11, 11, 14, 14, 11)))
            print(f"{gate:6}{what:18}" + "".join(cells), flush=True)
            results.append(dict(gate=gate, what=what, milliseconds=row))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(dict(processor=processor(), threads=arguments.threads, shape=dict(B=B, T=T, H=H, K=K, V=V), times=results),
                      file, indent=1)


if __name__ == "__main__":
    main()
