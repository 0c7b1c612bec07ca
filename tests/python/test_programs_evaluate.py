"""evaluate: perplexity against sums over whole sequences, multiple choice against log-likelihoods, and the program in C++."""

import csv
import json
import math
import os
import shutil
import subprocess

import numpy as np
import pytest

import glade
from glade.nn import models
from programs import ROOT, call, cpp, environment, open_terminal, python, read_terminal, refused, run_in_terminal, screen, skip_without_libraries, start, without

TEXT = "".join(f"Line {i * i}" + (".\n" if i % 5 == 0 else ": foxes and dogs. ") for i in range(40))


@pytest.fixture
def model(tmp_path):
    """Far from uniform; in model.h5, too."""
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_heads=2, use_short_conv=True, initializer_range=0.2)
    model = models.GLAForCausalLM(**sizes).eval()
    glade.save(model, tmp_path / "model.h5")
    return model


@glade.no_grad()
def log_likelihoods(model, tokens):
    """log p(tokens[i] | tokens before it) for i from 1 on, of the whole sequence at once, in float64."""
    logits = model(glade.tensor([list(tokens[:-1])]))[0].numpy().astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits[np.arange(len(tokens) - 1), list(tokens[1:])]


def evaluate(folder, *options, program=None, checkpoint="model.h5"):
    """{(file, metric): value} of the CSV file, after a check that the same was printed."""
    command = [*(program or python("evaluate")), "--device", "cpu", "--checkpoint", checkpoint, *options, "--log", "results.csv"]
    output = call(command, folder)
    with open(folder / "results.csv") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert f"{row['metric']} {float(row['value']):.6g}" in output
    return {(row["file"], row["metric"]): float(row["value"]) for row in rows}


def test_perplexity_does_not_depend_on_the_window(model, tmp_path):
    (tmp_path / "text,1.txt").write_text(TEXT)
    nats = -log_likelihoods(model, TEXT.encode()).sum() / (len(TEXT) - 1)
    for window in ([], ["--seq-len", "100"], ["--seq-len", "7"]):
        found = evaluate(tmp_path, "--data", "text,1.txt", *window)
        assert found.pop(("text,1.txt", "tokens")) == len(TEXT) - 1
        assert found.pop(("text,1.txt", "perplexity")) == pytest.approx(math.exp(nats), rel=1e-4)
        assert found == {("text,1.txt", name): pytest.approx(nats / math.log(2), abs=1e-5) for name in ("bits_per_byte", "bits_per_token")}


def test_packed_documents_are_apart(model, tmp_path):
    documents = [line.encode() for line in TEXT.splitlines()]
    documents[2] = b""  # predicts nothing
    (tmp_path / "text.txt").write_bytes(b"".join(document + b"\0" for document in documents))
    with glade.data.TokenWriter(tmp_path / "text.bin", 256, 0) as writer:
        for document in documents:
            writer.write(list(document))
            writer.end_document()
    nats = -sum(log_likelihoods(model, document + b"\0").sum() for document in documents if document)
    count = sum(map(len, documents))
    for window in ([], ["--seq-len", "150"], ["--seq-len", "20"]):
        found = evaluate(tmp_path, "--packed", "--data", "text.txt", "text.bin", *window)
        for file in ("text.txt", "text.bin"):
            assert found[file, "tokens"] == count
            assert found[file, "bits_per_token"] == pytest.approx(nats / count / math.log(2), abs=1e-5)


def test_multiple_choice_is_by_log_likelihood(model, tmp_path):
    queries = ["The fox jumps over", "Foxes and ", "Line 7: dogs", "Wörter?"]
    choices = ["the lazy dog", " cats", "many other animals of the forest", "x", "äöü"]
    right = right_by_byte = 0
    with open(tmp_path / "task.jsonl", "w") as file:
        for query in queries:
            plain = []
            for choice in choices:
                text = query + ("" if choice.startswith(" ") else " ") + choice
                plain.append(log_likelihoods(model, text.encode())[len(query.rstrip().encode()) - 1 :].sum())
            by_byte = [x / len(choice.encode()) for x, choice in zip(plain, choices)]
            for gold in range(len(choices)):
                right += plain[gold] == max(plain)
                right_by_byte += by_byte[gold] == max(by_byte)
                file.write(json.dumps({"query": query, "choices": choices, "gold": gold, "more": 1}) + "\n\n")
    count = len(queries) * len(choices)
    for batch in ([], ["--batch", "1"], ["--batch", "7"]):
        found = evaluate(tmp_path, "--task", "task.jsonl", *batch)
        assert found["task.jsonl", "acc"] == right / count and found["task.jsonl", "acc_norm"] == right_by_byte / count
        assert found["task.jsonl", "questions"] == count


