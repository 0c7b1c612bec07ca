"""Text as a model's tokens. Decoded text is bytes, because a token may be a part of a character."""

from pathlib import Path

from lm.program import UsageError

INCOMPLETE = "\ufffd".encode()  # decoders write it where a character's other bytes are to come


class Bytes:
    """Every byte is a token."""

    stop_tokens = []
    is_bytes = True

    def encode(self, text):
        return list(text.encode(errors="surrogateescape"))

    def decode(self, tokens):
        return bytes(token % 256 for token in tokens)


class Numbers:
    """Text is the numbers of tokens, separated by spaces or commas."""

    stop_tokens = []
    is_bytes = False

    def encode(self, text):
        tokens = []
        for word in text.replace(",", " ").split():
            if not word.isdecimal() or len(word) > 19 or int(word) >= 2**63:
                raise UsageError(f"'{word}' is not the number of a token")
            tokens.append(int(word))
        return tokens

    def decode(self, tokens):
        return "".join(f"{token} " for token in tokens).encode()


def check_text(text):
    """The text. UsageError for bytes of the command line that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the prompt is no text in UTF-8") from None
    return text


class HuggingFace:
    """A tokenizer.json, through the package tokenizers."""

    stop_tokens = []
    is_bytes = False

    def __init__(self, file):
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises nothing more precise
            raise UsageError(f"{file}: is no tokenizer: {error}") from None

    def encode(self, text):
        return self._tokenizer.encode(check_text(text)).ids

    def decode(self, tokens):
        return self._tokenizer.decode(tokens).encode()


class SentencePiece:
    """A tokenizer.model, through the package sentencepiece."""

    is_bytes = False

    def __init__(self, file):
        from sentencepiece import SentencePieceProcessor

        self._processor = SentencePieceProcessor()
        try:
            self._processor.Load(str(file))
        except (RuntimeError, OSError) as error:
            raise UsageError(f"{file}: is no SentencePiece model: {error}") from None
        end = self._processor.eos_id()
        self.stop_tokens = [end] if end >= 0 else []

    def encode(self, text):
        return self._processor.EncodeAsIds(check_text(text))

    def decode(self, tokens):
        known, unknown = self._processor.GetPieceSize(), self._processor.unk_id()  # a model's vocabulary may be padded
        return self._processor.DecodeIds([token if token < known else unknown for token in tokens]).encode()


def open_file(file):
    if not file.is_file():
        raise UsageError(f"--tokenizer {file}: expected auto, bytes, ids or a file")
    kind, package = (HuggingFace, "tokenizers") if file.suffix == ".json" else (SentencePiece, "sentencepiece")
    try:
        return kind(file)
    except ModuleNotFoundError:
        raise UsageError(f"{file}: the package {package} reads it: pip install {package}") from None


def add_tokenizer_option(parser):
    text = (
        "How text becomes tokens: bytes, ids (the text is numbers), a tokenizer.json, a SentencePiece model, or auto: the file in the "
        "model's folder, or bytes for a vocabulary of 256"
    )
    parser.option("--tokenizer", text, "auto", metavar="auto|bytes|ids|FILE")


def open_tokenizer(options, folder, vocab_size):
    """What --tokenizer asks for: for "auto" the file in the model's folder, if there is one, or bytes for a vocabulary of 256. UsageError
    where that is not enough, and for files that cannot be read."""
    kind = options.tokenizer
    if kind in ("bytes", "ids"):
        return Bytes() if kind == "bytes" else Numbers()
    if kind != "auto":
        return open_file(Path(kind))
    for name in ("tokenizer.json", "tokenizer.model"):
        if folder and (folder / name).exists():
            return open_file(folder / name)
    if vocab_size == 256:
        return Bytes()
    message = f"{options.checkpoint} has no tokenizer, and its {vocab_size} tokens are no bytes: give --tokenizer ids or a file"
    raise UsageError(message)


class TextStream:
    """Gives the text of a growing sequence of tokens piece by piece, after that of `prompt`."""

    CONTEXT = 32  # tokens of which the text of the next may depend, as its space does on whether it is the first

    def __init__(self, tokenizer, prompt):
        self._tokenizer = tokenizer
        self._tokens = list(prompt)
        self._shown = len(self._tokens)  # tokens whose text was given

    def add(self, token):
        """The text that one token more completes; empty in the middle of a character."""
        self._tokens.append(token)
        return self._text_after_shown(INCOMPLETE)

    def finish(self):
        """The text of tokens that no further one completed."""
        return self._text_after_shown(None)

    def _text_after_shown(self, incomplete):
        begin = max(self._shown - self.CONTEXT, 0)
        before = self._tokenizer.decode(self._tokens[begin : self._shown])
        text = self._tokenizer.decode(self._tokens[begin:])
        if len(text) <= len(before) or (incomplete and text.endswith(incomplete)):
            return b""
        self._shown = len(self._tokens)
        return text[len(before) :]
