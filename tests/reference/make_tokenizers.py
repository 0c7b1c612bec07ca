"""Writes tests/data/tokenizer/*.json, and *.jsonl with what the Python package tokenizers makes of many texts.

    python tests/reference/make_tokenizers.py
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

FOLDER = Path(__file__).parents[1] / "data" / "tokenizer"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [
    "The layer reads the state, and the state forgets what the gate lets go.",
    "Linear attention is a recurrence: it's read once, it'll be written once; we've seen 1234 tokens in 2024.",
    "Die Größe des Zustands hängt nicht von der Länge ab.",
    "for (int i = 0; i < 10; ++i) {\n\tprintf(\"%d\\n\", i);\n}\n",
    "状态的大小与长度无关。 Ёлки зелёные, naïve café.",
]
TEXTS = [
    "", " ", "  ", "a", "the state", " the state", "  the  state ", "The\nlayer\n\n reads\tit", "it's WE'LL I'd they'Re", "1 12 123 1234 12345678",
    "x = f(y)[0] != {z};", "Größe naïve café", "状态的大小", "Ёлки 2024", "emoji 🙂🙂 👩‍👩‍👧‍👦 🇩🇪!", "\u00a0no-break\u3000wide", "tabs\t\tand\r\nlines\r\n\r\n", "ﬁ ﷺ ①",
    "<s>the</s>", "<s> the state </s> and <unk>", "before<extra> after", "before  <extra>  after", "<extra>", "</s></s>", "▁the▁state", "a▁b", "<0x41>",
    "trailing   ", "\n", "\n\n  \n x", "e\u0301 combining", "\u200bzero width", "THE THE the", "....,,,;;;", "don't can't", "🙂", "\U0010ffff\u0001",
    " ".join(CORPUS) * 2,
]  # fmt: skip


def train(tokenizer, **options):
    tokenizer.train_from_iterator(CORPUS * 3, BpeTrainer(show_progress=False, **options))
    return json.loads(tokenizer.to_str())


def special(content, **options):
    return AddedToken(content, special=True, normalized=False, **options)


def characters(metaspace, **options):
    """As Llama and Mistral have it: characters, and bytes for those that are unknown."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(**options)
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(**options)])
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    state = train(tokenizer, vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)], limit_alphabet=60)
    state["added_tokens"] = state["added_tokens"][:3]  # bytes are in the vocabulary, no added tokens
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_tokens([AddedToken("<extra>", lstrip=True, rstrip=True, normalized=False), AddedToken("THE", normalized=not metaspace)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unknowns():
    """Without bytes: unknown characters are one token or several."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    tokenizer.decoder = decoders.Metaspace()
    train(tokenizer, vocab_size=97, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=40)
    return tokenizer


def byte_level(pattern, **options):
    """As GPT-2 and Llama 3 have it."""
    tokenizer = Tokenizer(BPE(ignore_merges=pattern is not None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**options)
    if pattern:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_special_tokens([special("<s>"), special("</s>"), special("<unk>", lstrip=True)])
    tokenizer.add_tokens([AddedToken("<extra>", rstrip=True), AddedToken("THE")])
    template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template]) if pattern else processors.ByteLevel()
    return tokenizer


def main():
    tokenizers = {
        "llama": characters(False),
        "metaspace_first": characters(True, prepend_scheme="first", split=False),
        "metaspace_always": characters(True, prepend_scheme="always", split=True),
        "unknowns": unknowns(),
        "gpt2": byte_level(None, add_prefix_space=False),
        "gpt2_space": byte_level(None, add_prefix_space=True),
        "llama3": byte_level(LLAMA3),
    }
    for name, tokenizer in tokenizers.items():
        (FOLDER / f"{name}.json").write_text(tokenizer.to_str() + "\n")
        with open(FOLDER / f"{name}.jsonl", "w") as file:
            for text in TEXTS:
                ids = tokenizer.encode(text).ids
                # The last two thirds begin in the middle of characters.
                parts = [ids[i:] for i in (0, len(ids) // 3, len(ids) // 2)]
                print(json.dumps({"text": text, "ids": ids, "decoded": [tokenizer.decode(part) for part in parts]}), file=file)


if __name__ == "__main__":
    main()