def test_a_published_folder_with_its_tokenizer(tmp_path):
    """Its tokenizer.json."""
    tokenizers = pytest.importorskip("tokenizers")
    shutil.copytree(ROOT / "tests/data/gla_base", tmp_path / "model")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(vocab_size=97))
    tokenizer.save(str(tmp_path / "model/tokenizer.json"))
    (tmp_path / "text.txt").write_text(TEXT)
    tokens = tokenizer.encode(TEXT).ids
    bits = -log_likelihoods(models.GLAForCausalLM.from_pretrained(tmp_path / "model"), tokens).sum() / math.log(2)
    found = evaluate(tmp_path, "--data", "text.txt", checkpoint="model")
    assert found["text.txt", "tokens"] == len(tokens) - 1
    assert found["text.txt", "bits_per_token"] == pytest.approx(bits / (len(tokens) - 1), abs=1e-5)
    first = len(tokenizer.decode(tokens[:1]).encode())
    assert found["text.txt", "bits_per_byte"] == pytest.approx(bits / (len(TEXT) - first), abs=1e-5)
    skip_without_libraries([*cpp("evaluate"), "--checkpoint", "model", "--data", "text.txt", "--device", "cpu"], tmp_path)
    assert found == pytest.approx(evaluate(tmp_path, "--data", "text.txt", checkpoint="model", program=cpp("evaluate")), rel=1e-6)


@glade.no_grad()
def test_weights_that_are_no_numbers(model, tmp_path):
    for parameter in model.parameters():
        parameter.fill_(math.nan)
    glade.save(model, tmp_path / "nan.h5")
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "task.jsonl").write_text('{"query": "a", "choices": ["b", "c"], "gold": 1}\n')
    for name, options, message in [
        ("evaluate", ["--data", "text.txt"], "text.txt: the perplexity is nan"),
        ("evaluate", ["--task", "task.jsonl"], "task.jsonl line 1: the log-likelihood of a choice is not finite"),
        ("generate", ["--prompt", "a"], "nan.h5: sample: the logits hold NaN, infinity, or nothing but -infinity"),
    ]:
        command = ["--device", "cpu", "--checkpoint", "nan.h5", *options]
        assert refused([*python(name), *command], tmp_path) == (1, f"{name}.py: {message}")
        assert refused([*cpp(name), *command], tmp_path) == (1, f"{name}: {message}")


