"""Published models, and generation, from Python."""

import pathlib

import h5py
import numpy as np
import pytest

import glade
from conftest import to_numpy
from glade.nn import models

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


@pytest.mark.parametrize("algorithm", ["auto", "recurrent", "chunk"])
@pytest.mark.parametrize("name", ["gla_base", "gla_conv_gqa"])
def test_agrees_with_fla_and_round_trips(name, algorithm, device, tmp_path):
    model = models.GLAForCausalLM.from_pretrained(DATA / name, device=device)
    model.set_algorithm(algorithm)
    if algorithm == "chunk":
        try:
            model(glade.zeros((1, 64), dtype="int64", device=device))
        except ValueError as error:
            pytest.skip(str(error))
    with h5py.File(DATA / name / "expected.h5") as expected:
        ids, logits, generated = (expected[key][()] for key in ("input_ids", "logits", "generated"))
    result = to_numpy(model(glade.tensor(ids).to(device)))
    assert np.abs(result - logits).max() < 1e-4 * np.abs(logits).max()
    assert model.generate([generated[0, :16].tolist()], 24, temperature=0) == generated.tolist()

    model.save_pretrained(tmp_path / "saved")
    again = models.GLAForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    for key, x in model.state_dict().items():
        assert np.array_equal(to_numpy(x), to_numpy(again[key])), key


def test_files_and_activations_take_dtypes(tmp_path):
    model = models.GLAForCausalLM.from_pretrained(DATA / "gla_base", dtype="bfloat16")
    assert model(glade.tensor([[1, 2]])).dtype == glade.bfloat16
    model.save_pretrained(tmp_path, dtype=glade.bfloat16, max_shard_bytes=100_000)
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert sum(f.stat().st_size for f in tmp_path.glob("*.safetensors")) < 320_000


def test_algorithms_have_names():
    model = models.GLAForCausalLM.from_pretrained(DATA / "gla_base")
    with pytest.raises(ValueError, match="algorithm is 'parallel', expected auto, recurrent or chunk"):
        model.set_algorithm("parallel")


def test_guide(tmp_path, monkeypatch):
    """The blocks of docs/pretrained.md, in order, like a reader would type them."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    blocks = [part.split("```")[0] for part in (ROOT / "docs" / "pretrained.md").read_text().split("```python\n")[1:]]
    names = {}
    for block in blocks:
        exec(compile(block, "docs/pretrained.md", "exec"), names)  # noqa: S102
    assert len(names["talks"][0]) == 300 + 2 + 100
    assert (tmp_path / "tuned" / "model.safetensors").exists()


def test_broken_folders_are_named(tmp_path):
    with pytest.raises(glade.CheckpointError, match="config.json: cannot be read"):
        models.GLAForCausalLM.from_pretrained(tmp_path)


def test_downloads_load_by_name(tmp_path, monkeypatch):
    """What `hf download owner/tiny` leaves in a cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(glade.CheckpointError, match="owner/tiny: there is no such folder, .*: hf download owner/tiny$"):
        models.GLAForCausalLM.from_pretrained("owner/tiny")
    snapshot = tmp_path / "models--owner--tiny/snapshots/0123abcd"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(DATA / "gla_base")
    (tmp_path / "models--owner--tiny/refs").mkdir()
    (tmp_path / "models--owner--tiny/refs/main").write_text("0123abcd")
    assert models.find_pretrained("owner/tiny") == str(snapshot)
    assert models.GLAForCausalLM.from_pretrained("owner/tiny").config["vocab_size"] == 97


def test_generation_of_lists(tmp_path):
    model = models.GLAForCausalLM.from_pretrained(DATA / "gla_base")
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
    whole = model.generate(prompts, 8, temperature=0)
    assert [(tokens[: len(p)], len(tokens)) for p, tokens in zip(prompts, whole)] == [(p, len(p) + 8) for p in prompts]
    assert model.generate(glade.tensor(prompts[:1]), 8, temperature=0).tolist() == whole[:1]
    assert [model.generate([p], 8, temperature=0)[0] for p in prompts] == whole

    seen = []
    stopped = model.generate(prompts, 8, temperature=0, stop_tokens=[whole[0][7]], on_tokens=seen.append)
    assert stopped[0] == whole[0][: whole[0].index(whole[0][7], 5) + 1]
    assert seen[-1][0] == -1
    assert model.generate(prompts, 8, temperature=0, repetition_penalty=1.5) != whole

    talks = []
    first = model.generate(prompts, 3, temperature=0, conversations=talks)
    assert [len(t) for t in talks] == [8, 4, 6]
    talks[1].save(tmp_path / "talk.h5", model)
    talks[1] = models.Conversation.load(tmp_path / "talk.h5", model)
    rest = model.generate([[], [], []], 5, temperature=0, conversations=talks)
    assert [a + b for a, b in zip(first, rest)] == whole
    with pytest.raises(TypeError, match="conversations"):
        model.generate(glade.tensor([[1]]), conversations=talks)
    with pytest.raises(IndexError, match="token 97"):
        model.generate([[97]])
