"""Puts models of the published GLA sizes through loading, logits, training and generation, in glade and in fla, on the same weights.

    PYTHONPATH=build/python pretrained_fla.py [--sizes 340M,1.3B,2.7B] [--only logits,train,generate] [--json FILE] [--folder FOLDER]
                                              [--time-limit SECONDS]

For each size it writes a folder as it is published: the config of fla-hub's gla-340M-15B, gla-1.3B-100B or gla-2.7B-100B and random
weights in bfloat16 (in --folder, where they stay, or a temporary one). glade and fla read it, one after the other, each in one process
for all sizes:
logits: of 2 x 512 random tokens, in float32 (step by step) and in bfloat16 (chunks). Printed are the distances between the float32 logits,
and of each side's bfloat16 logits from fla's float32 ones: the norm of the difference over the norm, and the largest difference over the
largest value.
train: ten steps of AdamW on one batch of 2 x 2048 tokens from float32 weights, with bfloat16 activations (fla: autocast and PyTorch's
fused AdamW). Printed are the losses of both, their largest relative difference and tokens a second, the median of the last five steps.
generate: tokens a second of greedy generation of 64 tokens after a prompt of 16, batch 1 and 64, in bfloat16, the faster of two runs.

Without torch or fla it prints glade's figures alone, and distances from glade's float32 logits; so it does with --device cpu. --json writes
what was measured, losses of every step among it; runs with the same file add to it. fla compiles its kernels at first use, for minutes; set
TRITON_CACHE_DIR to keep them between runs.
"""
import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

# What fla and transformers wrote when the 1.3 B and 2.7 B models were uploaded; the 340 M model's is of a later date.
EARLY_2024 = {
    "architectures": ["GLAForCausalLM"], "attn_mode": "chunk", "bos_token_id": 1, "clamp_min": None, "conv_size": 4, "eos_token_id": 2,
    "expand_k": 0.5, "expand_v": 1, "fuse_cross_entropy": True, "fuse_norm": True, "hidden_act": "swish", "hidden_ratio": 4,
    "initializer_range": 0.02, "intermediate_size": None, "max_position_embeddings": 2048, "model_type": "gla", "rms_norm_eps": 1e-06,
    "share_conv_kernel": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.39.1",
    "use_cache": True, "use_gk": True, "use_gv": False, "use_short_conv": False, "vocab_size": 32000,
}
LATER = {key: value for key, value in EARLY_2024.items() if key not in ("rms_norm_eps", "share_conv_kernel")} | {
    "attn": None, "elementwise_affine": True, "feature_map": None, "norm_eps": 1e-06, "num_kv_heads": None, "tie_word_embeddings": True,
    "transformers_version": "4.45.0", "use_output_gate": True,
}
CONFIGS = {
    "340M": LATER | {"hidden_size": 1024, "num_hidden_layers": 24, "num_heads": 4},
    "1.3B": EARLY_2024 | {"hidden_size": 2048, "num_hidden_layers": 24, "num_heads": 4},
    "2.7B": EARLY_2024 | {"hidden_size": 2560, "num_hidden_layers": 32, "num_heads": 5},
    "tiny": EARLY_2024 | {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "vocab_size": 500},  # to try this program
}
LOGITS, TRAIN, STEPS = (2, 512), (2, 2048), 10  # sequences and tokens
PROMPT, NEW_TOKENS, BATCHES = 16, 64, (1, 64)
ADAMW = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


# ---- weights ----------------------------------------------------------------------------------------------------------

