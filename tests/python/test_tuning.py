"""Configurations, policies and caches of the attention operations, from Python."""

import numpy as np
import pytest
from conftest import to_numpy

import glade
from glade import AttentionConfig, GLAttention, RecurrentAttention, tuning


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLADE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GLADE_AUTOTUNE_POLICY", raising=False)
    tuning.clear_process_cache()
    tuning.set_autotune_policy(None)
    yield
    monkeypatch.undo()
    tuning.clear_process_cache()
    tuning.set_autotune_policy(None)


@pytest.fixture
def inputs(rng, device):
    return [glade.tensor(rng.normal(size=(2, 8, 2, 4)), device=device) for _ in range(3)]


def test_configurations():
    cfg = AttentionConfig(algorithm="recurrent", checkpoint_interval=64)
    assert cfg.asdict()["algorithm"] == "recurrent" and cfg.checkpoint_interval == 64 and cfg.warps == 0
    assert cfg == AttentionConfig(**cfg.asdict()) and cfg != AttentionConfig()
    assert eval(repr(cfg)) == cfg
    cfg.algorithm = "chunk"
    assert cfg.algorithm == "chunk"
    with pytest.raises(ValueError, match="no field 'speed'"):
        AttentionConfig(speed=11)
    with pytest.raises(ValueError, match="algorithm is \"fast\""):
        cfg.algorithm = "fast"


@pytest.mark.parametrize("cfg", [None, {"algorithm": "recurrent"}, AttentionConfig(algorithm="recurrent", checkpoint_interval=3)])
def test_calls_with_a_configuration(cfg, inputs):
    expected, state = glade.recurrent(*inputs)
    o, final = RecurrentAttention()(*inputs, return_state=True, cfg=cfg)
    np.testing.assert_allclose(to_numpy(o), to_numpy(expected), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(final), to_numpy(state), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(glade.gla_attention(*inputs, cfg=cfg)), to_numpy(expected), rtol=1e-12)


def test_configurations_that_cannot_be_used(inputs):
    with pytest.raises(ValueError, match="algorithm chunk does not take gv"):
        glade.recurrent_attention(*inputs, None, None, None, inputs[2], cfg={"algorithm": "chunk"})
    with pytest.raises(ValueError, match="no field 'stages'"):
        glade.gla_attention(*inputs, cfg={"stages": 3})
    with pytest.raises(TypeError, match="cfg"):
        glade.gla_attention(*inputs, cfg="chunk")
    with pytest.raises((ValueError, RuntimeError), match="platform is"):
        glade.gla_attention(*inputs, platform="cpu" if "cuda" in str(inputs[0].device) else "cuda")


def test_the_chain(inputs, tmp_path):
    module = RecurrentAttention()
    assert module.choose(*inputs) == (module.heuristic_cfg(*inputs), "heuristic")
    trials = module.tune(*inputs, backward=True)
    assert {trial["cfg"].algorithm for trial in trials} >= {"recurrent"} and sum(trial["best"] for trial in trials) == 1
    assert len(trials) >= len(module.candidate_cfgs(*inputs, backward=True))
    assert module.choose(*inputs, backward=True)[1] == "process cache" and module.choose(*inputs)[1] == "heuristic"
    quick = module.tune(*inputs, backward=True, warmup=1, repeats=2, validate_backward=False)
    assert len(quick) == len(trials) and all(trial["error"] == 0 for trial in quick)
    with pytest.raises(ValueError, match="repeats 0"):
        module.tune(*inputs, repeats=0)
    tuning.clear_process_cache()
    assert module.choose(*inputs, backward=True)[1] == "persistent cache"
    assert GLAttention().choose(*inputs, backward=True)[1] == "process cache"  # the modules share their tunings
    assert tuning.cache_folder() == str(tmp_path / "cache") and tuning.export_cache(tmp_path / "all.json") == 1
    assert tuning.import_cache(tmp_path / "all.json") == 1


def test_policies(inputs, monkeypatch):
    assert tuning.autotune_policy() == "heuristic"
    tuning.set_autotune_policy("cache_only")
    with pytest.raises(ValueError, match="no cache has a configuration"):
        glade.gla_attention(*inputs)
    tuning.set_autotune_policy("autotune")
    assert GLAttention().choose(*inputs)[1] == "tuning"
    tuning.set_autotune_policy("cache_only")
    glade.gla_attention(*inputs)
    monkeypatch.setenv("GLADE_AUTOTUNE_POLICY", "autotune")
    tuning.set_autotune_policy(None)
    assert tuning.autotune_policy() == "autotune"
    with pytest.raises(ValueError, match="expected heuristic, autotune or cache_only"):
        tuning.set_autotune_policy("always")


def test_damaged_caches_warn_once(tmp_path, inputs):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "recurrent_attention.json").write_text("damaged")
    with pytest.warns(UserWarning, match="the tuning cache .*recurrent_attention.json is passed over .* it is not JSON") as caught:
        RecurrentAttention()(*inputs)
        tuning.clear_process_cache()
        RecurrentAttention()(*inputs)
    assert len(caught) == 1
