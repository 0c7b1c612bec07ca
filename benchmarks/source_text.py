"""Makes a text of source code from an archive, such as that of Debian's package linux-source-6.1, to train language models on.

    apt-get download linux-source-6.1
    dpkg-deb --fsys-tarfile linux-source-6.1_*.deb | tar -x --strip-components 3 ./usr/src/linux-source-6.1.tar.xz
    PYTHONPATH=build/python source_text.py linux-source-6.1.tar.xz --text source.txt --tokens source.bin

Takes the .c and .h files of some folders in an order that depends on nothing but their names, up to --bytes. --text gets the text, each
file followed by a zero byte, which separates documents for train_lm. --tokens gets the same as a token file, by a byte-pair encoding of
--vocabulary tokens that is learned from it, with token 0 after each document (this needs the package tokenizers).
"""

import argparse
import os
import sys
import tarfile
import zlib

FOLDERS = "block crypto fs init io_uring ipc kernel lib mm net security sound virt"


def read_sources(archive, folders):
    """{name: content} of the C files below the folders of the archive's first folder, in UTF-8."""
    sources = {}
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            folder = member.name.removeprefix("./").split("/")[1:2]
            if member.isfile() and member.name.endswith((".c", ".h")) and folder and folder[0] in folders:
                sources[member.name] = tar.extractfile(member).read().replace(b"\0", b"").decode(errors="replace").encode()
    return sources


def choose(sources, limit):
    """Documents of at most so many bytes in all, with a byte for the end of each."""
    size, documents = 0, []
    for name in sorted(sources, key=lambda name: (zlib.crc32(name.encode()), name)):
        size += len(sources[name]) + 1
        if size > limit:
            break
        documents.append(sources[name])
    return documents


def write_text(documents, path):
    """To another name first."""
    with open(f"{path}.part", "wb") as file:
        for document in documents:
            file.write(document + b"\0")
    os.replace(f"{path}.part", path)


def write_tokens(documents, path, vocabulary):
    """Returns the number of tokens."""
    from glade.data import TokenWriter
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = [document.decode() for document in documents]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet))
    count = 0
    with TokenWriter(path, vocab_size=vocabulary, separator=0) as writer:
        for begin in range(0, len(texts), 256):
            for encoding in tokenizer.encode_batch(texts[begin : begin + 256]):
                writer.write(encoding.ids)
                writer.end_document()
                count += len(encoding.ids) + 1
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", help="tar file, compressed or not")
    parser.add_argument("--text", help="text file to write")
    parser.add_argument("--tokens", help="token file to write")
    parser.add_argument("--vocabulary", type=int, default=32000, help="number of different tokens at most (default: %(default)s)")
    parser.add_argument("--bytes", type=float, default=100e6, help="size of the text at most (default: %(default)g)")
    parser.add_argument("--folders", nargs="+", default=FOLDERS.split(), help=f"folders to take files from (default: {FOLDERS})")
    options = parser.parse_args()
    if not (options.text or options.tokens):
        parser.error("give --text or --tokens, or both")
    try:
        sources = read_sources(options.archive, set(options.folders))
        documents = choose(sources, options.bytes)
        if not documents:
            sys.exit(f"source_text.py: {options.archive} has no .c or .h files of at most {options.bytes:.0f} bytes in the folders {' '.join(options.folders)}")
        print(f"{sum(map(len, documents)) + len(documents)} bytes of {len(documents)} files, out of {sum(map(len, sources.values()))} bytes of {len(sources)} files")
        if options.text:
            write_text(documents, options.text)
        if options.tokens:
            print(f"{write_tokens(documents, options.tokens, options.vocabulary)} tokens")
    except (OSError, tarfile.TarError, ImportError) as error:
        sys.exit(f"source_text.py: {error}")


if __name__ == "__main__":
    main()
