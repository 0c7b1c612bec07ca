"""The options of train_lm."""

from pathlib import Path
from types import SimpleNamespace

from lm import program
from lm.model import DTYPES
from lm.program import Parser, UsageError, add_option, check_distinct, check_folder, check_package, check_plot, count, file_name, non_negative, positive, size
from lm.step_profile import StepProfile

AUTO = Path("auto")  # of --resume
MODELS = ["gla", "lightning"]
SCHEDULES = ["cosine", "wsd"]  # in the order of the numbers in checkpoints

# For options that are given neither on the command line nor by the checkpoint to resume from.
DEFAULTS = dict(accumulate=1, seed=0, minutes=0.0, warmup=50, weight_decay=0.1, grad_clip=1.0)
CPU_DEFAULTS = dict(dtype="float32", layers=2, hidden=128, heads=2, short_conv=4, seq_len=128, batch=8, steps=2800, lr=4e-3)
CUDA_DEFAULTS = dict(dtype="bfloat16", layers=6, hidden=384, heads=6, short_conv=0, seq_len=256, batch=64, steps=2000, lr=3e-3)


def add_run_options(parser):
    """Those that a checkpoint to resume from gives, where they are absent."""

    def add(group, name, text, kind, metavar="N"):
        field = name[2:].replace("-", "_")
        by_device = f"{CPU_DEFAULTS.get(field)} on the CPU, {CUDA_DEFAULTS.get(field)} on CUDA"
        add_option(group, name, text, shown=f"{DEFAULTS[field]:g}" if field in DEFAULTS else by_device, type=kind, metavar=metavar)

    parser.option("--model", "Kind of attention", shown=MODELS[0], choices=MODELS, metavar="|".join(MODELS))
    add(parser, "--layers", "Number of layers", size)
    add(parser, "--hidden", "Size of the hidden vectors", size)
    add(parser, "--heads", "Number of heads in a layer", size)
    add(parser, "--short-conv", "Tokens that short convolutions of queries, keys and values see, in gla; 0: none", count)
    shown = "float32 on the CPU, bfloat16 on CUDA"
    parser.option("--dtype", "Type of activations; float16 trains with a loss scale", shown=shown, choices=DTYPES, metavar="|".join(DTYPES))
    add(parser, "--seq-len", "Tokens in a sequence", size)
    add(parser, "--batch", "Sequences in a batch", size)
    add(parser, "--accumulate", "Batches in a step, computed one after the other", size)
    text = "Keep documents apart: the state begins anew after every separator (in text: zero bytes)"
    parser.add_argument("--packed", action="store_true", help=text)
    add(parser, "--seed", "Seed for the weights and the order of the data", program.seed)
    length = parser.add_mutually_exclusive_group()
    add(length, "--steps", "Steps of the whole run, those before --resume included", size)
    add_option(length, "--minutes", "Minutes to train for, instead of --steps", type=positive, metavar="NUMBER")
    add(parser, "--lr", "Highest learning rate", non_negative, "NUMBER")
    add(parser, "--warmup", "Steps until the learning rate is highest", count)
    text = "Learning rate after the warmup: cosine falls to a tenth; wsd stays, and falls to 0 over the last fifth of the steps"
    parser.option("--schedule", text, shown=SCHEDULES[0], choices=SCHEDULES, metavar="|".join(SCHEDULES))
    add(parser, "--weight-decay", "Weight decay of matrices in AdamW", non_negative, "NUMBER")
    add(parser, "--grad-clip", "Largest norm of the gradient; 0: no limit", non_negative, "NUMBER")


