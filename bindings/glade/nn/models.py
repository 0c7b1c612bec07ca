"""Language models of linear attention.

>>> import glade
>>> from glade.nn import models
>>> model = models.GLAForCausalLM(hidden_size=64, num_hidden_layers=2, num_heads=2)
>>> prompt = glade.tensor([list(b"In the beginning")])
>>> model.generate(prompt, 10, temperature=0).shape
(1, 26)
"""

import json
from typing import Any

from glade._glade import Checkpoint, CheckpointFile, DType
from glade._glade._models import (
    AttentionStates,
    Block,
    CausalLM,
    Conversation,
    Decoder,
    GLAForCausalLM,
    LightningForCausalLM,
    find_pretrained,
    from_checkpoint_file as _from_checkpoint_file,
    from_json as _from_json,
)

__all__ = [
    "AttentionStates",
    "Block",
    "CausalLM",
    "Conversation",
    "Decoder",
    "GLAForCausalLM",
    "LightningForCausalLM",
    "find_pretrained",
    "from_checkpoint",
    "from_config",
]


def from_config(config: dict[str, Any]) -> CausalLM:
    """The model that a configuration describes: a dict, as CausalLM.config gives it. ValueError for an unknown model_type."""
    return _from_json(json.dumps(config))


def from_checkpoint(checkpoint: Checkpoint | CheckpointFile, *, dtype: DType | str | None = None) -> CausalLM:
    """The model in a checkpoint of a language model, as glade.load gives it, with its values; of a glade.CheckpointFile nothing else is
    read. dtype is that of activations, by default the checkpoint's. ValueError where config and values do not fit."""
    config = checkpoint.config
    if dtype is not None:
        config["dtype"] = dtype if isinstance(dtype, str) else dtype.name
    if isinstance(checkpoint, CheckpointFile):
        return _from_checkpoint_file(json.dumps(config), checkpoint)
    model = _from_json(json.dumps(config), checkpoint.model)
    model.load_state_dict(checkpoint.model)
    return model
