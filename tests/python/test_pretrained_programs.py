"""generate with published models: texts through tokenizer.json, byte-level BPE and Unigram, and through SentencePiece."""

import shutil
import subprocess

import pytest

from glade.nn import models
from programs import ROOT, call, cpp, environment, python, refused, skip_without_libraries, without

tokenizers = pytest.importorskip("tokenizers")
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


def run(folder, *arguments, program=None):
    command = [*(program or python("generate")), "--checkpoint", folder, *arguments, "--device", "cpu", "--temperature", "0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment())


def expected(folder, text, count):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert len(ids) > 1 and 0 not in ids
    model = models.GLAForCausalLM.from_pretrained(folder)
    return tokenizer.decode(model.generate([ids], count, temperature=0, stop_tokens=[2])[0])


def test_texts_are_continued(folder):
    streamed = run(folder, "--prompt", PROMPT, "--tokens", "12")
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout == expected(folder, PROMPT, 12) + "\n"
    assert len(streamed.stdout) > len(PROMPT) + 5

    batch = run(folder, "--prompt", PROMPT, "--prompt", "the layer", "--tokens", "12")
    assert batch.stdout == streamed.stdout + expected(folder, "the layer", 12) + "\n"


def test_tokenizer_json_as_in_cpp(tmp_path):
    shutil.copytree(ROOT / "tests/data/gla_base", tmp_path / "model")
    byte_level_bpe().save(str(tmp_path / "model/tokenizer.json"))
    skip_without_libraries([*cpp("generate"), "--checkpoint", "model", "--prompt", PROMPT, "--device", "cpu"], tmp_path)
    for options in (["--prompt", PROMPT], ["--prompt", PROMPT, "--prompt", "the layer"]):
        ours, theirs = (run(tmp_path / "model", *options, "--tokens", "12", program=program) for program in (None, cpp("generate")))
        assert ours.returncode == theirs.returncode == 0, theirs.stderr
        assert ours.stdout == theirs.stdout != ""


def test_sentencepiece(tmp_path):
    """The folder's tokenizer.model, or one that is named, as in C++."""
    pytest.importorskip("sentencepiece")
    shutil.copytree(ROOT / "tests/data/gla_base", tmp_path / "model")
    shutil.copy(ROOT / "tests/data/tokenizer/tokenizer.model", tmp_path / "model")
    prompt = ("--prompt", "the layer reads the state", "--tokens", "8", "--stop", "2")
    result = run(tmp_path / "model", *prompt)
    assert result.returncode == 0 and result.stdout.startswith("the layer reads the state"), result.stderr
    assert run(ROOT / "tests/data/gla_base", *prompt, "--tokenizer", tmp_path / "model/tokenizer.model").stdout == result.stdout
    other = run(tmp_path / "model", *prompt, program=cpp("generate"))
    if "without the library sentencepiece" in other.stderr:
        pytest.skip(other.stderr)
    assert other.stdout == result.stdout


def test_numbers_as_in_cpp(folder):
    options = ("--tokenizer", "ids", "--prompt", "12 85,84", "--tokens", "6", "--stop", "2")
    result = run(folder, *options)
    assert result.stdout.startswith("12 85 84 ") and result.stdout.split() != ["12", "85", "84"]
    several = run(folder, *options, "--prompt", "3")
    assert several.stdout.splitlines()[0] == result.stdout.rstrip("\n") and several.stdout.splitlines()[1].startswith("3 ")
    assert run(folder, *options, program=cpp("generate")).stdout == result.stdout
    assert run(folder, *options, "--prompt", "3", program=cpp("generate")).stdout == several.stdout


def test_names_in_the_cache_of_hugging_face(folder, tmp_path, monkeypatch):
    cached = tmp_path / "hub/models--owner--name"
    shutil.copytree(folder, cached / "snapshots/abc")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    options = ("--prompt", PROMPT, "--tokens", "5")
    assert run("owner/name", *options).stdout == run(folder, *options).stdout != ""
    missing = run("owner/other", *options)
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1) and "hf download owner/other" in missing.stderr


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


def test_bad_input_is_named(folder, tmp_path):
    (tmp_path / "text.txt").write_text("text")
    base = ROOT / "tests/data/gla_base"
    for model, options, code, message in (
        (folder, ["--seed", "-1"], 2, "--seed: -1, expected a whole number from 0 to 2^64 - 1"),
        (folder, ["--top-p", "0"], 2, "--top-p: 0, expected a number above 0 and at most 1"),
        (folder, ["--conversation", "talk.h5", "--prompt", "y"], 2, "--conversation goes with one --prompt"),
        (folder, ["--tokenizer", "missing"], 2, "--tokenizer missing: expected auto, bytes, ids or a file"),
        (folder, ["--tokenizer", "ids"], 2, "'x' is not the number of a token"),
        (folder, ["--tokenizer", "bytes"], 1, "token 120 in prompt 0, expected [0, 97)"),
        (folder, ["--prompt", b"\xff"], 2, "the prompt is no text in UTF-8"),
        (folder, ["--prompt", ""], 2, "--prompt is empty: give at least one character"),
        (base, [], 2, "gla_base has no tokenizer, and its 97 tokens are no bytes: give --tokenizer ids or a file"),
        (base, ["--tokenizer", tmp_path / "text.txt"], 2, "text.txt: "),
        (folder / "nothing", [], 1, f"{folder / 'nothing'}: cannot be opened: No such file or directory"),
    ):
        result = run(model, "--prompt", "x", *options)
        assert result.returncode == code and result.stdout in ("", "x") and result.stderr.startswith("generate.py: ") and message in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name, package", [("tokenizer.json", "tokenizers"), ("tokenizer.model", "sentencepiece")])
def test_missing_packages_are_named(name, package, tmp_path):
    """Only where they are needed."""
    (tmp_path / name).write_text("{}")
    command = without([package], "generate", "--checkpoint", ROOT / "tests/data/gla_base", "--tokenizer")
    assert refused([*command, name], tmp_path) == (2, f"generate.py: {name}: the package {package} reads it: pip install {package}")
    assert call([*command, "ids", "--prompt", "12", "--tokens", "1"], tmp_path).startswith("12 ")
