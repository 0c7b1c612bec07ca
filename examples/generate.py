"""Continues texts with a language model that train_lm made or that is published: the Python form of generate.

    python examples/generate.py --checkpoint model.h5 --prompt "In the beginning" --tokens 300 --temperature 0.8
    python examples/generate.py --checkpoint gla-1.3B --prompt "In the beginning" --repetition-penalty 1.1
"""

import sys

from glade.nn import models

from lm import program
from lm.model import load_model
from lm.program import Parser, UsageError, check_folder, count, file_name, non_negative, positive, probability
from lm.tokenizer import TextStream, open_tokenizer


def parse_options():
    parser = Parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--checkpoint", required=True, type=file_name, metavar="FILE.h5|FOLDER",
        help="What train_lm saved (of numbered files the newest), or the folder of a published model",
    )  # fmt: skip
    parser.add_argument("--prompt", nargs="+", action="extend", metavar="TEXT", help="The text to continue; of several, each by itself")
    parser.option(
        "--tokenizer", "auto",
        "How text becomes tokens: bytes, ids (text is their numbers), a tokenizer.json or a SentencePiece model, or auto: the one in "
        "the folder, bytes for a file", metavar="TOKENIZER",
    )  # fmt: skip
    parser.add_argument(
        "--conversation", type=file_name, metavar="FILE.h5", help="Goes on where this file ends, and adds to it; made where it is missing"
    )
    parser.option("--tokens", 100, "Tokens to add", type=count, metavar="N")
    parser.add_argument(
        "--stop", nargs="+", action="extend", type=count, default=[], metavar="ID",
        help="Numbers of tokens to stop after, besides the tokenizer's own",
    )  # fmt: skip
    parser.option("--temperature", 1.0, "0: always the likeliest token", type=non_negative, metavar="X")
    parser.option("--top-k", 0, "Only among so many likeliest tokens; 0: all", type=count, metavar="N")
    parser.option("--top-p", 1.0, "Only among the likeliest tokens that together reach this probability", type=probability, metavar="X")
    parser.option("--repetition-penalty", 1.0, "Above 1: tokens that occurred become less likely", type=positive, metavar="X")
    parser.option("--seed", 0, "Of the drawing", type=program.seed, metavar="N")
    parser.option("--algorithm", "auto", "That reads the prompt: auto, recurrent or chunk", choices=["auto", "recurrent", "chunk"])
    parser.option("--device", "auto", "auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="Of activations; else the model's")
    options = parser.parse_args()
    options.prompt = options.prompt or ["\n"]
    return options


def open_conversation(options, model):
    """The conversation to go on with: an empty one where there is no file yet."""
    if options.conversation.exists():
        return models.Conversation.load(options.conversation, model)
    return models.Conversation()


def stop_tokens(options, tokenizer, config):
    """Those of the options, of the tokenizer and of the model."""
    end = config.get("eos_token_id")
    return [*options.stop, *tokenizer.stop_tokens, *(end if isinstance(end, list) else [] if end is None else [end])]


def show(text):
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def main():
    options = parse_options()
    goes_on = options.conversation and options.conversation.exists()
    if "" in options.prompt and not goes_on:
        raise UsageError("--prompt is empty: give at least one character")
    if options.conversation:
        if len(options.prompt) > 1:
            raise UsageError("--conversation goes with one prompt")
        check_folder("--conversation", options.conversation)
    model = load_model(options.checkpoint, options.device, options.dtype)
    model.set_algorithm(options.algorithm)
    vocab_size = model.config["vocab_size"]
    if options.tokenizer == "auto" and not options.checkpoint.is_dir() and vocab_size > 256:
        raise UsageError(f"{options.checkpoint} knows {vocab_size} tokens, which are no bytes: give --tokenizer")
    tokenizer = open_tokenizer(options.tokenizer, options.checkpoint)
    prompts = [tokenizer.encode(text) for text in options.prompt]
    names = ("temperature", "top_k", "top_p", "repetition_penalty", "seed")
    sampling = {name: getattr(options, name) for name in names} | {"stop_tokens": stop_tokens(options, tokenizer, model.config)}
    if len(prompts) > 1:
        for prompt, tokens in zip(prompts, model.generate(prompts, options.tokens, **sampling)):
            show(tokenizer.decode(prompt + tokens) + b"\n")
        return 0

    conversations = [open_conversation(options, model)] if options.conversation else None
    text = TextStream(tokenizer, prompts[0])
    show(tokenizer.decode(prompts[0]))
    model.generate(prompts, options.tokens, **sampling, on_tokens=lambda tokens: show(text.add(tokens[0])), conversations=conversations)
    if conversations:
        conversations[0].save(options.conversation, model)
    show(text.finish() + b"\n")
    return 0


if __name__ == "__main__":
    program.run(main)