def test_all_inputs_are_read_first(model, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    with glade.data.TokenWriter(tmp_path / "bytes.bin", 256) as writer:
        writer.write([1, 2, 3])
    command = [*python("evaluate"), "--device", "cpu", "--checkpoint", "model.h5", "--log", "results.csv", "--data", "text.txt"]
    for bad, code in ((["missing.txt"], 1), (["--task", "missing.txt"], 1), (["bytes.bin", "--packed"], 2)):
        assert refused([*command, *bad], tmp_path)[0] == code
        assert not (tmp_path / "results.csv").exists()


def test_tokens_of_a_model_without_a_tokenizer_need_none(tmp_path):
    model = models.GLAForCausalLM(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_heads=2).eval()
    glade.save(model, tmp_path / "model.h5")
    with glade.data.TokenWriter(tmp_path / "other.bin", 300) as writer:
        writer.write([1, 2, 3])
    found = evaluate(tmp_path, "--data", "other.bin")
    assert found["other.bin", "bits_per_token"] == pytest.approx(-log_likelihoods(model, [1, 2, 3]).mean() / math.log(2), abs=1e-5)
    assert found == pytest.approx(evaluate(tmp_path, "--data", "other.bin", program=cpp("evaluate")), rel=1e-6)


def test_the_same_as_in_cpp(model, tmp_path):
    program = cpp("evaluate")
    (tmp_path / "text.txt").write_text(TEXT)
    questions = [{"query": f"Line {i}", "choices": [": foxes", ".", "dogs and foxes"], "gold": i % 3} for i in range(20)]
    (tmp_path / "task.jsonl").write_text("\n".join(map(json.dumps, questions)))
    for options in ([], ["--packed", "--seq-len", "64"], ["--dtype", "bfloat16"]):
        both = [evaluate(tmp_path, "--data", "text.txt", "--task", "task.jsonl", *options, program=p) for p in (None, program)]
        assert both[0] == pytest.approx(both[1], rel=1e-6)
        assert list(both[0]) == list(both[1])


def test_a_published_folder_as_in_cpp(tmp_path):
    pytest.importorskip("sentencepiece")
    shutil.copytree(ROOT / "tests/data/gla_base", tmp_path / "model")
    shutil.copy(ROOT / "tests/data/tokenizer/tokenizer.model", tmp_path / "model")
    (tmp_path / "text.txt").write_text("the layer reads the state")
    ours = evaluate(tmp_path, "--data", "text.txt", checkpoint="model")
    skip_without_libraries([*cpp("evaluate"), "--checkpoint", "model", "--data", "text.txt", "--device", "cpu"], tmp_path)
    assert ours == pytest.approx(evaluate(tmp_path, "--data", "text.txt", checkpoint="model", program=cpp("evaluate")), rel=1e-6)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_in_a_terminal(model, width, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "task.jsonl").write_text(json.dumps({"query": "a", "choices": ["b", "c"], "gold": 0}))
    command = [*python("evaluate"), "--checkpoint", "model.h5", "--device", "cpu", "--data", "text.txt", "--task", "task.jsonl"]
    output = run_in_terminal(command, tmp_path, width)
    assert "\x1b[K[" in output and "bits per token" in output
    first, second, end = screen(output.replace("\r\n", "\n"), 1000)
    assert first.startswith("text.txt: perplexity ") and second.startswith("task.jsonl: acc ") and end == ""


def test_bytes_need_no_other_package(model, tmp_path):
    """But NumPy."""
    (tmp_path / "text.txt").write_text(TEXT)
    packages = "tokenizers sentencepiece tqdm tensorboardX matplotlib ml_dtypes h5py".split()
    for name, options in {
        "evaluate": "--checkpoint model.h5 --data text.txt --device cpu",
        "generate": "--checkpoint model.h5 --tokens 2 --device cpu",
        "train_lm": "--data text.txt --steps 1 --seq-len 8 --device cpu --log log.csv",
        "associative_recall": "--models gla --steps 1 --pairs 1 --seq-len 8 --device cpu",
        "glade.tokenize": "--output text.bin text.txt",
    }.items():
        call(without(packages, name, *options.split()), tmp_path)


def test_output_that_cannot_be_written(model, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    for name, options in {"evaluate": ["--data", "text.txt"], "generate": ["--tokens", "3"]}.items():
        with open("/dev/full", "w") as full:
            command = [*python(name), "--checkpoint", "model.h5", "--device", "cpu", *options]
            result = subprocess.run(command, cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (1, f"{name}.py: the output cannot be written: No space left on device\n")


def test_counts_are_whole_numbers(tmp_path):
    glade.save(models.GLAForCausalLM(hidden_size=8, num_hidden_layers=1, num_heads=1), tmp_path / "model.h5")
    (tmp_path / "text.txt").write_text("x" * 1234568)
    for program in (python, cpp):
        command = [*program("evaluate"), "--checkpoint", "model.h5", "--device", "cpu", "--data", "text.txt", "--log", "results.csv"]
        assert call(command, tmp_path).endswith(", tokens 1234567\n")
        assert (tmp_path / "results.csv").read_text().endswith("text.txt,tokens,1234567\n")


def test_errors_come_after_the_progress(model, tmp_path):
    with glade.data.TokenWriter(tmp_path / "text.bin", 256) as writer:
        writer.write([65] * 5000)
    tokens = bytearray((tmp_path / "text.bin").read_bytes())
    tokens[-1] = 1  # makes the last one 321, which shows when it is read
    (tmp_path / "text.bin").write_bytes(tokens)
    ours, theirs = open_terminal(80)
    command = [*python("evaluate"), "--checkpoint", "model.h5", "--device", "cpu", "--seq-len", "100", "--data", "text.bin"]
    process = start(command, tmp_path, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = read_terminal(ours).replace("\r\n", "\n")
    assert process.wait(timeout=60) == 1 and "bits per token" in output
    error, end = screen(output, 1000)
    assert error.startswith("evaluate.py: text.bin") and end == ""


def test_names_that_are_no_text(model, tmp_path):
    name = os.fsdecode(b"\xff.txt")
    (tmp_path / name).write_text(TEXT)
    outputs = {}
    for program in (python, cpp):
        command = [*program("evaluate"), "--checkpoint", "model.h5", "--device", "cpu", "--data", name, "--log", "results.csv"]
        result = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=60, check=True)
        outputs[program] = [part.split(b",")[0] for part in (result.stdout, (tmp_path / "results.csv").read_bytes().splitlines()[1])]
    assert outputs[python] == outputs[cpp] and outputs[python][1] == b"\xff.txt"


def test_numbers_that_are_no_tokens(model, tmp_path):
    for number in (str(2**63), "9" * 20, "9" * 5000):
        for program, name in ((python, "generate.py"), (cpp, "generate")):
            command = [*program("generate"), "--checkpoint", "model.h5", "--device", "cpu", "--tokenizer", "ids", "--prompt", number]
            assert refused(command, tmp_path) == (2, f"{name}: '{number}' is not the number of a token")


def test_bad_input_is_refused(model, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "one.txt").write_text("x")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    with glade.data.TokenWriter(tmp_path / "other.bin", 300) as writer:
        writer.write([1, 2, 3])

    def expect(code, message, *options):
        found, line = refused([*python("evaluate"), "--device", "cpu", "--checkpoint", "model.h5", *options], tmp_path)
        assert found == code and line.startswith(f"evaluate.py: {message}"), line

    expect(2, "give --data, --task or both")
    expect(2, "one.txt: has one token, and none to predict from it", "--data", "one.txt")
    expect(1, "missing.txt: cannot be opened: No such file", "--data", "missing.txt")
    expect(1, "missing.jsonl: cannot be opened: No such file", "--task", "missing.jsonl")
    expect(1, "other.bin: has a vocabulary of 300, but the model one of 256", "--data", "other.bin")
    expect(2, "--log text.txt: that is a file of --data", "--data", "text.txt", "--log", "text.txt")
    expect(2, "--seq-len: 0, expected a whole number from 1 to 2^40", "--data", "text.txt", "--seq-len", "0")
    expect(1, "empty.jsonl: has no questions", "--task", "empty.jsonl")
    expect(1, "latin.jsonl: is no text in UTF-8", "--task", "latin.jsonl")
    fields = 'expected {"query": text, "choices": [text, ...], "gold": index}'
    for line, message in {
        "text": "is not JSON",
        "[" * 100000: "is not JSON",
        '{"query": "\\ud800", "choices": ["b"], "gold": 0}': "is not JSON",
        "[]": fields,
        "{}": fields,
        '{"query": 1, "choices": ["b"], "gold": 0}': fields,
        '{"query": "a", "choices": "b", "gold": 0}': fields,
        '{"query": "a", "choices": ["b"], "gold": "0"}': fields,
        '{"query": "a", "choices": ["b", "c"], "gold": 2}': "gold is 2, expected the index of one of 2 choices",
        '{"query": "a", "choices": ["b", "c"], "gold": -1}': "gold is -1",
        '{"query": "a", "choices": ["b", "c"], "gold": 0.5}': "gold is 0.5",
        '{"query": "a", "choices": [], "gold": 0}': "there are no choices",
        '{"query": "a", "choices": ["b", ""], "gold": 0}': "a choice is empty",
        '{"query": " ", "choices": ["b"], "gold": 0}': "the query is empty",
    }.items():
        (tmp_path / "task.jsonl").write_text('{"query": "a", "choices": ["b", "c"], "gold": 1}\n' + line + "\n")
        expect(1, f"task.jsonl line 2: {message}", "--task", "task.jsonl")
