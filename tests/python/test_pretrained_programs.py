"""examples/generate.py: texts through tokenizer.json, byte-level BPE and Unigram."""

import pathlib
import shutil
import subprocess
import sys

import pytest

import glade
from glade.nn import models

tokenizers = pytest.importorskip("tokenizers")
ROOT = pathlib.Path(__file__).parents[2]
TEXTS = ["the layer reads the state", "höflich grüßen die Tiere den Hund"] * 3
PROMPT = "the state grüßt"


def byte_level_bpe():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(vocab_size=97, special_tokens=["<unk>", "<s>", "</s>"]))
    return tokenizer


def unigram():
    # Its trainer gives other pieces in every run. So these are characters, words with their space, and pairs of characters
    # for all other tokens that the model may choose.
    words = sorted({"\u2581" + word for text in TEXTS for word in text.split()})
    characters = sorted(set("".join(words)))
    special = [(name, 0.0) for name in ("<unk>", "<s>", "</s>")]
    pairs = [a + b for a in characters for b in characters]
    vocabulary = special + [(piece, -4.0) for piece in characters] + [(piece, -2.0) for piece in words]
    vocabulary += [(piece, -9.0) for piece in pairs[: 97 - len(vocabulary)]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    return tokenizer


@pytest.fixture(params=[byte_level_bpe, unigram])
def folder(request, tmp_path):
    shutil.copytree(ROOT / "tests/data/gla_base", tmp_path / "model")
    request.param().save(str(tmp_path / "model/tokenizer.json"))
    return tmp_path / "model"


def run(*arguments):
    environment = {"PYTHONPATH": str(pathlib.Path(glade.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, ROOT / "examples/generate.py", *arguments, "--device", "cpu", "--temperature", "0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def expected(folder, text, count):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert len(ids) > 1 and 0 not in ids
    model = models.GLAForCausalLM.from_pretrained(folder)
    return tokenizer.decode(ids + model.generate([ids], count, temperature=0, stop_tokens=[2])[0])


def test_texts_are_continued(folder):
    streamed = run(folder, "--prompt", PROMPT, "--tokens", "12")
    assert streamed.returncode == 0, streamed.stderr
    whole = expected(folder, PROMPT, 12)
    # What is streamed may lack the bytes of a last character that is not complete.
    assert whole.rstrip("\ufffd").startswith(streamed.stdout.rstrip("\n")[: len(whole.rstrip("\ufffd"))])
    assert len(streamed.stdout) > len(PROMPT) + 5

    batch = run(folder, "--prompt", PROMPT, "the layer", "--tokens", "12")
    assert batch.stdout == whole + "\n" + expected(folder, "the layer", 12) + "\n"


def test_conversations_go_on(folder, tmp_path):
    talk = tmp_path / "talk.h5"
    first = run(folder, "--prompt", PROMPT, "--tokens", "5", "--conversation", talk)
    assert first.returncode == 0, first.stderr
    model = models.GLAForCausalLM.from_pretrained(folder)
    before = len(models.Conversation.load(talk, model))
    second = run(folder, "--prompt", "the", "--tokens", "5", "--conversation", talk)
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("the")
    assert len(models.Conversation.load(talk, model)) > before


def test_conversations_are_checked_first(folder, tmp_path):
    """Before anything is generated, or even printed."""
    (tmp_path / "text.txt").write_text("text")
    for path, code, message in (("nowhere/talk.h5", 2, "there is no folder"), ("text.txt", 1, "text.txt: ")):
        result = run(folder, "--prompt", PROMPT, "--tokens", "5", "--conversation", tmp_path / path)
        assert (result.returncode, result.stdout) == (code, "") and message in result.stderr


def test_bad_input_is_named(folder):
    assert "--seed -1: expected a whole number" in run(folder, "--prompt", "x", "--seed", "-1").stderr
    assert "give --tokenizer" in run(ROOT / "tests/data/gla_base", "--prompt", "x").stderr
    assert "one prompt" in run(folder, "--prompt", "x", "y", "--conversation", "talk.h5").stderr
    missing = run(folder / "nothing", "--prompt", "x")
    assert missing.returncode == 1 and missing.stderr == f"generate.py: {folder / 'nothing'}: cannot be opened: No such file or directory\n"
