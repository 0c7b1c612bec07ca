"""The options of train_lm."""

from pathlib import Path
from types import SimpleNamespace

from lm import program
from lm.program import Parser, UsageError, check_distinct, check_folder, count, file_name, non_negative, positive, size
from lm.step_profile import StepProfile

AUTO = Path("auto")  # of --resume
CPU_DEFAULTS = dict(dtype="float32", layers=2, hidden=128, heads=2, seq_len=128, batch=16, steps=1500)
CUDA_DEFAULTS = dict(dtype="bfloat16", layers=6, hidden=384, heads=6, seq_len=256, batch=64, steps=2000)


def add_size(parser, name, text):
    """An option whose default depends on the device."""
    field = name.replace("-", "_")
    defaults = f"[{CPU_DEFAULTS[field]} on the CPU, {CUDA_DEFAULTS[field]} on CUDA]"
    return parser.add_argument(f"--{name}", type=size, metavar="N", help=f"{text} {defaults}")


def make_parser(description):
    parser = Parser(description)
    parser.add_argument(
        "--data", nargs="+", type=file_name, required=True, metavar="FILE",
        help="Text, or token files (see tokenize), to train on; the last twentieth is kept for validation",
    )  # fmt: skip
    parser.add_argument("--packed", action="store_true", help="Keep documents apart: a state begins and ends with its document (for text: at zero bytes)")
    parser.option("--model", "gla", "gla or lightning", choices=["gla", "lightning"])
    add_size(parser, "layers", "Layers")
    add_size(parser, "hidden", "Size of the hidden vectors")
    add_size(parser, "heads", "Heads of a layer")
    add_size(parser, "seq-len", "Tokens of a sequence")
    add_size(parser, "batch", "Sequences of a batch")
    parser.option("--accumulate", 1, "Batches of a step, one after the other", type=size, metavar="N")
    length = parser.add_mutually_exclusive_group()
    add_size(length, "steps", "Steps, those before --resume included")
    length.add_argument("--minutes", type=positive, metavar="X", help="Time to train for, instead of --steps")
    parser.option("--stop-at", 0, "Step to stop after, as on Ctrl-C, with the learning rate of a run of --steps; 0: none", type=count, metavar="N")
    parser.option("--lr", 3e-3, "Highest learning rate", type=non_negative, metavar="X")
    parser.option("--warmup", 50, "Steps until it is reached", type=count, metavar="N")
    parser.option("--weight-decay", 0.1, "Of AdamW, on matrices", type=non_negative, metavar="X")
    parser.add_argument("--recompute", action="store_true", help="Keep only the inputs of layers for backward, and compute the rest again there")
    parser.add_argument("--eager", action="store_true", help="Without CUDA graphs, which steps on CUDA are otherwise captured in")
    parser.option("--grad-clip", 1.0, "Largest norm of the gradient; 0: any", type=non_negative, metavar="X")
    parser.option("--device", "auto", "auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"],
        help="float32, bfloat16 or (with a loss scale) float16 [float32 on the CPU, bfloat16 on CUDA]",
    )  # fmt: skip
    parser.option("--eval-every", 250, "Steps between validations; 0: only at the end", type=count, metavar="N")
    parser.add_argument("--save", type=file_name, metavar="FILE.h5", help="Checkpoint to write at the end and on Ctrl-C")
    parser.option("--save-every", 0, "Steps between checkpoints; 0: only at the end", type=count, metavar="N")
    parser.option("--keep", 0, "Checkpoints to keep, with their step in the name; 0: one, under its own name", type=count, metavar="N")
    parser.add_argument(
        "--resume", metavar="FILE.h5|auto", type=file_name,
        help="Checkpoint to go on from, with the same options as before; auto: the newest good one of --save, or none",
    )  # fmt: skip
    parser.add_argument(
        "--log", nargs="+", type=log_name, default=[], metavar="FILE.csv|FOLDER/",
        help="CSV file for the loss of every step, and a folder for the same as TensorBoard's event files; --resume adds to both",
    )  # fmt: skip
    parser.add_argument(
        "--profile", metavar="FILE.json", type=file_name,
        help="Chrome trace of steps 6 to 15 of this run, without graphs, of which a table is printed at the end",
    )  # fmt: skip
    parser.add_argument("--plot", type=file_name, metavar="FILE.png", help="Image of losses, learning rate and speed")
    parser.option("--seed", 0, "Of the weights and the order of the data", type=program.seed, metavar="N")
    return parser


def log_name(text):
    """The type of --log: a folder ends in a slash, if it is not there yet."""
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
    for option in ("--save-every", "--keep"):
        if getattr(options, option[2:].replace("-", "_")) > 0 and not options.save:
            raise UsageError(f"{option} needs --save")
    if options.resume == AUTO and not options.save:
        raise UsageError("--resume auto needs --save")
    for option, steps in (("--steps", options.steps), ("--stop-at", options.stop_at)):
        if options.profile and steps and steps <= StepProfile.BEFORE:
            raise UsageError(f"--profile begins after {StepProfile.BEFORE} steps: {option} {steps} is too few")


def parse_options(description):
    """The options, checked as far as that goes without a device."""
    options = make_parser(description).parse_args()
    check_outputs(options)
    return options
