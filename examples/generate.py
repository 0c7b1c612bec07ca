"""Continues texts with a language model that train_lm made or that is published: the Python form of generate.

    python examples/generate.py --checkpoint model.h5 --prompt "In the beginning" --tokens 300 --temperature 0.8
    python examples/generate.py --checkpoint gla-1.3B --prompt "In the beginning" --repetition-penalty 1.1
"""

import sys

import glade
from glade.nn import models

from lm import program
from lm.model import add_model_options, load_model, stop_tokens
from lm.program import Parser, ProgramError, UsageError, check_folder, count, file_name, non_negative, positive, probability
from lm.tokenizer import TextStream, add_tokenizer_option, open_tokenizer

ALGORITHMS = ["auto", "recurrent", "chunk"]


def parse_options():
    parser = Parser("Continues a text with a language model that train_lm made or that is published.")
    add_model_options(parser)
    parser.option("--prompt", "Text to continue; several are continued at once", shown="a new line", nargs="+", action="extend", metavar="TEXT")
    add_tokenizer_option(parser)
    text = "File with a conversation: goes on where it ends, and adds to it; made where it is missing"
    parser.option("--conversation", text, type=file_name, metavar="FILE.h5")
    parser.option("--tokens", "Largest number of tokens to add", 100, type=count, metavar="N")
    text = "Ids of tokens to stop after, besides the model's and the tokenizer's own"
    parser.add_argument("--stop", help=text, nargs="+", action="extend", type=count, default=[], metavar="ID")
    parser.option("--temperature", "Divides the logits before sampling; 0: always the likeliest token", 1, type=non_negative, metavar="NUMBER")
    parser.option("--top-k", "Sample among this many likeliest tokens; 0: all", 0, type=count, metavar="N")
    text = "Sample among the likeliest tokens that together reach this probability"
    parser.option("--top-p", text, 1, type=probability, metavar="NUMBER")
    parser.option("--repetition-penalty", "Above 1: tokens that occurred become less likely", 1, type=positive, metavar="NUMBER")
    parser.option("--seed", "Seed for sampling", 0, type=program.seed, metavar="N")
    parser.option("--algorithm", "How the prompt is read", "auto", choices=ALGORITHMS, metavar="|".join(ALGORITHMS))
    options = parser.parse_args()
    options.prompt = options.prompt or ["\n"]
    goes_on = options.conversation and options.conversation.exists()
    if "" in options.prompt and not goes_on:
        raise UsageError("--prompt is empty: give at least one character")
    if options.conversation:
        if len(options.prompt) > 1:
            raise UsageError("--conversation goes with one --prompt")
        check_folder("--conversation", options.conversation)
    return options


def open_conversation(path, model):
    """The conversation to go on with: an empty one where there is no file yet."""
    return models.Conversation.load(path, model) if path.exists() else models.Conversation()


def show(text):
    """Prints a text in bytes; on a terminal without what would move the cursor or change the settings."""
    if sys.stdout.isatty():
        text = program.printable(text.decode(errors="surrogateescape"), "\r\n\t").encode(errors="surrogateescape")
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def continue_one(model, tokenizer, prompt, options, sampling):
    """Prints the text as soon as tokens make whole characters."""
    conversations = [open_conversation(options.conversation, model)] if options.conversation else None
    text = TextStream(tokenizer, prompt)
    show(tokenizer.decode(prompt))
    model.generate([prompt], options.tokens, **sampling, on_tokens=lambda tokens: show(text.add(tokens[0])), conversations=conversations)
    if conversations:
        conversations[0].save(options.conversation, model)
    show(text.finish() + b"\n")


def main():
    options = parse_options()
    model, folder = load_model(options)
    model.set_algorithm(options.algorithm)
    tokenizer = open_tokenizer(options, folder, model.config["vocab_size"])
    prompts = [tokenizer.encode(text) for text in options.prompt]
    sampling = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "repetition_penalty", "seed")}
    sampling["stop_tokens"] = [*options.stop, *tokenizer.stop_tokens, *stop_tokens(model)]
    try:
        if len(prompts) == 1:
            continue_one(model, tokenizer, prompts[0], options, sampling)
        else:
            for tokens in model.generate(prompts, options.tokens, **sampling):
                show(tokenizer.decode(tokens) + b"\n")
    except glade.ValueError as error:  # of logits that are not finite: the options were checked
        raise ProgramError(f"{options.checkpoint}: {error}") from None
    return 0


if __name__ == "__main__":
    program.run(main)
