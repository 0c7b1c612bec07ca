"""Language models from files: checkpoints of train_lm and published folders."""

from pathlib import Path

import glade
from glade.nn import models


def open_checkpoint(path):
    """With --keep, train_lm saves under numbered names: then the newest good one is meant."""
    if not path.exists():
        newest = glade.open_newest_checkpoint(path)
        if newest:
            return newest
    return glade.CheckpointFile(path)


def load_model(path, device, dtype=None):
    """The model, on the device, in evaluation mode. `dtype` is that of activations, by default the model's own."""
    path = Path(path)
    if path.is_dir():
        model = models.GLAForCausalLM.from_pretrained(path, device=device, dtype=dtype)
    else:
        model = models.from_checkpoint(open_checkpoint(path).load(), dtype=dtype).to(device)
    return model.eval()