def make_parser():
    parser = Parser("Trains a language model of linear attention on text or tokens.")
    text = "Text, or token files (see tokenize), to train on; the last twentieth is kept for validation"
    parser.option("--data", text, required=True, nargs="+", type=file_name, metavar="FILE")
    add_run_options(parser)
    parser.option("--device", "auto, cpu, cuda or cuda:N", "auto", metavar="DEVICE")
    text = "Save memory: keep only the inputs of layers, and compute the rest again in backward"
    parser.add_argument("--recompute", action="store_true", help=text)
    text = "Processes, or groups of --sequence-parallel, that share the batch's sequences"
    parser.option("--data-parallel", text, shown="all that there are", type=size, metavar="N")
    text = "What all processes divide among them: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too"
    parser.option("--shard", text, 0, type=int, choices=range(4), metavar="0|1|2|3")
    text = "Type in which processes exchange gradients; bfloat16 halves the bytes"
    parser.option("--reduce-dtype", text, "float32", choices=["float32", "bfloat16"], metavar="float32|bfloat16")
    parser.option("--sequence-parallel", "Processes that share the tokens of each sequence", 1, type=size, metavar="N")
    parser.add_argument("--eager", action="store_true", help="Do not capture steps on CUDA in graphs")
    text = "Step to stop after, as on Ctrl-C, with the learning rates of a run of --steps; 0: none"
    parser.option("--stop-at", text, 0, type=count, metavar="N")
    parser.option("--eval-every", "Steps between validations; 0: only at the end", 500, type=count, metavar="N")
    parser.option("--save", "Checkpoint to write at the end and on Ctrl-C", type=file_name, metavar="FILE.h5")
    parser.option("--save-every", "Steps between checkpoints; 0: only at the end", 0, type=count, metavar="N")
    text = "Number of checkpoints to keep, with their step in the name; 0: one, under its own name"
    parser.option("--keep", text, 0, type=count, metavar="N")
    text = (
        "Checkpoint to go on from, which also gives the options of the run that are absent; auto: the newest good one of --save, or none"
    )
    parser.option("--resume", text, type=file_name, metavar="FILE.h5|auto")
    text = (
        "CSV file for the loss of every step; a folder, whose name ends in a slash, gets the same for TensorBoard; --resume appends to both"
    )
    parser.add_argument("--log", help=text, nargs="+", type=log_name, default=[], metavar="FILE.csv|FOLDER/")
    text = "Chrome trace of steps 6 to 15 of this run, without graphs, and a table at the end"
    parser.option("--profile", text, type=file_name, metavar="FILE.json")
    parser.option("--plot", "Image of losses, learning rate and speed", type=file_name, metavar="FILE.png")
    return parser


def log_name(text):
    """The type of --log: the slash may be absent where the folder is there."""
    path = file_name(text)
    return SimpleNamespace(path=path, is_folder=text.endswith("/") or path.is_dir())


def check_outputs(options):
    """UsageError for files that could not be written after the training, or would destroy the data or one another, and for options
    about files that are not written."""
    logs = [("--log", log.path) for log in options.log]
    outputs = [*logs, *((f"--{name}", getattr(options, name)) for name in ("save", "profile", "plot") if getattr(options, name))]
    inputs = [("--data", path) for path in options.data]
    resumed = [("--resume", options.resume)] if options.resume not in (None, AUTO) else []
    for i, (option, path) in enumerate(outputs):
        check_folder(option, path)
        check_distinct(option, path, inputs + outputs[:i] + (resumed if option != "--save" else []))
    if options.plot:
        check_plot(options.plot)
    if any(log.is_folder for log in options.log):
        check_package("--log for TensorBoard", "tensorboardX")
    for option, is_given in (("--save-every", options.save_every), ("--keep", options.keep), ("--resume auto", options.resume == AUTO)):
        if is_given and not options.save:
            raise UsageError(f"{option} needs --save")
    for option, steps in (("--steps", options.steps), ("--stop-at", options.stop_at)):
        if options.profile and steps and steps <= StepProfile.BEFORE:
            raise UsageError(f"--profile begins after {StepProfile.BEFORE} steps: {option} {steps} is too few")


def parse_options():
    """The options, checked as far as that goes without a device."""
    options = make_parser().parse_args()
    check_outputs(options)
    return options


def choose_run(options, defaults, settings):
    """The options of a run, with their values from RunSettings. `defaults` are those of the device."""
    defaults = DEFAULTS | defaults
    run = SimpleNamespace()
    for name in ("seq_len", "batch", "accumulate", "packed", "seed"):
        given = getattr(options, name)
        given = (1 if given else None) if name == "packed" else given
        setattr(run, name, settings.fixed("--" + name.replace("_", "-"), given, defaults.get(name, 0)))
    run.packed = bool(run.packed)
    for name in ("steps", "minutes", "lr", "warmup", "weight_decay", "grad_clip"):
        given = 0.0 if name == "minutes" and options.steps else getattr(options, name)
        setattr(run, name, settings.schedule("--" + name.replace("_", "-"), given, defaults[name]))
    run.schedule = settings.schedule_name("--schedule", options.schedule, SCHEDULES)
    return run
