"""Compares the errors of glade's recurrent kernels with those of fla's fused_recurrent_*, on the same inputs.

    PYTHONPATH=build/python compare_fla_accuracy.py [--json FILE]

Prints, for every gate, dtype, strength of gates and shape, the root-mean-square error relative to the recurrence in float64 of
the output and of each gradient, glade's beside fla's. glade's should be no more than 1.2 times fla's, and below 5e-3: the last
column says so.
"""
import argparse
import itertools
import json

import torch
from fla.ops import gla, lightning_attn, simple_gla

import glade
import glade.torch

LAYER, LAYERS = 1, 8  # of lightning attention
FLA = {
    "gk": lambda q, k, v, g: gla.fused_recurrent_gla(q, k, v, gk=g)[0],
    "g": lambda q, k, v, g: simple_gla.fused_recurrent_simple_gla(q, k, v, g=g)[0],
    "g_gamma": lambda q, k, v: lightning_attn.fused_recurrent_lightning_attn(q, k, v, layer_idx=LAYER, num_layers=LAYERS)[0],
}


def lightning_decays(heads):
    """The logarithms of lightning attention's decays, one a head."""
    return -8 / heads * (1 - LAYER / LAYERS) * torch.arange(heads, device="cuda", dtype=torch.float32)


def step_by_step(gate, q, k, v, g):
    """The recurrence in the inputs' own precision."""
    state, outputs = 0, []
    for t in range(q.shape[1]):
        decay = {"gk": lambda: g[:, t, :, :, None], "g": lambda: g[:, t, :, None, None], "g_gamma": lambda: g[:, None, None]}[gate]()
        state = decay.exp() * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1)


def glade_recurrent(gate, q, k, v, decays):
    gates = (decays if name == gate else None for name in ("g", "g_gamma", "gk"))
    return glade.torch.recurrent_attention(q, k, v, *gates, cfg={"algorithm": "recurrent"})


def results(function, inputs, do):
    """The output of a function and the gradients of its inputs."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    o = function(*inputs)
    return [o, *torch.autograd.grad(o, inputs, do.to(o.dtype))]


def measure(gate, dtype, strength, T, H, K, V):
    """-> {name: (glade's error, fla's error)}"""
    q, k = (torch.randn(2, T, H, K, device="cuda", dtype=dtype) for _ in range(2))
    v, do = (torch.randn(2, T, H, V, device="cuda", dtype=dtype) for _ in range(2))
    inputs, fixed = [q, k, v], ()
    if gate == "g_gamma":
        fixed = (lightning_decays(H),)
    else:
        shape = q.shape if gate == "gk" else q.shape[:3]
        inputs.append((torch.nn.functional.logsigmoid(torch.randn(shape, device="cuda")) * strength).to(dtype))
    exact = results(lambda *x: step_by_step(gate, *x, *(y.double() for y in fixed)), [x.double() for x in inputs], do)
    ours = results(lambda *x: glade_recurrent(gate, *x, *fixed), inputs, do)
    theirs = results(FLA[gate], inputs, do)

    def error(got, expected):
        return ((got.double() - expected).norm() / expected.norm()).item()

    return {name: (error(a, e), error(b, e)) for name, a, b, e in zip(("o", "dq", "dk", "dv", "d" + gate), ours, theirs, exact)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the errors")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for gate, dtype, strength, (K, V) in itertools.product(FLA, (torch.bfloat16, torch.float16), (1 / 16, 1),
                                                           ((64, 64), (128, 128), (128, 256))):
        if gate == "g_gamma" and strength == 1:
            continue
        errors = measure(gate, dtype, strength, 300, 4, K, V)
        good = all(ours <= min(1.2 * theirs, 5e-3) for ours, theirs in errors.values())
        label = f"{gate} {str(dtype)[6:]} {strength:g} K{K} V{V}"
        print(f"{label:32}", *(f"{name} {a:.2e} ({b:.2e})" for name, (a, b) in errors.items()), "ok" if good else "MISSED", flush=True)
        rows.append(dict(gate=gate, dtype=str(dtype)[6:], strength=strength, K=K, V=V,
                         errors={name: dict(glade=a, fla=b) for name, (a, b) in errors.items()}))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
