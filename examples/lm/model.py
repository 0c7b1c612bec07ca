"""Language models from files: checkpoints of train_lm and published folders."""

from pathlib import Path

import glade
from glade.nn import models

from lm.program import file_name

DTYPES = ["float32", "bfloat16", "float16"]


def add_model_options(parser):
    """--checkpoint, --device and --dtype."""
    text = (
        "What train_lm saved (of numbered files the newest), the folder of a published model, or its name in the cache of Hugging Face"
    )
    parser.option("--checkpoint", text, required=True, type=file_name, metavar="FILE.h5|FOLDER|owner/name")
    parser.option("--device", "auto, cpu, cuda or cuda:N", "auto", metavar="DEVICE")
    parser.option("--dtype", "Type of activations: float32, bfloat16 or float16", shown="the model's", choices=DTYPES, metavar="|".join(DTYPES))


def find_model(path):
    """An open checkpoint, or the folder of a published model. Where train_lm has numbered checkpoints (--keep), the newest good one is
    meant."""
    if not path.is_dir() and glade.numbered_checkpoints(path):
        return glade.open_newest_checkpoint(path)
    if not path.exists() and path.suffix != ".h5":
        path = Path(models.find_pretrained(path))
    return path if path.is_dir() else glade.CheckpointFile(path)


def model_of(checkpoint, dtype=None):
    """The model in an open checkpoint. CheckpointError where its configuration is none, or does not fit its tensors."""
    try:
        return models.from_checkpoint(checkpoint, dtype=dtype)
    except glade.ValueError as error:
        raise glade.CheckpointError(f"{checkpoint.path}: {error}") from None


def load_model(options):
    """The model of the options of add_model_options, in evaluation mode, and the folder it is from, or None."""
    found = find_model(options.checkpoint)
    if isinstance(found, Path):
        return models.GLAForCausalLM.from_pretrained(found, device=options.device, dtype=options.dtype).eval(), found
    device = glade.Device(options.device)
    return model_of(found, options.dtype).to(device).eval(), None


def stop_tokens(model):
    """The tokens that end a text by the model's configuration: eos_token_id, where it has one."""
    end = model.config.get("eos_token_id")
    return end if isinstance(end, list) else [] if end is None else [end]
