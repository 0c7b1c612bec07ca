"""Continues texts with a published GLA model, through the model's own tokenizer.json: the Python form of generate.

    python examples/generate.py gla-1.3B --prompt "In the beginning" --tokens 100 --temperature 0.8
"""

import argparse
import sys
from pathlib import Path

import glade
from glade.nn import models
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of a published model, or a checkpoint")
    parser.add_argument("--prompt", nargs="+", required=True, help="texts to continue, one or several at once")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; by default the one in the folder")
    parser.add_argument("--conversation", type=Path, help="file to go on from, where it exists, and to add to (for one prompt)")
    for name, default in dict(tokens=100, top_k=0, seed=0).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default, help=f"[{default}]")
    for name, default in dict(temperature=1.0, top_p=1.0, repetition_penalty=1.0).items():
        parser.add_argument("--" + name.replace("_", "-"), type=float, default=default, help=f"[{default}]")
    parser.add_argument("--algorithm", choices=["auto", "recurrent", "chunk"], default="auto", help="that reads the prompts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="of activations; by default the model's")
    arguments = parser.parse_args()
    if arguments.conversation and len(arguments.prompt) > 1:
        parser.error("--conversation goes with one prompt")
    if arguments.conversation and not arguments.conversation.parent.is_dir():
        parser.error(f"--conversation {arguments.conversation}: there is no folder {arguments.conversation.parent}")
    if not 0 <= arguments.seed < 2**64:
        parser.error(f"--seed {arguments.seed}: expected a whole number from 0 to 2^64 - 1")
    return arguments


def load_model(path, device, dtype):
    if path.is_dir():
        return models.GLAForCausalLM.from_pretrained(path, device=device, dtype=dtype)
    return models.from_checkpoint(glade.load(path), dtype=dtype).to(device)


def stop_tokens(config):
    tokens = config.get("eos_token_id")
    return tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]


def main():
    o = parse_arguments()
    model = load_model(o.model, o.device, o.dtype)
    model.set_algorithm(o.algorithm)
    path = o.tokenizer or o.model / "tokenizer.json"
    if not path.is_file():
        raise SystemExit(f"{path}: no such file: give --tokenizer")
    tokenizer = Tokenizer.from_file(str(path))
    prompts = [tokenizer.encode(text).ids for text in o.prompt]
    options = dict(
        temperature=o.temperature,
        top_k=o.top_k,
        top_p=o.top_p,
        repetition_penalty=o.repetition_penalty,
        stop_tokens=stop_tokens(model.config),
        seed=o.seed,
    )
    if len(prompts) > 1:
        for prompt, tokens in zip(prompts, model.generate(prompts, o.tokens, **options)):
            print(tokenizer.decode(prompt + tokens))
        return

    stream = DecodeStream(ids=prompts[0], skip_special_tokens=True)

    def show(tokens):  # as soon as they make whole characters
        print(stream.step(tokenizer, tokens[0]) or "", end="", flush=True)

    conversations = None
    if o.conversation:
        goes_on = o.conversation.exists()
        conversations = [models.Conversation.load(o.conversation, model) if goes_on else models.Conversation()]
    print(tokenizer.decode(prompts[0]), end="", flush=True)
    model.generate(prompts, o.tokens, **options, on_tokens=show, conversations=conversations)
    if conversations:
        conversations[0].save(o.conversation, model)
    print()


if __name__ == "__main__":
    try:
        main()
    except (glade.Error, OSError) as error:
        sys.exit(f"generate.py: {error}")
