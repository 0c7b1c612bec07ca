"""Trains a small language model on the bytes of a text, on all processes that mpirun starts.

mpirun -np 4 python examples/data_parallel.py text.txt model.h5
"""

import sys

import glade
from glade import data, distributed, nn, optim

BATCH, TOKENS, STEPS = 8, 32, 60


def train(text, model_file):
    world = distributed.world()  # rank 2 of 4, say
    device = world.device()  # a GPU of its own, or the CPU
    begin, end = world.share(BATCH)  # this rank's sequences of each batch

    tokens = data.TokenData(text)
    loader = data.Loader(tokens, BATCH, TOKENS, share=(begin, end), device=device)

    config = {"model_type": "gla", "vocab_size": tokens.vocab_size, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2}
    glade.manual_seed(0)
    model = nn.models.from_config(config).to(device)
    parallel = distributed.DataParallel(model)  # all begin with rank 0's weights
    optimizer = optim.AdamW(model.named_parameters(), lr=3e-3)

    # A rank's loss is the mean over its own sequences. Where ranks have different numbers of them, they count by these.
    weight = world.size * (end - begin) / BATCH
    for step in range(1, STEPS + 1):
        batch = next(loader)
        loss = model.loss(batch.inputs, batch.targets) * weight
        loss.backward()  # averages gradients over the ranks as they become final
        shown = loss.detach()
        parallel.wait([shown])  # from here on gradients and loss are those of the whole batch
        optimizer.step(max_norm=1)
        optimizer.zero_grad()
        if step % 20 == 0 and world.rank == 0:
            print(f"step {step}  loss {shown.item():.3f}", flush=True)

    if world.rank == 0:  # all ranks have the same weights
        glade.save(model, model_file, step=STEPS)
    distributed.shutdown()  # waits for rank 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("data_parallel.py TEXT MODEL")
    try:
        train(*sys.argv[1:])
    except glade.Error as error:
        sys.exit(f"data_parallel.py: {error}")
