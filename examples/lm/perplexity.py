"""How well a model predicts text."""

import math
import time

import glade
from glade.data import TokenData
from glade.nn import models
from glade.progress import Progress

from lm.program import ProgramError, UsageError

BLOCK = 1 << 20


class TokenSource:
    """The tokens of a file, and how many bytes of text they stand for. A token file is taken as it is, text goes through the
    tokenizer. ProgramError for a token file of another vocabulary than the model's; UsageError for `packed` tokens, of documents that are
    apart, without a separator."""

    def __init__(self, file, tokenizer, vocab_size, packed):
        """`tokenizer` is a function for it, as only text needs one."""
        self.file, self.packed = file, packed
        self._data = TokenData(file)
        if not self._data.is_text and self._data.vocab_size != vocab_size:
            raise ProgramError(f"{file}: has a vocabulary of {self._data.vocab_size}, but the model one of {vocab_size}")
        self.separator = self._data.separator
        self._tokens = None
        if self._data.is_text and not tokenizer().is_bytes:
            self._tokens, self._bytes = encode_file(file, tokenizer())
            self.separator = None
        if packed and self.separator is None:
            raise UsageError(f"{file}: --packed needs text as bytes or a token file with a separator")

    def __len__(self):
        return len(self._data if self._tokens is None else self._tokens)

    def read(self, begin, end):
        """Tokens [begin, end), int64."""
        if self._tokens is None:
            return self._data.read(begin, end - begin)
        return glade.tensor(self._tokens[begin:end])

    def bytes(self, predicted):
        """The bytes that the `predicted` tokens stand for, all but the first of every document; None where that is not known."""
        if self._tokens is not None:
            return self._bytes
        return predicted if self._data.vocab_size == 256 else None


def encode_file(file, tokenizer):
    """The tokens of a text, and the bytes of all but the first."""
    text = file.read_bytes()
    try:
        tokens = tokenizer.encode(text.decode())
    except UnicodeDecodeError as error:
        raise ProgramError(f"{file}: is no text in UTF-8: {error}") from None
    return tokens, len(text) - len(tokenizer.decode(tokens[:1]))


class Scorer:
    """Sums what a model loses on tokens that it predicts, in nats, and shows how far it is."""

    def __init__(self, model, source, seq_len, progress):
        self._model, self._source, self._seq_len, self._progress = model, source, seq_len, progress
        self._device = model.lm_head.weight.device
        self._begin = time.perf_counter()
        self.nats, self.predicted = 0.0, 0

    def add_document(self, begin, end):
        """Of any length, window by window."""
        states = models.AttentionStates()
        while begin + 1 < end:
            tokens = self._source.read(begin, min(begin + self._seq_len + 1, end))
            self._score(tokens[:-1], tokens[1:], states, None)
            begin += self._seq_len

    def add_row(self, documents):
        """Documents that fill no more than a window, in one row."""
        parts = [self._source.read(begin, end) for begin, end in documents]
        if parts:
            cu_seqlens = [0]
            for part in parts:
                cu_seqlens.append(cu_seqlens[-1] + len(part) - 1)
            ids, targets = (glade.cat(tensors, 0) for tensors in ([part[:-1] for part in parts], [part[1:] for part in parts]))
            self._score(ids, targets, None, glade.tensor(cu_seqlens))

    def _score(self, ids, targets, states, cu_seqlens):
        x = self._model.model(ids.unsqueeze(0).to(self._device), states, cu_seqlens)
        loss = glade.linear_cross_entropy(x, self._model.lm_head.weight, targets.unsqueeze(0).to(self._device), reduction="sum")
        self.nats += loss.item()
        self.predicted += len(ids)
        self._progress.show(
            self.predicted / len(self._source),
            f"{self.nats / math.log(2) / self.predicted:.3f} bits per token",
            f"{self.predicted / (time.perf_counter() - self._begin) / 1000:.1f}k tokens/s",
            str(self._source.file),
        )


def find_documents(source):
    """Where each begins and ends, with the separator that ends it."""
    begin = 0
    for block in range(0, len(source), BLOCK):
        tokens = source.read(block, min(block + BLOCK, len(source))).numpy()
        for at in (tokens == source.separator).nonzero()[0].tolist():
            yield begin, block + at + 1
            begin = block + at + 1
    if begin < len(source):
        yield begin, len(source)


def add_packed(scorer, documents, seq_len):
    row, length = [], 0
    for begin, end in documents:
        predicted = end - begin - 1
        if predicted > seq_len:
            scorer.add_document(begin, end)
        elif predicted > 0:
            if length + predicted > seq_len:
                scorer.add_row(row)
                row, length = [], 0
            row.append((begin, end))
            length += predicted
    scorer.add_row(row)


def exponential(x):
    """Infinite where math.exp overflows."""
    return math.exp(x) if not x > 709 else math.inf


@glade.no_grad()
def perplexity(model, source, seq_len):
    """perplexity, bits_per_byte (where bytes are known), bits_per_token and the number of predicted tokens: all but the first, each from
    all tokens before it, as the state is carried on over windows of seq_len tokens. Of a packed source: all but the first of every document, from
    those before it in that document. ProgramError where the perplexity is no finite number."""
    with Progress() as progress:
        scorer = Scorer(model, source, seq_len, progress)
        if source.packed:
            add_packed(scorer, find_documents(source), seq_len)
        else:
            scorer.add_document(0, len(source))
    if not scorer.predicted:
        raise UsageError(f"{source.file}: has one token, and none to predict from it")
    bits = scorer.nats / math.log(2)
    metrics = {"perplexity": exponential(scorer.nats / scorer.predicted)}
    if not math.isfinite(metrics["perplexity"]):
        raise ProgramError(f"{source.file}: the perplexity is {'nan' if math.isnan(bits) else 'infinite'}")
    count = source.bytes(scorer.predicted)
    if count is not None:
        metrics["bits_per_byte"] = bits / count
    return metrics | {"bits_per_token": bits / scorer.predicted, "tokens": scorer.predicted}
