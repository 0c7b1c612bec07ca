"""Token files, the loader, and the converter `python -m glade.tokenize`."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import glade
from glade import data, tokenize


def write(path, tokens, vocab_size=100, separator=None):
    with data.TokenWriter(path, vocab_size, separator) as writer:
        writer.write(tokens)
    return path


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, "<u2"), (65537, "<u4")])
def test_the_format_is_as_documented(tmp_path, vocab_size, dtype):
    path = write(tmp_path / "a.bin", [1, 2, vocab_size - 1], vocab_size, 2)
    header = path.read_bytes()[:64]
    assert header[:8] == b"GLTOKENS" and header[40:] == bytes(24)
    assert np.frombuffer(header[8:16], "<u4").tolist() == [1, np.dtype(dtype).itemsize]
    assert np.frombuffer(header[16:40], "<i8").tolist() == [3, vocab_size, 2]
    assert np.memmap(path, dtype, "r", 64).tolist() == [1, 2, vocab_size - 1]


def test_reading_and_writing(tmp_path):
    path = write(tmp_path / "a.bin", glade.arange(50))
    tokens = data.TokenData([path, str(path)])
    assert len(tokens) == 100 and tokens.vocab_size == 100 and tokens.separator is None and not tokens.is_text
    assert tokens.read(48, 4).tolist() == [48, 49, 0, 1]
    with pytest.raises(IndexError):
        tokens.read(98, 3)
    with pytest.raises(IndexError, match="token 100"):
        write(tmp_path / "b.bin", [100])
    with pytest.raises(KeyError), data.TokenWriter(tmp_path / "b.bin", 10) as writer:
        writer.write([1])
        raise KeyError
    assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]
    with pytest.raises(glade.CheckpointError, match="missing.bin"):
        data.TokenData(tmp_path / "missing.bin")


def test_loader(tmp_path, device):
    tokens = data.TokenData(write(tmp_path / "a.bin", list(range(90))))
    loader = data.Loader(tokens, 2, 8, seed=1, device=device)
    assert loader.sequences_per_epoch == 11 and iter(loader) is loader
    batches = [next(loader) for _ in range(6)]
    assert batches[0].inputs.device == glade.Device(device) and batches[0].cu_seqlens is None and batches[0].counted == 16
    assert all((batch.inputs + 1).tolist() == batch.targets.tolist() for batch in batches)
    again = data.Loader(tokens, 2, 8, seed=5, device=device)
    again.load_state_dict({"seed": glade.tensor(1), "position": glade.tensor(4)})
    assert next(again).inputs.tolist() == batches[2].inputs.tolist()
    assert again.position == 6
    with pytest.raises(ValueError, match="too few"):
        data.Loader(tokens, 1, 90)
    with pytest.raises(ValueError, match="no separator"):
        data.Loader(tokens, 1, 8, packed=True)


def test_loader_error_reaches_python_and_threads_end(tmp_path):
    path = write(tmp_path / "a.bin", list(range(90)))
    with open(path, "r+b") as file:
        file.seek(64 + 2 * 60)
        file.write(b"\xff\xff")
    loader = data.Loader(data.TokenData(path), 1, 8)
    with pytest.raises(glade.CheckpointError, match="65535 lies outside its vocabulary"):
        for _ in range(20):
            next(loader)
    before = len(list(Path("/proc/self/task").iterdir()))
    for _ in range(20):
        next(data.Loader(data.TokenData(write(tmp_path / "b.bin", list(range(90)))), 1, 8))
    assert len(list(Path("/proc/self/task").iterdir())) <= before
    assert threading.active_count() == 1


# ---- the converter -----------------------------------------------------------------------------------------------------


def documents_of(path):
    tokens = data.TokenData(path)
    text, documents = tokens.read(0, len(tokens)).tolist(), [[]]
    for token in text:
        documents[-1].append(token) if token != tokens.separator else documents.append([])
    assert documents.pop() == []
    return documents


def run(*arguments):
    return tokenize.main([str(argument) for argument in arguments])


def test_bytes_as_in_cpp(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("één\nzwei\n\ndrei")
    (tmp_path / "b.txt").write_bytes(b"last\r\n")
    assert run("--output", tmp_path / "py.bin", "--separator", "\n", tmp_path / "a.txt", tmp_path / "b.txt") == 0
    assert "4 documents, 22 tokens" in capsys.readouterr().out
    assert [bytes(document).decode() for document in documents_of(tmp_path / "py.bin")] == ["één", "zwei", "drei", "last\r"]
    program = Path(__file__).parents[2] / "build" / "examples" / "tokenize"
    if not program.exists():
        pytest.skip("the C++ examples are not built")
    subprocess.run([program, "--output", tmp_path / "cpp.bin", "--separator", "\n", tmp_path / "a.txt", tmp_path / "b.txt"], check=True)
    assert (tmp_path / "cpp.bin").read_bytes() == (tmp_path / "py.bin").read_bytes()


def test_separators_that_reads_cut_and_long_documents(tmp_path):
    text = "<e><e>" + "x" * ((1 << 20) - 8) + "<e>abc<" + "e" * (3 << 20) + "><e"
    (tmp_path / "a.txt").write_text(text)
    assert run("--output", tmp_path / "a.bin", "--separator", "<e>", tmp_path / "a.txt") == 0
    assert [bytes(document).decode() for document in documents_of(tmp_path / "a.bin")] == [part for part in text.split("<e>") if part]


def test_a_long_document_takes_few_bytes(tmp_path):
    (tmp_path / "a.txt").write_text("some text " * (2 * 10**6))
    script = "import resource, sys; from glade import tokenize; len(sys.argv) > 1 and tokenize.main(sys.argv[1:])"
    script += "; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    command = ["--separator", "<end>", "--output", tmp_path / "a.bin", tmp_path / "a.txt"]
    outputs = [subprocess.run([sys.executable, "-c", script, *more], capture_output=True, text=True, check=True).stdout for more in ([], command)]
    idle, used = (int(output.split()[-1]) for output in outputs)
    assert used - idle < 5 * 20000


@pytest.fixture
def tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "</s>", "the", "fox", "dog", "jumps", "over"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_any_tokenizer(tokenizer, tmp_path):
    lines = [{"text": "the fox jumps"}, {"text": ""}, {"text": "over the cat"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "a.bin"
    assert run("--tokenizer", tokenizer, "--field", "text", "--output", output, tmp_path / "a.jsonl") == 0
    assert documents_of(output) == [[2, 3, 5], [6, 2, 0]]
    tokens = data.TokenData(output)
    assert tokens.vocab_size == 7 and tokens.separator == 1
    assert run("--tokenizer", tokenizer, "--end-token", "dog", "--output", output, tmp_path / "a.jsonl") == 0
    assert data.TokenData(output).separator == 4


def test_converter_refuses_and_leaves_the_old_file(tokenizer, tmp_path, capsys):
    (tmp_path / "good.txt").write_text("the fox")
    (tmp_path / "zero.txt").write_text("a\0b")
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    (tmp_path / "empty.txt").touch()
    output = tmp_path / "a.bin"
    assert run("--output", output, tmp_path / "good.txt") == 0
    before = output.read_bytes()
    for file, message in [("missing.txt", "^tokenize: .*missing.txt: No such file or directory\n$"), ("empty.txt", "no tokens")]:
        assert run("--output", output, tmp_path / file) == 1
        assert re.search(message, capsys.readouterr().err)
    for arguments, message in [
        ([tmp_path / "zero.txt"], "zero byte"),
        ([tmp_path / "good.txt", tmp_path / "latin.txt"], "latin.txt: is no text in UTF-8: .*unexpected end of data"),
        (["--field", "text", tmp_path / "good.txt"], "line 1 is no JSON object"),
        (["--tokenizer", tmp_path / "good.txt", tmp_path / "good.txt"], "is no tokenizer"),
        (["--tokenizer", tokenizer, "--end-token", "cat", tmp_path / "good.txt"], "has none of the tokens cat"),
    ]:
        with pytest.raises(SystemExit, match=message):
            run("--output", output, *arguments)
    with pytest.raises(SystemExit):
        run("--output", tmp_path / "good.txt", tmp_path / "missing.txt", tmp_path / "good.txt")
    assert "good.txt: that is a file to read" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--output", tokenizer, "--tokenizer", tokenizer, tmp_path / "good.txt")
    assert "that is a file to read" in capsys.readouterr().err
    assert (tmp_path / "good.txt").read_text() == "the fox"
    assert output.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


def test_missing_packages_are_named(tokenizer, tmp_path, capsys, monkeypatch):
    (tmp_path / "a.txt").write_text("the fox")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert run("--tokenizer", tokenizer, "--output", tmp_path / "a.bin", tmp_path / "a.txt") == 1
    assert "tokenize needs the package tokenizers: pip install tokenizers\n" == capsys.readouterr().err
    assert not (tmp_path / "a.bin").exists()


def test_runs_as_a_module(tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    environment = {"PYTHONPATH": str(Path(glade.__file__).parents[1])}
    command = [sys.executable, "-m", "glade.tokenize", "--output", "a.bin", "a.txt"]
    output = subprocess.run(command, check=True, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True).stdout
    assert output == "a.bin: 1 documents, 4 tokens\n"
