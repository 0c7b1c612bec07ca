"""Compares the errors of glade's kernels in 16 bits with those of fla's, on the same inputs.

    PYTHONPATH=build/python compare_fla_accuracy.py [--json FILE] [--processes N]

Prints, for every form, gate, dtype, strength of gates and shape, the root-mean-square error relative to the recurrence in
float64 of the output and of each gradient, glade's beside fla's (fused_recurrent_*, chunk_*), and whether glade's are good:
below 5e-3, and no more than fla's in the chunk form, 1.2 times fla's where that is the recurrent one. At the end comes the largest ratio to fla's
of the chunk form: where both round alike, chance makes either error larger, by up to 1.2%. Gates are logsigmoid(normal) / N, as in
fla's tests, or uniform from -20 to 0.
"""
import argparse
import importlib.util
import itertools
import json
import sys

import fla_tuning
import worker_pool

LAYER, LAYERS = 1, 8  # of lightning attention
LIMITS = {"recurrent": 1.2, "chunk": 1.0}  # of glade's error over fla's
# form, gate, dtype, N, (T, H, K, V)
CASES = [
    *(("chunk", gate, "bfloat16", normalizer, (512, H, D, D))
      for gate, H, D in (("gk", 16, 128), ("gk", 8, 64), ("g", 16, 128))
      for normalizer in ("0.1", "1", "10", "uniform")),
    # Heads of published models, and others.
    *(("chunk", gate, "bfloat16", normalizer, (512, H, K, V))
      for gate, H, K, V in (("gk", 4, 256, 512), ("gk", 4, 128, 256), ("gk", 8, 256, 256), ("gk", 12, 96, 96), ("gk", 6, 32, 64),
                            ("g", 16, 64, 64), ("g", 8, 256, 256), ("g_gamma", 8, 256, 256), ("g_gamma", 16, 128, 128))
      for normalizer in (("16",) if gate == "g_gamma" else ("1", "16", "uniform"))),
    # Heads whose keys glade computes in parts.
    *(("chunk", gate, "bfloat16", normalizer, (512, 2, K, V))
      for gate, K, V in (("gk", 512, 256), ("g", 512, 256), ("g", 360, 96)) for normalizer in ("1", "16", "uniform")),
    # Many small heads, and gates of values, which fla has in the recurrent form alone.
    *(("chunk", gate, "bfloat16", normalizer, (512, H, 16, 16))
      for gate, H in (("gk", 128), ("g", 256)) for normalizer in ("1", "16", "uniform")),
    *(("chunk", "gk+gv", "bfloat16", normalizer, (512, H, K, V))
      for H, K, V in ((128, 16, 16), (16, 64, 64), (8, 128, 128)) for normalizer in ("1", "16", "uniform")),
    *(("recurrent", gate, dtype, normalizer, (300, 4, K, V))
      for gate, dtype, normalizer, (K, V) in itertools.product(
          ("gk", "g", "g_gamma"), ("bfloat16", "float16"), ("16", "1"), ((64, 64), (128, 128), (128, 256)))
      if gate != "g_gamma" or normalizer == "16"),
]


