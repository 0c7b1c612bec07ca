"""Text becomes a token file for train_lm.

    python -m glade.tokenize --tokenizer tokenizer.json --output books.bin *.txt
    python -m glade.tokenize --output lines.bin --separator $'\\n' text.txt
    python -m glade.tokenize --tokenizer tokenizer.json --field text --output web.bin *.jsonl

Without --tokenizer, which takes the file of any Hugging Face tokenizer, the bytes are the tokens. The end of a file is the end of a
document; --separator divides files further, and with --field every line of a file is a JSON object that holds a document.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glade import Error, as_tensor
from glade.data import TokenWriter
from glade.progress import Progress

END_TOKENS = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"]
Encode = Callable[[list[str]], list[np.ndarray]]
AT_ONCE = 1 << 20  # tokens


def documents(path: Path, separator: str | None, field: str | None, advance: Callable[[int], Any]) -> Iterator[str]:
    """The texts in a file, one at a time. Calls `advance` with the number of bytes read."""
    try:
        yield from _documents(path, separator, field, advance)
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path}: is no text in UTF-8: {error}") from None


def _documents(path: Path, separator: str | None, field: str | None, advance: Callable[[int], Any]) -> Iterator[str]:
    with open(path, encoding="utf-8", errors="strict", newline="") as file:
        if field is not None:
            for number, line in enumerate(file, 1):
                advance(len(line.encode()))
                try:
                    document = json.loads(line)[field]
                except (ValueError, KeyError, TypeError) as error:
                    raise SystemExit(f"{path}: line {number} is no JSON object with the field {field!r}: {error}") from None
                if not isinstance(document, str):
                    raise SystemExit(f"{path}: line {number}: {field!r} is no text")
                yield document
            return
        parts: list[str] = []  # of the document that goes on
        rest = ""  # its end, in which a separator may begin
        while block := file.read(1 << 20):
            advance(len(block.encode()))
            rest += block
            if separator:
                *whole, rest = rest.split(separator)
                for document in whole:
                    yield "".join([*parts, document])
                    parts.clear()
            end = len(rest) - len(separator or "-") + 1
            if end > 0:
                parts.append(rest[:end])
                rest = rest[end:]
        yield "".join([*parts, rest])


def byte_encoder() -> tuple[Encode, int, int]:
    """How texts become tokens, the number of tokens there are, and the one that ends a document."""

    def encode(texts: list[str]) -> list[np.ndarray]:
        if any("\0" in text for text in texts):
            raise SystemExit("the text has a zero byte, which stands for the end of a document")
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    return encode, 256, 0


def tokenizer_encoder(path: Path, end_token: str | None) -> tuple[Encode, int, int]:
    """The same for a tokenizer.json."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more precise
        raise SystemExit(f"{path}: is no tokenizer: {error}") from None
    candidates = [end_token] if end_token else END_TOKENS
    end = next((token for token in map(tokenizer.token_to_id, candidates) if token is not None), None)
    if end is None:
        raise SystemExit(f"{path}: has none of the tokens {', '.join(candidates)}: name the one that ends a document, --end-token")

    def encode(texts: list[str]) -> list[np.ndarray]:
        return [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return encode, max(tokenizer.get_vocab().values()) + 1, end


class ByteProgress:
    """Shows how much of the files is read."""

    def __init__(self, files: list[Path]) -> None:
        self.progress = Progress()
        self.total = max(sum(file.stat().st_size for file in files), 1)
        self.done = 0
        self.begin = time.monotonic()

    def add(self, count: int, name: str) -> None:
        """So many bytes more of the file of this name are read."""
        self.done += count
        speed = self.done / max(time.monotonic() - self.begin, 1e-9)
        parts = f"{self.done / 1e9:.2f} of {self.total / 1e9:.2f} GB", f"{speed / 1e6:.1f} MB/s", name
        self.progress.show(min(self.done / self.total, 1.0), *parts)


def tokenize(files: list[Path], output: Path, encoder: tuple[Encode, int, int], separator: str | None, field: str | None) -> tuple[int, int]:
    """Writes the file; the number of documents and of tokens."""
    encode, vocab_size, end = encoder
    count = tokens = 0
    waiting: list[str] = []
    bar = ByteProgress(files)
    with TokenWriter(output, vocab_size, end) as writer, bar.progress:

        def write() -> None:
            nonlocal count, tokens
            for ids in encode(waiting):
                for begin in range(0, len(ids), AT_ONCE):
                    writer.write(as_tensor(ids[begin : begin + AT_ONCE]))
                writer.end_document()
                count += 1
                tokens += len(ids) + 1
            waiting.clear()

        size = 0
        for file in files:
            for document in documents(file, separator, field, partial(bar.add, name=file.name)):
                if not document:
                    continue
                waiting.append(document)
                size += len(document)
                if size > 1 << 22:  # so many characters at a time are spread over the processor's cores
                    write()
                    size = 0
        write()
    return count, tokens


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m glade.tokenize", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="text in UTF-8")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.bin", help="token file to write (required)")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE.json", help="a Hugging Face tokenizer.json [the bytes are the tokens]")
    text = f"the tokenizer's token that ends a document [the first it has of {', '.join(END_TOKENS)}]"
    parser.add_argument("--end-token", metavar="TOKEN", help=text)
    between = parser.add_mutually_exclusive_group()
    between.add_argument("--separator", metavar="TEXT", help="text between the documents of a file")
    between.add_argument("--field", metavar="NAME", help="files are JSON Lines; the field that holds a document")
    options = parser.parse_args(arguments)
    inputs = [*options.files, *([options.tokenizer] if options.tokenizer else [])]
    if options.output.exists() and any(file.exists() and file.samefile(options.output) for file in inputs):
        parser.error(f"--output {options.output}: that is a file to read")
    try:
        encoder = tokenizer_encoder(options.tokenizer, options.end_token) if options.tokenizer else byte_encoder()
        count, tokens = tokenize(options.files, options.output, encoder, options.separator, options.field)
    except Error as error:
        print(f"tokenize: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"tokenize: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"tokenize needs the package {error.name}: pip install {error.name}", file=sys.stderr)
        return 1
    print(f"{options.output}: {count} documents, {tokens} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
