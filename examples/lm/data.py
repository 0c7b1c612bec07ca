"""The data of a training run: text or token files, of which the last twentieth is for validation, the rest for training."""

from glade.data import TokenData, make_batch

from lm.program import ProgramError


class Data:
    def __init__(self, files, seq_len, packed):
        self.tokens = TokenData(files)
        self.training_size = len(self.tokens) - len(self.tokens) // 20
        self.validation_size = len(self.tokens) - self.training_size
        self.unit = "byte" if self.tokens.is_text else "token"
        self._seq_len, self._packed = seq_len, packed
        if self.validation_size < seq_len + 1:
            raise ProgramError(
                f"the data has {len(self.tokens)} {self.unit}s, {self.validation_size} of them for validation: "
                f"too few for sequences of {seq_len} {self.unit}s"
            )

    def validation_batches(self, sequences, device, group, sequence_group):
        """Batches (inputs, targets, cu_seqlens, counted) of the same sequences at every call: at most 65536 tokens, spread evenly. Of every
        batch of so many sequences this rank's share in the group, if there is one, and of each sequence its tokens in the other."""
        pieces = min(max(65536 // self._seq_len, 1), self.validation_size // (self._seq_len + 1))
        distance = self.validation_size // pieces
        starts = [self.training_size + i * distance for i in range(pieces)]
        for first in range(0, pieces, sequences):
            begin, end = group.share(min(pieces - first, sequences))
            has_none = begin == end  # then it takes part all the same: ranks may gather parameters together
            mine = starts[:1] if has_none else starts[first + begin : first + end]
            tokens = sequence_group.share(len(mine) * self._seq_len if self._packed else self._seq_len)
            batch = make_batch(self.tokens, mine, self._seq_len, self._packed, tokens=tokens)
            targets = batch.targets * 0 - 100 if has_none else batch.targets
            yield batch.inputs.to(device), targets.to(device), batch.cu_seqlens, 0 if has_none else batch.counted
