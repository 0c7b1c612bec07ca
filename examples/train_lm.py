"""Trains a language model of linear attention on text or tokens: the Python form of train_lm, with the same checkpoints.

    python examples/train_lm.py --data text.txt --save model.h5 --plot curves.png
"""

import math
import sys
from contextlib import ExitStack

import glade
from glade import distributed, nn, optim

from lm import program
from lm.data import Data
from lm.log import CSVLog, MemoryLog, TensorBoardLog
from lm.model import model_of
from lm.options import AUTO, CPU_DEFAULTS, CUDA_DEFAULTS, choose_run, parse_options
from lm.program import ProgramError, Silent, UsageError
from lm.run_settings import RunSettings
from lm.step_profile import StepProfile
from lm.training_log import TrainingLog, columns

LOSS_SCALE = "loss_scale."  # of its state in a checkpoint's data


def open_resumed(options, world):
    """The checkpoint that --resume asks for, or None; rank 0 chooses."""
    if not options.resume and options.save and world.rank == 0 and (others := glade.numbered_checkpoints(options.save)):
        # Of higher steps, perhaps, which would pass for the newest of this run.
        what_to_do = "give --resume auto or another name, or remove it"
        raise UsageError(f"--save {options.save}: there is {others[-1]} of another run: {what_to_do}")
    if options.resume != AUTO:
        return glade.CheckpointFile(options.resume) if options.resume else None
    newest = glade.open_newest_checkpoint(options.save) if world.rank == 0 else None
    path = world.broadcast_text(newest.path if newest else "")
    return newest or (glade.CheckpointFile(path) if path else None)


def configure(options, defaults, vocab_size, resumed):
    """The configuration that the options and, for what they leave open, the checkpoint to resume from or else the defaults ask for.
    ProgramError where the checkpoint holds another model."""
    config = resumed.config if resumed else None
    if options.short_conv and (config["model_type"] if config else options.model) == "lightning":
        raise UsageError("--short-conv is for --model gla")
    asked = {
        "model_type": ("--model", options.model),
        "vocab_size": ("a vocabulary of", vocab_size),
        "num_hidden_layers": ("--layers", options.layers),
        "hidden_size": ("--hidden", options.hidden),
        "num_heads": ("--heads", options.heads),
        "dtype": ("--dtype", options.dtype),
    }
    if not config:
        names = dict(num_hidden_layers="layers", hidden_size="hidden", num_heads="heads", dtype="dtype")
        config = {"model_type": "gla", **{field: defaults[name] for field, name in names.items()}}
        config |= {field: value for field, (_, value) in asked.items() if value is not None}
        # 0.02 at a width of 1024; narrower models learn faster from larger weights.
        config["initializer_range"] = 0.64 / math.sqrt(config["hidden_size"])
        short_conv = defaults["short_conv"] if options.short_conv is None else options.short_conv
        if short_conv and config["model_type"] == "gla":
            config |= dict(use_short_conv=True, conv_size=short_conv)
        return config
    short_conv = config.get("conv_size") if config.get("use_short_conv") else 0
    differences = [(option, config.get(field), value) for field, (option, value) in asked.items()]
    for option, before, value in [*differences, ("--short-conv", short_conv, options.short_conv)]:
        if value is not None and before != value:
            raise ProgramError(f"{resumed.path}: the run was made with {option} {before}, not {value}")
    return config


def resumed_model(resumed):
    if "default" not in resumed.random or "position" not in resumed.data:
        raise ProgramError(f"{resumed.path}: not written by train_lm: it has no random state or no position in the data")
    model = model_of(resumed)
    glade.default_generator().state = resumed.random["default"]
    return model


