"""Measures how well a language model predicts text and answers multiple-choice questions: the Python form of evaluate.

    python examples/evaluate.py --checkpoint model.h5 --data text.txt
    python examples/evaluate.py --checkpoint gla-1.3B --task questions.jsonl --log results.csv
"""

import functools

from lm import program
from lm.model import add_model_options, load_model
from lm.multiple_choice import multiple_choice, read_questions
from lm.perplexity import TokenSource, perplexity
from lm.program import Parser, UsageError, check_distinct, check_folder, file_name, size
from lm.results import Results
from lm.tokenizer import add_tokenizer_option, open_tokenizer


def parse_options():
    parser = Parser("Measures how well a language model predicts text and answers multiple-choice questions.")
    add_model_options(parser)
    text = "Text, or token files (see tokenize), to predict token by token"
    parser.add_argument("--data", help=text, nargs="+", action="extend", type=file_name, default=[], metavar="FILE")
    text = 'Questions, a JSON object a line: {"query": text, "choices": [text, ...], "gold": index}'
    parser.add_argument("--task", help=text, nargs="+", action="extend", type=file_name, default=[], metavar="FILE.jsonl")
    add_tokenizer_option(parser)
    text = "Tokens that the model reads at a time; its state is carried on from one window to the next"
    parser.option("--seq-len", text, 2048, type=size, metavar="N")
    parser.option("--batch", "Answers that the model reads at a time", 16, type=size, metavar="N")
    text = "Keep documents apart: the state begins anew after every separator (in text: zero bytes)"
    parser.add_argument("--packed", help=text, action="store_true")
    parser.option("--log", "CSV file for the results: file, metric, value", type=file_name, metavar="FILE.csv")
    options = parser.parse_args()
    if not options.data and not options.task:
        raise UsageError("give --data, --task or both")
    if options.log:
        check_folder("--log", options.log)
        inputs = [("--checkpoint", options.checkpoint)]
        inputs += [("--data", file) for file in options.data] + [("--task", file) for file in options.task]
        check_distinct("--log", options.log, inputs)
    return options


def main():
    options = parse_options()
    # All inputs come first: what is wrong with the last shows before minutes went into the others.
    tasks = [(file, read_questions(file)) for file in options.task]
    model, folder = load_model(options)
    vocab_size = model.config["vocab_size"]
    tokenizer = functools.cache(lambda: open_tokenizer(options, folder, vocab_size))
    if tasks:
        tokenizer()
    sources = [TokenSource(file, tokenizer, vocab_size, options.packed) for file in options.data]
    with Results(options.log) as results:
        for source in sources:
            results.add(source.file, perplexity(model, source, options.seq_len))
        for file, questions in tasks:
            results.add(file, multiple_choice(model, tokenizer(), questions, options.batch))
    return 0


if __name__ == "__main__":
    program.run(main)
