"""Compares the errors of glade's kernels in 16 bits with those of fla's, on the same inputs.

    PYTHONPATH=build/python compare_fla_accuracy.py [--json FILE]

Prints, for every form, gate, dtype, strength of gates and shape, the root-mean-square error relative to the recurrence in
float64 of the output and of each gradient, glade's beside fla's (fused_recurrent_*, chunk_*), and whether glade's are good:
below 5e-3, and no more than fla's in the chunk form, 1.2 times fla's in the recurrent one. Gates are logsigmoid(normal) / N, as
in fla's tests, or uniform from -20 to 0.
"""
import argparse
import itertools
import json
import sys

try:
    import torch
    from fla.ops import gla, lightning_attn, simple_gla
    from fla.ops.common import chunk_o
except ImportError as error:
    sys.exit(f"compare_fla_accuracy.py: {error}")

import glade.torch

chunk_o.IS_NVIDIA_HOPPER = False  # fla refuses chunk_simple_gla's backward pass on Hopper with some versions of Triton
LAYER, LAYERS = 1, 8  # of lightning attention
FLA = {
    ("recurrent", "gk"): lambda q, k, v, g: gla.fused_recurrent_gla(q, k, v, gk=g)[0],
    ("recurrent", "g"): lambda q, k, v, g: simple_gla.fused_recurrent_simple_gla(q, k, v, g=g)[0],
    ("recurrent", "g_gamma"):
        lambda q, k, v: lightning_attn.fused_recurrent_lightning_attn(q, k, v, layer_idx=LAYER, num_layers=LAYERS)[0],
    ("chunk", "gk"): lambda q, k, v, g: gla.chunk_gla(q, k, v, g=g)[0],
    ("chunk", "g"): lambda q, k, v, g: simple_gla.chunk_simple_gla(q, k, v, g=g)[0],
}
LIMITS = {"recurrent": 1.2, "chunk": 1.0}  # of glade's error over fla's
# form, gate, dtype, N, (T, H, K, V)
CASES = [
    *(("chunk", gate, torch.bfloat16, normalizer, (512, H, D, D))
      for gate, H, D in (("gk", 16, 128), ("gk", 8, 64), ("g", 16, 128))
      for normalizer in ("0.1", "1", "10", "uniform")),
    *(("recurrent", gate, dtype, normalizer, (300, 4, K, V))
      for gate, dtype, normalizer, (K, V) in itertools.product(
          ("gk", "g", "g_gamma"), (torch.bfloat16, torch.float16), ("16", "1"), ((64, 64), (128, 128), (128, 256)))
      if gate != "g_gamma" or normalizer == "16"),
]


def lightning_decays(heads):
    """The logarithms of lightning attention's decays, one a head."""
    return -8 / heads * (1 - LAYER / LAYERS) * torch.arange(heads, device="cuda", dtype=torch.float32)


def step_by_step(gate, q, k, v, g):
    """The recurrence in the inputs' own precision."""
    state, outputs = 0, []
    for t in range(q.shape[1]):
        decay = g[:, None, None] if gate == "g_gamma" else g[:, t, :, :, None] if gate == "gk" else g[:, t, :, None, None]
        state = decay.exp() * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1)


def glade_recurrence(form, gate, q, k, v, decays):
    gates = (decays if name == gate else None for name in ("g", "g_gamma", "gk"))
    return glade.torch.recurrent_attention(q, k, v, *gates, cfg={"algorithm": form})


def results(function, inputs, do):
    """The output of a function and the gradients of its inputs."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    o = function(*inputs)
    return [o, *torch.autograd.grad(o, inputs, do.to(o.dtype))]


def measure(form, gate, dtype, normalizer, sizes):
    """-> {name: (glade's error, fla's error)}"""
    T, H, K, V = sizes
    q, k = (torch.randn(2, T, H, K, device="cuda", dtype=dtype) for _ in range(2))
    v, do = (torch.randn(2, T, H, V, device="cuda", dtype=dtype) for _ in range(2))
    inputs, fixed = [q, k, v], ()
    if gate == "g_gamma":
        fixed = (lightning_decays(H),)
    else:
        shape = q.shape if gate == "gk" else q.shape[:3]
        if normalizer == "uniform":
            gates = torch.rand(shape, device="cuda") * -20
        else:
            gates = torch.nn.functional.logsigmoid(torch.randn(shape, device="cuda")) / float(normalizer)
        inputs.append(gates.to(dtype))
    exact = results(lambda *x: step_by_step(gate, *x, *(y.double() for y in fixed)), [x.double() for x in inputs], do)
    ours = results(lambda *x: glade_recurrence(form, gate, *x, *fixed), inputs, do)
    theirs = results(FLA[form, gate], inputs, do)

    def error(got, expected):
        return ((got.double() - expected).norm() / expected.norm()).item()

    return {name: (error(a, e), error(b, e)) for name, a, b, e in zip(("o", "dq", "dk", "dv", "d" + gate), ours, theirs, exact)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the errors")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for form, gate, dtype, normalizer, sizes in CASES:
        errors = measure(form, gate, dtype, normalizer, sizes)
        good = all(ours <= min(LIMITS[form] * theirs, 5e-3) for ours, theirs in errors.values())
        label = f"{form} {gate} {str(dtype)[6:]} N {normalizer} K{sizes[2]} V{sizes[3]}"
        columns = (f"{name} {a:.2e} ({b:.2e})" for name, (a, b) in errors.items())
        print(f"{label:42}", *columns, "ok" if good else "MISSED", flush=True)
        rows.append(dict(form=form, gate=gate, dtype=str(dtype)[6:], normalizer=normalizer, sizes=sizes, good=good,
                         errors={name: dict(glade=a, fla=b) for name, (a, b) in errors.items()}))
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(rows, file, indent=1)
    print(f"{sum(row['good'] for row in rows)} of {len(rows)} good")


if __name__ == "__main__":
    main()