def divide(world, run, options):
    """The groups of this process: neighbours, which share the tokens of each sequence, and those that share the batch's sequences."""
    neighbours, given = options.sequence_parallel, options.data_parallel
    if world.size % neighbours:
        raise UsageError(f"--sequence-parallel {neighbours} does not divide {world.size} processes")
    others = world.size // neighbours
    if given not in (None, others):
        product = given * neighbours
        raise UsageError(f"--data-parallel {given} times --sequence-parallel {neighbours} is {product}, but there are {world.size} processes")
    if run.batch < others:
        raise UsageError(f"--batch {run.batch} is too small for {others} {'processes' if neighbours == 1 else 'groups of processes'}")
    if run.seq_len < neighbours:
        raise UsageError(f"--seq-len {run.seq_len} is too small for --sequence-parallel {neighbours}")
    return world.split(world.rank // neighbours), world.split(world.rank % neighbours)


class Training:
    def __init__(self, options, stack):
        self.options = options
        self.world = distributed.world()
        self.device = self.world.device(options.device)
        defaults = CUDA_DEFAULTS if self.device.type == "cuda" else CPU_DEFAULTS
        resumed = open_resumed(options, self.world)
        self.settings = RunSettings(resumed)
        self.seconds_before = self.settings.seconds_before()  # of training, before the checkpoint
        run = self.chosen = choose_run(options, defaults, self.settings)
        self.data = Data(options.data, run.seq_len, run.packed)
        if options.save or resumed:
            self.settings.fix_data(self.data.tokens)
        neighbours, others = divide(self.world, run, options)
        self.kept = list(self.data.validation_batches(run.batch, self.device, others, neighbours))
        how = dict(packed=run.packed, seed=run.seed, end=self.data.training_size, device=self.device)
        begin, end = others.share(run.batch)
        tokens = neighbours.share((end - begin) * run.seq_len if run.packed else run.seq_len)  # packed: of the row of all its sequences
        shares = dict(share=(begin, end), tokens=tokens)
        self.loader = glade.data.Loader(self.data.tokens, run.batch, run.seq_len, **how, **shares)
        is_first = self.world.rank == 0
        glade.manual_seed(run.seed)
        config = configure(options, defaults, self.data.tokens.vocab_size, resumed)
        self.model = (resumed_model(resumed) if resumed else nn.models.from_config(config)).to(self.device)
        self.model.model.recompute = options.recompute
        self.model.set_sequence_group(neighbours)
        self.parallel = distributed.DataParallel(self.model, shard=options.shard, reduce_dtype=options.reduce_dtype)
        self.saver = stack.enter_context(distributed.Saver(self.parallel, options.save, keep=options.keep)) if options.save else None
        groups = optim.decay_matrices(self.model.named_parameters(), run.weight_decay)
        self.optimizer = optim.AdamW(self.parallel.divide(groups), lr=run.lr, betas=(0.9, 0.95))
        self.scaler = optim.LossScaler(self.device) if self.model.config["dtype"] == "float16" else None
        self.step, self.validated_step = 0, None
        self.received, self.signal, self.seconds, self.failure = [], 0, 0.0, None
        self.log = self.open_log(stack, resumed) if is_first else None  # what follows is shown and written by rank 0 alone
        self.scheduler = optim.LRScheduler(self.optimizer, self.schedule())
        if resumed:
            self.resume(resumed)
        self.profile = StepProfile(options.profile, self.device) if options.profile and is_first else None
        self.train_graphed = glade.cuda.GraphedFunction(self.device, self.train)
        self.print_summary()

    def open_log(self, stack, resumed):
        self.history = MemoryLog() if self.options.plot else None
        logs = [self.history] if self.history else []
        for log in self.options.log:
            if log.is_folder:
                logs.append(TensorBoardLog(log.path, resumed.step + 1 if resumed else 0))
            else:
                logs.append(CSVLog(log.path, columns(self.data.unit), resumed.step if resumed else None))
        run = self.chosen
        return stack.enter_context(TrainingLog(logs, run.seq_len * run.batch * run.accumulate, self.data.unit))

    def schedule(self):
        """The share of the highest learning rate at each step; with --minutes, what comes after the warmup follows the time."""
        steps, warmup = self.chosen.steps, min(self.chosen.warmup, self.chosen.steps)
        if self.chosen.schedule == "wsd":
            by_steps = optim.warmup_stable_decay_lr(warmup, min(steps // 5, steps - warmup), steps)
        else:
            by_steps = optim.warmup_cosine_lr(warmup, steps)
        if not self.chosen.minutes:
            return by_steps
        return lambda step: by_steps(step if step < warmup else warmup + int(self.done() * (steps - warmup)))

    def resume(self, resumed):
        """All but the weights."""
        self.parallel.restore(resumed, self.optimizer, self.scheduler)
        self.loader.load_state_dict(resumed.data)
        scale = {name.removeprefix(LOSS_SCALE): x for name, x in resumed.data.items() if name.startswith(LOSS_SCALE)}
        if self.scaler and scale:
            self.scaler.load_state_dict(scale)
        self.step = resumed.step
        if self.log:
            if self.settings.changes():
                print(f"train_lm.py: {self.settings.changes()}", file=sys.stderr)
            print(f"resuming from {resumed.path} after step {self.step}")

    def print_summary(self):
        if not self.log:
            return
        others = f" and {self.world.size - 1} more processes" if self.world.size > 1 else ""
        parameters = sum(x.numel() for x in self.model.parameters())
        data, unit = self.data, self.data.unit
        print(
            f"{self.model.config['model_type']} model of {parameters / 1e6:.2f} million parameters on {self.device}{others}; {data.training_size / 1e6:.2f} "
            f"million {unit}s to train on, {data.validation_size / 1e6:.2f} for validation",
            flush=True,
        )

    def done(self):
        """The share of the run that is behind: of its steps, or of its time."""
        minutes = self.chosen.minutes
        return min((self.seconds_before + self.seconds) / (60 * minutes) if minutes else self.step / self.chosen.steps, 1.0)

    def is_finished(self):
        return self.done() >= 1 or 0 < self.options.stop_at <= self.step

    def run(self):
        """To the end, or to a signal. Returns the exit code."""
        self.received = program.catch_interrupts()
        self.train_to_the_end()
        if self.saver:
            self.saver.wait()
        self.on_rank_0(lambda log: log.finish())
        self.agree()
        distributed.shutdown()
        if self.log:
            self.print_end()
        return 128 + self.signal if self.signal else 0

    def train_to_the_end(self):
        self.agree()
        while not self.is_finished() and not self.signal:
            if self.profile:
                self.profile.next_step()
            self.take_step()
            if self.saver:
                self.check_save(self.saver.check)
            if self.is_due(self.options.eval_every):
                self.validate()
            if self.is_due(self.options.save_every):
                self.save()
            self.agree()
        self.flush()
        if self.log:
            self.log.erase()
        if self.profile:
            self.profile.finish()
        if not self.signal:
            self.validate()
        self.save()

    def print_end(self):
        self.log.print(f"{'interrupted' if self.signal else 'finished'} after step {self.step}, {self.seconds:.1f} s")
        if self.device.type == "cuda":
            parameters = [x for group in self.optimizer.param_groups for x in group.params]
            categories = {"parameters": parameters, "optimizer": list(self.optimizer.state_dict().values())}
            print(glade.cuda.memory_summary(self.device.index, categories), end="")
        if self.history and self.history.rows:
            plot(self.history.rows, self.data.unit, self.options.plot)

    def agree(self):
        """Tells all ranks what only some know: that a signal came, rank 0's clock, and that rank 0 cannot go on, which ends all."""
        known = [self.received[0] if self.received else 0, self.log.seconds() if self.log else 0, self.failure is not None]
        signal, self.seconds, failed = distributed.all_reduce(glade.tensor(known, dtype=glade.float64), "max").tolist()
        self.signal = int(signal)
        if failed:
            if self.failure:
                self.log.erase()
                program.print_error(self.failure)
            distributed.shutdown()  # after the message: the launcher may kill this process as soon as another one ends
            raise Silent

    def on_rank_0(self, work):
        """Calls `work` with rank 0's log. An error in it ends all ranks at the next agree()."""
        try:
            if self.log:
                work(self.log)
        except ProgramError as error:
            self.failure = error

    def flush(self):
        """Rank 0 shows and logs the steps so far. All ranks stop at a loss that is not finite."""
        self.on_rank_0(lambda log: log.flush())
        self.agree()

    def is_due(self, every):
        """Whether something is to be done after this step, which is not the last one."""
        return every > 0 and self.step % every == 0 and not self.is_finished()

    def take_step(self):
        with glade.profiler.range("data"):
            batches = [next(self.loader) for _ in range(self.chosen.accumulate)]
        counted = glade.tensor(float(sum(batch.counted for batch in batches)), dtype=glade.float64)
        average = distributed.all_reduce(counted, "average").item()  # of the ranks' targets
        arguments = []
        for batch in batches:
            share = glade.full((), batch.counted / average, device=self.device)
            arguments += [batch.inputs, batch.targets, share, *([batch.cu_seqlens] if self.chosen.packed else [])]
        # Where packed documents begin is read on the host, which a graph cannot do; and in a replay there are no ranges. Parameters that
        # are gathered for every layer have other memory in every step.
        is_eager = self.chosen.packed or self.options.eager or self.options.shard == 3 or self.options.profile
        (loss,) = self.train(arguments) if is_eager else self.train_graphed(arguments)
        learning_rate = self.optimizer.lr
        self.scheduler.step()
        self.step += 1
        self.on_rank_0(lambda log: log.add(self.step, self.done(), learning_rate, loss))

    def train(self, arguments):
        """The loss of a step on batches of inputs, targets, share in the loss and, if packed, cu_seqlens, one after the other: as of one
        batch of all their sequences, every target counts the same."""
        total = None
        size = 4 if self.chosen.packed else 3
        for i in range(0, len(arguments), size):
            inputs, targets, share, *cu_seqlens = arguments[i : i + size]
            with glade.profiler.range("forward"):
                loss = self.model.loss(inputs, targets, *cu_seqlens)
                if len(arguments) > size or self.world.size > 1:
                    loss = loss * share
            self.parallel.communicating = i + size == len(arguments)
            with glade.profiler.range("backward"):
                (self.scaler.scale(loss) if self.scaler else loss).backward()
            total = total + loss.detach() if total is not None else loss.detach()
        self.parallel.wait([total])
        with glade.profiler.range("optimizer"):
            self.parallel.step(self.optimizer, max_norm=self.chosen.grad_clip, scaler=self.scaler)
            self.optimizer.zero_grad()
        return [total]

    @glade.no_grad()
    def validate(self):
        if self.validated_step == self.step:
            return
        self.validated_step = self.step
        self.flush()
        self.model.eval()
        losses = [(self.model.loss(x, y, cu_seqlens), counted) for x, y, cu_seqlens, counted in self.kept]
        loss = sum(loss.item() * counted for loss, counted in losses if counted)
        self.model.train()
        totals = glade.tensor([float(loss), float(sum(counted for *_, counted in self.kept))], dtype=glade.float64)
        loss, counted = distributed.all_reduce(totals).tolist()
        self.on_rank_0(lambda log: log.add_validation(self.step, loss / counted))

    @glade.no_grad()
    def check_weights(self):
        """Fails, at the next agree(), where a weight is no finite number."""
        total = glade.zeros((), device=self.device)  # of differences that are 0, or nan for a weight that is not finite
        for group in self.optimizer.param_groups:
            for x in group.params:
                total = total + (x - x).sum()
        if distributed.all_reduce(total).item() != 0 and self.log:
            self.failure = ProgramError(f"the weights after step {self.step} are not finite: try a smaller --lr")

    def save(self):
        if self.saver:
            self.check_weights()  # the last loss is of those before the last step
        self.flush()  # stops at what is not finite, before the last good checkpoint is replaced
        if not self.saver:
            return
        scale = {LOSS_SCALE + name: x for name, x in self.scaler.state_dict().items()} if self.scaler else {}
        if self.chosen.minutes:
            self.settings.set_seconds(self.seconds_before + self.seconds)
        data = self.loader.state_dict() | self.settings.state_dict | scale
        self.check_save(self.saver.wait)
        self.saver.save(self.model, optimizer=self.optimizer, scheduler=self.scheduler, step=self.step, data=data)

    def check_save(self, check):
        """Calls `check`, which raises the error of a save that failed: training goes on."""
        try:
            check()
        except glade.CheckpointError as error:
            self.log.print(f"not saved, and tried again at the next save: {error}")


def plot(history, unit, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def curve(axes, column, **how):
        rows = [row for row in history if column in row]
        axes.plot([row["step"] for row in rows], [row[column] for row in rows], **how)

    figure, (losses, rate, speed) = plt.subplots(3, sharex=True, figsize=(8, 9), layout="constrained")
    curve(losses, f"bits_per_{unit}", linewidth=0.7, label="training")
    curve(losses, f"validation_bits_per_{unit}", marker="o", label="validation")
    losses.set(ylabel=f"bits per {unit}")
    losses.legend()
    curve(rate, "learning_rate")
    rate.set(ylabel="learning rate")
    curve(speed, "tokens_per_second")
    speed.set(ylabel=f"{unit}s/s", xlabel="step")
    figure.savefig(file, dpi=150)


def main():
    options = parse_options()
    with ExitStack() as stack:
        return Training(options, stack).run()


if __name__ == "__main__":
    program.run(main)
