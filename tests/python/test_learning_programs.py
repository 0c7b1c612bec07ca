"""The programs in benchmarks/ that measure how well models learn, at sizes that take seconds."""

import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import glade
from programs import environment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXT = "".join(f"Line {i}: the quick brown fox jumps over {i * i} lazy dogs.\n" for i in range(2000))


def load(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, folder, *arguments, code=0):
    """What a program prints, or with another exit code its line of error."""
    command = [sys.executable, BENCHMARKS / f"{name}.py", *map(str, arguments)]
    result = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
    assert result.returncode == code, result.stderr
    return result.stderr.splitlines()[-1] if code else result.stdout


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_image(path):
    if importlib.util.find_spec("matplotlib"):
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def plot(tmp_path):
    """The option for an image, where one can be drawn."""
    return ["--plot", tmp_path / "image.png"] if importlib.util.find_spec("matplotlib") else []


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


# ---- source_text ------------------------------------------------------------------------------------------------------


def test_source_text(tmp_path):
    files = {f"linux-6.1/{folder}/a{i}.{end}": f"{folder} {i} {end}\n" * 20 for folder in ("fs", "mm", "tools") for i in range(5) for end in "cho"}
    with tarfile.open(tmp_path / "linux.tar.xz", "w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    output = run("source_text", tmp_path, "linux.tar.xz", "--text", "text.txt", "--bytes", "2000")
    text = (tmp_path / "text.txt").read_text()
    documents = text.split("\0")
    assert documents.pop() == "" and 1000 < len(text) <= 2000 and output.startswith(f"{len(text)} bytes of {len(documents)} files, out of ")
    assert set(documents) < {content for name, content in files.items() if name[-1] in "ch" and "/tools/" not in name}
    assert len(set(documents)) == len(documents) and any("fs" in x for x in documents) and any("mm" in x for x in documents)
    assert "has no .c or .h files" in run("source_text", tmp_path, "linux.tar.xz", "--text", "x", "--folders", "arch", code=1)
    assert "missing.tar" in run("source_text", tmp_path, "missing.tar", "--text", "x", code=1)
    assert "give --text or --tokens" in run("source_text", tmp_path, "linux.tar.xz", code=2)
    if importlib.util.find_spec("tokenizers"):
        output = run("source_text", tmp_path, "linux.tar.xz", "--tokens", "tokens.bin", "--bytes", "2000", "--vocabulary", "280")
        data = glade.data.TokenData(tmp_path / "tokens.bin")
        tokens = data.read(0, len(data)).tolist()
        assert data.vocab_size == 280 and data.separator == 0 and tokens.count(0) == len(documents) and output.endswith(f"\n{len(data)} tokens\n")
        assert len(data) < len(text) and tokens[-1] == 0


# ---- compare_loss_fla -------------------------------------------------------------------------------------------------


def train_loss(folder, seed, log, *options, tokens=15360, code=0):
    arguments = ["--side", "glade", "--size", "tiny", "--device", "cpu", "--tokens", tokens, "--every", "4", "--warmup", "5"]
    return run("compare_loss_fla", folder, "train", "text.txt", *arguments, "--seed", seed, "--log", log, *options, code=code)


def test_loss_of_glade(text, tmp_path, plot):
    output = train_loss(tmp_path, 0, "a.jsonl")
    train_loss(tmp_path, 0, "b.jsonl")
    train_loss(tmp_path, 1, "c.jsonl")
    settings, *rows, end = read_lines(tmp_path / "a.jsonl")
    assert (settings["side"], settings["steps"], settings["vocab_size"], settings["text_tokens"]) == ("glade", 30, 256, len(TEXT))
    assert [row["step"] for row in rows] == [1, 2, 3, 7, 11, 15, 19, 23, 27, 30]
    assert [row["tokens"] for row in rows] == [512 * row["step"] for row in rows]
    assert rows[2]["seconds"] == 0 and end["seconds"] == rows[-1]["seconds"] > rows[3]["seconds"] > 0
    assert rows[0]["loss"] == pytest.approx(np.log(256), abs=0.2) and end["held_out_loss"] < 3.5 < rows[3]["loss"]
    assert f"held-out loss {end['held_out_loss']:.4f} after 30 steps" in output
    same, other = ([row["loss"] for row in read_lines(tmp_path / f"{name}.jsonl")[1:-1]] for name in "bc")
    assert same == [row["loss"] for row in rows] and other[0] != same[0]
    output = run("compare_loss_fla", tmp_path, "show", "a.jsonl", "c.jsonl", *plot)
    assert re.search(r"tiny +glade +2 ", output)
    if plot:
        check_image(tmp_path / "image.png")


def test_comparison_of_both_sides(tmp_path):
    """Of logs: fla's takes twice as long for the same losses, and is 0.01 above glade's."""
    for side, pace, more in (("glade", 1, 0), ("fla", 2, 0.01)):
        with open(tmp_path / f"{side}.jsonl", "w") as file:
            print(json.dumps(dict(side=side, size="134M", seed=3)), file=file)
            for i in range(1, 101):
                print(json.dumps(dict(step=i, tokens=100 * i, seconds=pace * i, loss=more + 8 - 0.05 * i)), file=file)
            print(json.dumps(dict(held_out_loss=3.0, tokens_per_s=1e5 / pace, peak_bytes=2**30, first_steps_s=1, seconds=pace * 100)), file=file)
    output = run("compare_loss_fla", tmp_path, "show", "glade.jsonl", "fla.jsonl")
    assert "134M: smooth losses of the same seed and tokens differ by 0.0100 at most, 0.0100 on average" in output
    ours, theirs = map(float, re.search(r"134M: loss 3.1350 after ([\d.]+) s in glade and ([\d.]+) s in fla", output).groups())
    assert (ours, theirs) == (100, 200)


def test_both_sides_read_the_same_sequences(text):
    Text = load("compare_loss_fla").Text
    one, same, other = Text(str(text), 100, 5), Text(str(text), 100, 5), Text(str(text), 100, 6)
    content = np.frombuffer(TEXT.encode(), np.uint8)
    epoch = one.held_out // 100
    starts = set()
    for step in range(epoch // 3 + 1):
        batch = one.batch(step, 3)
        assert (batch == same.batch(step, 3)).all()
        starts |= {int(place) for place in one.order[step * 3 : step * 3 + 3]}
        assert (batch[0] == content[one.order[3 * step % epoch] * 100 :][:100]).all()
    assert starts == set(range(epoch)) and (one.batch(0, 3) != other.batch(0, 3)).any()
    held_out = np.concatenate(list(one.held_out_batches(4)))
    assert (held_out.ravel() == content[one.held_out :][: held_out.size]).all() and 0 <= len(TEXT) - one.held_out - held_out.size < 100


def test_targets_of_glade_are_those_of_fla():
    """Each token but the first, as where labels are the inputs."""
    program = load("compare_loss_fla")
    side = program.Glade("cpu", program.SIZES["tiny"], 256, 0, 1e-3, lambda step: 1.0)
    tokens = np.random.default_rng(0).integers(0, 256, (2, 20))
    logits = side.model(glade.tensor(tokens)).float()
    expected = glade.cross_entropy(logits[:, :-1], glade.tensor(tokens[:, 1:])).item()
    assert side.evaluate(tokens) == pytest.approx(expected, rel=1e-3)
    assert side.step(tokens).item() == pytest.approx(expected, rel=1e-3)


def test_fla_side(text, tmp_path):
    """Trains where fla is there, else says in one line what is missing."""
    options = ["--side", "fla", "--configurations", "2"]
    if importlib.util.find_spec("fla") and importlib.util.find_spec("torch") and glade.cuda.is_available():
        train_loss(tmp_path, 0, "fla.jsonl", *options, "--device", "cuda")
        train_loss(tmp_path, 0, "glade.jsonl", "--device", "cuda")
        ours, theirs = (read_lines(tmp_path / f"{side}.jsonl")[1:] for side in ("glade", "fla"))
        assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-2) and ours[-1]["held_out_loss"] == pytest.approx(theirs[-1]["held_out_loss"], rel=5e-2)
    else:
        line = train_loss(tmp_path, 0, "fla.jsonl", *options, code=1)
        assert line.startswith("compare_loss_fla.py: ") and not (tmp_path / "fla.jsonl").exists()


def test_errors_of_compare_loss_fla(text, tmp_path):
    (tmp_path / "other.jsonl").write_text("no JSON\n")
    assert "other.jsonl cannot be read as a log" in run("compare_loss_fla", tmp_path, "show", "other.jsonl", code=1)
    (tmp_path / "text.txt").write_text("short")
    assert "text.txt has 5 tokens, too few for sequences of 128" in train_loss(tmp_path, 0, "a.jsonl", code=1)


# ---- recall -----------------------------------------------------------------------------------------------------------


def test_recall(tmp_path, plot):
    grid = "--widths 32 --seeds 0 --pairs 1 2 --keys 8 --seq-len 8 --steps 250 --batch 32 --lr 0.007 --devices cpu --jobs 2 --log log.jsonl".split()
    output = run("recall", tmp_path, *grid, "--kinds", "gla", "softmax", *plot)
    rows = read_lines(tmp_path / "log.jsonl")
    assert sorted(row["kind"] for row in rows) == ["gla", "softmax"] and all(row["accuracy"]["1"] > 0.95 for row in rows)
    assert re.search(r"gla +32 +1 ", output) and re.search(r"softmax +32 +1 ", output)
    if plot:
        check_image(tmp_path / "image.png")
    before = (tmp_path / "log.jsonl").read_text()
    run("recall", tmp_path, *grid, "--kinds", "gla", "softmax")
    assert (tmp_path / "log.jsonl").read_text() == before
    assert run("recall", tmp_path, "--show", "log.jsonl") == output[output.index("kind") :]


def test_errors_of_recall(tmp_path):
    assert "give either --log or --show" in run("recall", tmp_path, code=2)
    assert "--pairs 64: a sequence of 96 with 128 keys holds 32 pairs at most" in run("recall", tmp_path, "--log", "x", "--seq-len", "96", code=2)
    grid = "--widths 32 --kinds gla --seeds 0 --pairs 1 --keys 8 --seq-len 8 --steps 1 --devices none --log log.jsonl".split()
    assert run("recall", tmp_path, *grid, code=1) == "recall.py: there are no results"
    assert "missing cannot be read" in run("recall", tmp_path, "--show", "missing", code=1)


# ---- length -----------------------------------------------------------------------------------------------------------


def test_positions(text, tmp_path, plot):
    checkpoints = []
    for kind in ("GLA", "Lightning"):
        glade.manual_seed(0)
        model = getattr(glade.nn.models, f"{kind}ForCausalLM")(hidden_size=32, num_hidden_layers=1, num_heads=2, initializer_range=0.2)
        checkpoints.append(tmp_path / f"{kind}.h5")
        glade.save(model, checkpoints[-1])
    common = ["--seq-len", 16, "--times", 8, "--device", "cpu", "--sequences", 8, "--json", "rows.json"]
    output = run("length", tmp_path, "position", "--data", text, "--checkpoints", *checkpoints, *common, *plot)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["begin"], row["end"]) for row in rows[:8]] == [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64), (64, 128)]
    assert {row["model"] for row in rows} == {"GLA", "lightning attention"} and len(rows) == 16
    content = np.frombuffer(TEXT.encode(), np.uint8).astype(int)
    held_out = len(TEXT) - len(TEXT) // 20
    tokens = np.stack([content[held_out + i * (len(TEXT) // 20 // 8) :][:129] for i in range(8)])
    logits = model(glade.tensor(tokens[:, :-1]))
    expected = glade.cross_entropy(logits, glade.tensor(tokens[:, 1:]), reduction="none").detach().numpy().mean(0)
    assert [row["loss"] for row in rows[8:]] == pytest.approx([expected[row["begin"] : row["end"]].mean() for row in rows[8:]], rel=1e-4)
    assert run("length", tmp_path, "position", "--show", "rows.json") == output
    if plot:
        check_image(tmp_path / "image.png")


def test_the_states_pass_from_segment_to_segment(monkeypatch):
    program = load("length")
    model = glade.nn.models.GLAForCausalLM(hidden_size=32, num_hidden_layers=1, num_heads=2, initializer_range=0.2, use_short_conv=True)
    tokens = np.random.default_rng(0).integers(0, 256, (2, 201))
    whole = program.position_losses(model, "cpu", tokens)
    monkeypatch.setattr(program, "SEGMENT", 128)
    assert len(program.segments(200, 2)) == 4
    assert program.position_losses(model, "cpu", tokens) == pytest.approx(whole, rel=1e-4)


def test_haystack():
    Haystack = load("length").Haystack
    haystack = Haystack(np.random.default_rng(0), 5, 300, 6)
    tokens = np.concatenate([haystack.read(begin, end) for begin, end in [(0, 100), (100, 101), (101, 294), (294, 300)]], 1)
    assert tokens.shape == (5, 300)
    for row, answers in zip(tokens, haystack.answers):
        for key, answer in zip(row[294:], answers):
            (place,) = np.flatnonzero(row[:294] == key)
            assert row[place + 1] == answer and 64 <= key < 128 <= answer < 192
        assert (row[:294] < 64).sum() == 294 - 12
    depths = np.array([[np.flatnonzero(row[:294] == key)[0] / 300 for key in row[294:]] for row in tokens])
    assert depths == pytest.approx(haystack.depths)


def test_needles(tmp_path, plot):
    options = "--models gla lightning --seq-len 16 --lengths 16 100 --needles 2 --hidden 64 --steps 200 --batch-tokens 512 --lr 0.01 --device cpu --json rows.json".split()
    output = run("length", tmp_path, "needle", *options, *plot)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["model"], row["length"]) for row in rows] == [(name, length) for name in ("GLA", "lightning attention") for length in (16, 100)]
    assert all(0 <= row["accuracy"] <= 1 and row["peak_bytes"] > 0 for row in rows)
    for kind in ("gla", "lightning"):
        assert float(re.search(rf"{kind} step 200, 16 tokens: loss ([\d.]+)", output)[1]) < 3.8  # that of a guess is log 64 = 4.16
    if plot:
        check_image(tmp_path / "image.png")


def test_errors_of_length(tmp_path):
    assert "position needs --data and --checkpoints" in run("length", tmp_path, "position", code=2)
    assert "--needles 8 need sequences of 32 tokens at least" in run("length", tmp_path, "needle", "--lengths", "16", code=2)
    assert "missing" in run("length", tmp_path, "needle", "--show", "missing", code=1)


# ---- cpu_recipe -------------------------------------------------------------------------------------------------------

TINY = dict(layers=1, hidden=32, heads=2, seq_len=32, batch=4, warmup=5, short_seq_len=32)


def test_recipes(text, tmp_path):
    recipes = [
        TINY | dict(name="slow", lr=1e-5), TINY | dict(name="fast", lr=0.02, schedule="wsd", final=0.0),
        TINY | dict(name="convolution", lr=0.02, config=dict(use_short_conv=True), average=0.9, short_seq_len=16, short_share=0.5),
        TINY | dict(name="impossible", heads=5),
    ]  # fmt: skip
    (tmp_path / "recipes.json").write_text(json.dumps(recipes))
    output = run("cpu_recipe", tmp_path, "--data", text, "--recipes", "recipes.json", "--steps", 60, "--threads", 1, "--log", "log.jsonl")
    rows = {row["name"]: row for row in read_lines(tmp_path / "log.jsonl")}
    assert "error" in rows["impossible"] and rows["slow"]["bits_per_byte"] > 7 and rows["fast"]["bits_per_byte"] < 5
    assert rows["fast"]["bits_per_byte"] == pytest.approx(rows["fast"]["training_bits"], abs=1.5) and rows["fast"]["steps"] == 60
    names = [line.split()[0] for line in output.splitlines()]
    assert names[0] == "recipe" and names[-1] == "slow" and set(names[1:3]) == {"fast", "convolution"}
    assert run("cpu_recipe", tmp_path, "--show", "log.jsonl") == output


def test_a_recipe_ends_with_its_time(text, tmp_path):
    run("cpu_recipe", tmp_path, "--data", text, "--recipes", json.dumps([TINY]), "--seconds", 0.5, "--seeds", 0, 1, "--threads", 1, "--log", "log.jsonl")
    rows = read_lines(tmp_path / "log.jsonl")
    assert sorted(row["seed"] for row in rows) == [0, 1] and all(0.5 <= row["seconds"] < 2 and row["steps"] > 1 for row in rows)


def test_learning_rates_of_recipes():
    program = load("cpu_recipe")

    def factors(**recipe):
        training = SimpleNamespace(recipe=program.FIELDS | dict(warmup=2) | recipe, steps=10, step=0, spent=0.0, seconds=0.0)
        training.done = lambda: program.Training.done(training)
        result = []
        for training.step in range(10):
            result.append(program.Training.factor(training))
        return result

    assert factors(schedule="wsd", decay=0.4, final=0.0) == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    assert factors(final=0.1) == pytest.approx([0.5, 1, *(0.1 + 0.45 * (1 + np.cos(np.pi * i / 10)) for i in range(2, 10))])


def test_errors_of_cpu_recipe(text, tmp_path):
    for recipes, words in [('[{"width": 3}]', "has the field 'width'"), ('[{"lr": "1"}]', "the lr of a recipe is '1'"), ("[{}, {}]", "two recipes have the name")]:
        line = run("cpu_recipe", tmp_path, "--data", text, "--log", "log.jsonl", "--recipes", recipes, code=1)
        assert line.startswith("cpu_recipe.py: ") and words in line
    assert "give --data and --log" in run("cpu_recipe", tmp_path, code=2)