class Comparison:
    """A process in which both sides compute cases. What is imported here may start CUDA."""

    def __init__(self):
        import torch

        fla_tuning.tune_briefly(4, fla_tuning.only_compile)  # the first that fits: errors do not depend on the candidate
        import glade.torch
        from fla.ops import gla, lightning_attn, simple_gla
        from fla.ops.common import chunk_o
        chunk_o.IS_NVIDIA_HOPPER = False  # fla refuses chunk_simple_gla's backward pass on Hopper with some versions of Triton
        layer = dict(layer_idx=LAYER, num_layers=LAYERS)
        self.torch, self.recurrent_attention = torch, glade.torch.recurrent_attention
        self.fla = {
            ("recurrent", "gk"): lambda q, k, v, g: gla.fused_recurrent_gla(q, k, v, gk=g)[0],
            ("recurrent", "g"): lambda q, k, v, g: simple_gla.fused_recurrent_simple_gla(q, k, v, g=g)[0],
            ("recurrent", "g_gamma"): lambda q, k, v: lightning_attn.fused_recurrent_lightning_attn(q, k, v, **layer)[0],
            ("chunk", "gk"): lambda q, k, v, g: gla.chunk_gla(q, k, v, g=g)[0],
            ("chunk", "g"): lambda q, k, v, g: simple_gla.chunk_simple_gla(q, k, v, g=g)[0],
            ("chunk", "g_gamma"): lambda q, k, v: lightning_attn.chunk_lightning_attn(q, k, v, **layer)[0],
            ("chunk", "gk+gv"): lambda q, k, v, gk, gv: gla.fused_recurrent_gla(q, k, v, gk=gk, gv=gv)[0],
        }

    def lightning_decays(self, heads):
        """The logarithms of lightning attention's decays, one a head."""
        return -8 / heads * (1 - LAYER / LAYERS) * self.torch.arange(heads, device="cuda", dtype=self.torch.float32)

    def step_by_step(self, gate, q, k, v, g, gv=None):
        """The recurrence in the inputs' own precision."""
        state, outputs = 0, []
        for t in range(q.shape[1]):
            decay = g[:, None, None] if gate == "g_gamma" else g[:, t, :, None, None] if gate == "g" else g[:, t, :, :, None]
            if gv is not None:
                decay = decay + gv[:, t, :, None, :]
            state = decay.exp() * state + k[:, t, :, :, None] * v[:, t, :, None, :]
            outputs.append((q[:, t, :, :, None] * state).sum(-2) * q.shape[-1] ** -0.5)
        return self.torch.stack(outputs, 1)

    def glade(self, form, gate, q, k, v, *decays):
        given = dict(zip(gate.split("+"), decays))
        gates = (given.get(name) for name in ("g", "g_gamma", "gk", "gv"))
        return self.recurrent_attention(q, k, v, *gates, cfg={"algorithm": form})

    def results(self, function, inputs, do):
        """The output of a function and the gradients of its inputs."""
        inputs = [x.detach().requires_grad_() for x in inputs]
        o = function(*inputs)
        return [o, *self.torch.autograd.grad(o, inputs, do.to(o.dtype))]

    def measure(self, form, gate, dtype, normalizer, sizes):
        """-> {name: (glade's error, fla's error)}"""
        torch, (T, H, K, V) = self.torch, sizes

        def random(*shape):
            return torch.randn(2, T, H, *shape, device="cuda", dtype=getattr(torch, dtype))

        inputs, do, fixed = [random(K), random(K), random(V)], random(V), ()
        if gate == "g_gamma":
            fixed = (self.lightning_decays(H),)
        else:
            for size in {"g": ((),), "gk": ((K,),), "gk+gv": ((K,), (V,))}[gate]:
                x = random(*size).float()
                x = torch.rand_like(x) * -20 if normalizer == "uniform" else torch.nn.functional.logsigmoid(x) / float(normalizer)
                inputs.append(x.to(getattr(torch, dtype)))
        exact = self.results(lambda *x: self.step_by_step(gate, *x, *(y.double() for y in fixed)), [x.double() for x in inputs], do)
        ours = self.results(lambda *x: self.glade(form, gate, *x, *fixed), inputs, do)
        theirs = self.results(self.fla[form, gate], inputs, do)

        def error(got, expected):
            return ((got.double() - expected).norm() / expected.norm()).item()

        return {name: (error(a, e), error(b, e)) for name, a, b, e in zip(("o", "dq", "dk", "dv", *("d" + x for x in gate.split("+"))), ours, theirs, exact)}

    def __call__(self, index):
        self.torch.manual_seed(index)
        errors = self.measure(*CASES[index])
        self.torch.cuda.empty_cache()
        return errors, False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the errors")
    parser.add_argument("--processes", type=int, default=1, help="that share the cases, as fla compiles for long (default: %(default)s)")
    arguments = parser.parse_args()
    missing = [name for name in ("torch", "triton", "fla", "glade") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"compare_fla_accuracy.py: {missing[0]} is not installed")
    rows = {}

    def keep(index, _, errors, error):
        form, gate, dtype, normalizer, sizes = CASES[index]
        label = f"{form} {gate} {dtype} N {normalizer} K{sizes[2]} V{sizes[3]}"
        if error:
            print(f"{label:42} {error}", flush=True)
            return
        limit = LIMITS["recurrent" if "gv" in gate else form]  # as is fla's form
        good = all(ours <= min(limit * theirs, 5e-3) for ours, theirs in errors.values())
        columns = (f"{name} {a:.2e} ({b:.2e})" for name, (a, b) in errors.items())
        print(f"{label:42}", *columns, "ok" if good else "MISSED", flush=True)
        rows[index] = dict(form=form, gate=gate, dtype=dtype, normalizer=normalizer, sizes=sizes, good=good,
                           errors={name: dict(glade=a, fla=b) for name, (a, b) in errors.items()})
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump([rows[i] for i in sorted(rows)], file, indent=1)

    try:
        worker_pool.Pool(arguments.processes, float("inf"), float("inf"), Comparison).run(range(len(CASES)), keep)
    except worker_pool.NotStarted:
        sys.exit("compare_fla_accuracy.py: a process did not start")
    ratios = [x["glade"] / x["fla"] for row in rows.values() if row["form"] == "chunk" for x in row["errors"].values()]
    print(f"{sum(row['good'] for row in rows.values())} of {len(CASES)} good, chunk form at most {max(ratios, default=0):.3f} times fla's")


if __name__ == "__main__":
    main()