def tensor_shapes(config):
    hidden, K, V = config["hidden_size"], config["hidden_size"] // 2, config["hidden_size"]
    inner = 256 * -(-int(hidden * 4 * 2 / 3) // 256)
    shapes = {"model.embeddings.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}attn.{name}_proj.weight": shape for name, shape in
                   dict(q=(K, hidden), k=(K, hidden), v=(V, hidden), g=(V, hidden), o=(hidden, V)).items()}
        shapes |= {f"{layer}attn.gk_proj.0.weight": (16, hidden), f"{layer}attn.gk_proj.1.weight": (K, 16),
                   f"{layer}attn.gk_proj.1.bias": (K,), f"{layer}attn.g_norm_swish_gate.weight": (V // config["num_heads"],)}
        shapes |= {f"{layer}mlp.{name}_proj.weight": shape for name, shape in
                   dict(gate=(inner, hidden), up=(inner, hidden), down=(hidden, inner)).items()}
        shapes |= {f"{layer}attn_norm.weight": (hidden,), f"{layer}mlp_norm.weight": (hidden,)}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def to_bfloat16(x):
    """The bits, rounded to nearest."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def publish(folder, name):
    """Writes the folder of a model, unless it is there. Matrices are parts of one pool of normal numbers: billions take minutes to draw.
    Those that write into the residual are 32 times as small as the others. With random weights of one size it is the layers' outputs alone,
    not the embeddings, and the smallest change grows a hundredfold on its way through 24 layers; in trained models it does not."""
    path, config = os.path.join(folder, name), CONFIGS[name]
    if os.path.exists(os.path.join(path, "config.json")):
        return
    os.makedirs(path, exist_ok=True)
    normal = np.random.default_rng(0).standard_normal(1 << 25, dtype=np.float32) * np.float32(config["initializer_range"])
    pools = {False: to_bfloat16(normal), True: to_bfloat16(normal / 32)}
    shapes, header, end = tensor_shapes(config), {"__metadata__": {"format": "pt"}}, 0
    for tensor, shape in shapes.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        place = 0
        for tensor, shape in shapes.items():
            left = int(np.prod(shape))
            if len(shape) == 1:
                file.write(np.full(left, 0 if tensor.endswith("bias") else 0x3F80, np.uint16).tobytes())  # 0 or 1
                continue
            pool = pools["o_proj" in tensor or "down_proj" in tensor]
            while left > 0:
                count = min(left, len(pool) - place)
                file.write(pool[place:place + count].data)
                left, place = left - count, (place + count + 7919) % len(pool)
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump(config, file, indent=2)


def random_tokens(config, shape, seed):
    return np.random.default_rng(seed).integers(0, config["vocab_size"], shape)


# ---- what runs in a process of each side ------------------------------------------------------------------------------

class Fla:
    """fla's models; raises ImportError where they are not installed."""

    def __init__(self, device):
        import torch
        from fla.models import GLAForCausalLM
        if device != "cuda" or not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        self.torch, self.device, self.model_class = torch, device, GLAForCausalLM

    def load(self, path, dtype, mode="chunk"):
        gc.collect()
        self.torch.cuda.empty_cache()
        model = self.model_class.from_pretrained(path, dtype=getattr(self.torch, dtype), attn_mode=mode)
        if model.config.tie_word_embeddings:  # which not every version of transformers does for fla's models
            model.lm_head.weight = model.model.embeddings.weight
        return model.to(self.device)

    def logits(self, path, ids, dtype):
        torch = self.torch
        model = self.load(path, dtype, "fused_recurrent" if dtype == "float32" else "chunk").eval()
        with torch.no_grad():
            return model(torch.tensor(ids, device=self.device), use_cache=False).logits.float().cpu().numpy()

    def trainer(self, path, ids):
        torch = self.torch
        model = self.load(path, "float32").train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)
        tokens = torch.tensor(ids, device=self.device)

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return step

    def generator(self, path):
        torch = self.torch
        model = self.load(path, "bfloat16").eval()
        model.generation_config.eos_token_id = None  # random weights must not end early

        def generate(prompts, count):
            prompts = torch.tensor(prompts, device=self.device)
            out = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count, do_sample=False, pad_token_id=0)
            assert out.shape == (prompts.shape[0], prompts.shape[1] + count), out.shape
            torch.cuda.synchronize()

        return generate


class Glade:
    def __init__(self, device):
        import glade
        from glade.nn import models
        from glade.optim import AdamW
        self.glade, self.models, self.AdamW, self.device = glade, models, AdamW, device

    def load(self, path, dtype, algorithm="auto"):
        gc.collect()
        model = self.models.GLAForCausalLM.from_pretrained(path, device=self.device, dtype=dtype)
        model.set_algorithm(algorithm)
        return model

    def tensor(self, ids):
        return self.glade.tensor(ids).to(self.device)

    def logits(self, path, ids, dtype):
        model = self.load(path, dtype, "recurrent" if dtype == "float32" else "chunk")
        with self.glade.no_grad():
            return model(self.tensor(ids)).float().cpu().numpy()

    def trainer(self, path, ids):
        model = self.load(path, "bfloat16")
        optimizer = self.AdamW(model.named_parameters(), **ADAMW)
        inputs, targets = self.tensor(ids), self.tensor(np.pad(ids[:, 1:], ((0, 0), (0, 1)), constant_values=-100))

        def step():
            loss = model.loss(inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return step

    def generator(self, path):
        model = self.load(path, "bfloat16")

        def generate(prompts, count):
            assert [len(x) for x in model.generate(prompts.tolist(), count, temperature=0)] == [len(p) + count for p in prompts]

        return generate


class Tasks:
    """The parts, alike for both sides; each yields rows."""

    def __init__(self, side, folder, device):
        self.name, self.folder = side, folder
        self.side = {"fla": Fla, "glade": Glade}[side](device)
        self.small = device == "cpu"

    def logits(self, size):
        ids = random_tokens(CONFIGS[size], (2, 65) if self.small else LOGITS, 1)
        for dtype in ("float32", "bfloat16"):
            file = os.path.join(self.folder, f"logits_{self.name}_{size}_{dtype}.npy")
            start = time.perf_counter()
            np.save(file, self.side.logits(os.path.join(self.folder, size), ids, dtype))
            yield dict(dtype=dtype, file=file, seconds=time.perf_counter() - start)

    def train(self, size):
        ids = random_tokens(CONFIGS[size], (2, 65) if self.small else TRAIN, 2)
        step = self.side.trainer(os.path.join(self.folder, size), ids)
        losses, times = [], []
        for _ in range(STEPS):
            start = time.perf_counter()
            losses.append(step())
            times.append(time.perf_counter() - start)
        yield dict(losses=losses, step_s=times, tokens_per_s=ids.size / statistics.median(times[-5:]))

    def generate(self, size):
        run = self.side.generator(os.path.join(self.folder, size))
        for batch in (1,) if self.small else BATCHES:
            prompts = random_tokens(CONFIGS[size], (batch, PROMPT), 3)
            run(prompts, 8)  # compiles
            times = []
            for _ in range(2):
                start = time.perf_counter()
                run(prompts, NEW_TOKENS)
                times.append(time.perf_counter() - start)
            yield dict(batch=batch, seconds=times, tokens_per_s=batch * NEW_TOKENS / min(times))


def run_side(side, folder, device, sizes, parts):
    """The process of a side: a line of JSON for each row."""
    try:
        tasks = Tasks(side, folder, device)
    except ImportError as error:
        print(json.dumps(dict(error=f"{side} is not measured: {error}")), flush=True)
        return
    for size in sizes:
        for part in parts:
            try:
                for row in getattr(tasks, part)(size):
                    print(json.dumps(dict(row, part=part, size=size, side=side)), flush=True)
            except Exception as error:  # the other parts may do
                message = f"{side} {part} {size}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                print(json.dumps(dict(error=message)), flush=True)


# ---- the comparison ---------------------------------------------------------------------------------------------------

def collect(options, side, deadline):
    """The rows of a side, as they come."""
    command = [sys.executable, __file__, "--run", side, "--folder", options.folder, "--device", options.device, "--sizes", options.sizes,
               "--only", options.only]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(max(0, deadline - time.monotonic()), process.kill)
        limit.start()
        for line in process.stdout:
            row = json.loads(line) if line.startswith("{") else None
            if row and "error" in row:
                print(row["error"], file=sys.stderr, flush=True)
            elif row:
                rows.append(row)
        limit.cancel()
    if process.returncode != 0:
        print(f"{side}: ended with status {process.returncode}", file=sys.stderr)
    return rows


def distances(file, exact_file):
    """-> the norm of the difference over the norm, the largest difference over the largest value."""
    x, exact = np.load(file), np.load(exact_file)
    difference = x - exact
    return dict(relative_error=float(np.linalg.norm(difference.ravel()) / np.linalg.norm(exact.ravel())),
                largest_error=float(np.abs(difference).max() / np.abs(exact).max()))


def compare_logits(rows):
    files = {(row["side"], row["size"], row["dtype"]): row.pop("file") for row in rows if row["part"] == "logits"}
    for row in rows:
        if row["part"] != "logits":
            continue
        reference = next((key for key in (("fla", row["size"], "float32"), ("glade", row["size"], "float32")) if key in files), None)
        own = (row["side"], row["size"], row["dtype"])
        if reference and reference != own:
            row |= dict(distances(files[own], files[reference]), reference=" ".join(reference))
            print(f"logits   {row['size']:5} {row['side']:5} {row['dtype']:8} from {row['reference']}: {row['relative_error']:.2e}, "
                  f"largest {row['largest_error']:.2e}")
    for file in files.values():
        os.remove(file)


def compare_rates(rows):
    rates = {(row["side"], row["part"], row["size"], row.get("batch")): row["tokens_per_s"] for row in rows if "tokens_per_s" in row}
    for (side, part, size, batch), rate in sorted(rates.items(), key=lambda x: (x[0][1], x[0][2], x[0][3] or 0, x[0][0])):
        fla = rates.get(("fla", part, size, batch))
        ratio = f", {rate / fla:.2f} x fla" if side == "glade" and fla else ""
        print(f"{part:8} {size:5} {side:5} {f'batch {batch}' if batch else '':8} {rate:10.0f} tokens/s{ratio}")


def compare_losses(rows):
    losses = {(row["size"], row["side"]): row["losses"] for row in rows if row["part"] == "train"}
    for (size, side), values in sorted(losses.items()):
        print(f"losses   {size:5} {side:5} " + " ".join(f"{x:.4f}" for x in values))
        if side == "glade" and (size, "fla") in losses:
            largest = max(abs(a / b - 1) for a, b in zip(values, losses[size, "fla"]))
            print(f"losses   {size:5} differ by {largest:.1e} at most")


def keep(file, rows):
    """Adds rows to those of the file, in place of those of the same name."""
    def name(row):
        return tuple(row.get(key) for key in ("part", "size", "side", "dtype", "batch"))

    results = {}
    if os.path.exists(file):
        with open(file) as before:
            results = {name(row): row for row in json.load(before)}
    results |= {name(row): row for row in rows}
    with open(file, "w") as after:
        json.dump(list(results.values()), after, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="340M,1.3B,2.7B", help=f"of {', '.join(CONFIGS)} (default: all three published ones)")
    parser.add_argument("--only", default="logits,train,generate", help="parts, in the order wanted (default: all)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: glade alone, on shorter sequences")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--folder", help="where the models are written and stay")
    parser.add_argument("--time-limit", type=float, default=3600, help="seconds after which everything is stopped")
    parser.add_argument("--run", choices=("fla", "glade"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes, parts = options.sizes.split(","), options.only.split(",")
    for given, known in ((sizes, CONFIGS), (parts, ("logits", "train", "generate"))):
        for value in given:
            if value not in known:
                parser.error(f"{value!r} is none of {', '.join(known)}")
    if options.run:
        return run_side(options.run, options.folder, options.device, sizes, parts)

    deadline = time.monotonic() + options.time_limit
    with tempfile.TemporaryDirectory() as temporary:
        options.folder = options.folder or temporary
        start = time.monotonic()
        for size in sizes:
            publish(options.folder, size)
        print(f"wrote the models in {time.monotonic() - start:.1f} s", flush=True)
        rows = collect(options, "glade", deadline) + collect(options, "fla", deadline)
        compare_logits(rows)
    compare_losses(rows)
    compare_rates(rows)
    if options.json:
        keep(options.json, rows)


if __name__ == "__main__":
    main()
