"""Summarizes the rows of linear_attention_sweep, and draws them where an image is asked for (which needs matplotlib).

    linear_attention_sweep --csv sweep.csv
    plot_sweep.py sweep.csv sweep.png
"""
import argparse
import csv
import statistics
import sys

PASSES = ("forward", "forward_backward")


def read(path):
    """The rows of the file; a line of error and the end of the program where it is not one of the sweep's."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            for name in PASSES:
                for column in ("us", "floor_bytes", "of_floor", "of_prediction"):
                    row[f"{name}_{column}"] = float(row[f"{name}_{column}"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        sys.exit(f"plot_sweep.py: {path} cannot be read as rows of linear_attention_sweep: {error!r}")
    if not rows:
        sys.exit(f"plot_sweep.py: {path} has no rows")
    return rows


def kernels_of(rows, name):
    return sorted({row[f"{name}_kernels"] for row in rows})


def describe(row):
    packed = " packed" if row["packed"] == "true" else ""
    return f"B{row['sequences']}_T{row['length']}_H{row['heads']}_K{row['K']}_V{row['V']} {row['gates']} {row['dtype']}{packed}"


def summarize(rows):
    for name in PASSES:
        print(f"{name}: {'kernels':20} {'shapes':>7} {'median':>8} {'largest':>8} of the floor")
        for kernels in kernels_of(rows, name):
            ratios = [row[f"{name}_of_floor"] for row in rows if row[f"{name}_kernels"] == kernels]
            print(f"{'':{len(name)}}  {kernels:20} {len(ratios):7} {statistics.median(ratios):8.1f} {max(ratios):8.1f}")
        for row in rows:
            if row[f"{name}_cliff"] == "true":
                print(f"  cliff: {describe(row)}: {row[f'{name}_of_prediction']:.2f} times its prediction")


def draw(rows, path):
    from plotting import pyplot

    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(13, 9), sharex="col", constrained_layout=True)
    for column, name in enumerate(PASSES):
        for kernels in kernels_of(rows, name):
            of_kernels = [row for row in rows if row[f"{name}_kernels"] == kernels]
            megabytes = [row[f"{name}_floor_bytes"] / 1e6 for row in of_kernels]
            for axis, what in zip(axes[:, column], ("of_floor", "of_prediction")):
                axis.scatter(megabytes, [row[f"{name}_{what}"] for row in of_kernels], s=14, label=kernels)
        axes[0, column].set(title=name.replace("_", " and "), yscale="log", ylabel="time over the floor")
        axes[1, column].set(xscale="log", xlabel="bytes of the floor, MB", ylabel="time over the prediction")
        axes[1, column].axhline(1.5, color="gray", linestyle="--", linewidth=1)
        axes[0, column].legend(title="kernels")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description="Summarizes the rows of linear_attention_sweep, and draws them.")
    parser.add_argument("csv", help="rows of linear_attention_sweep --csv")
    parser.add_argument("image", nargs="?", help="PNG or SVG file to draw: times over the floor and over the prediction")
    arguments = parser.parse_args()
    rows = read(arguments.csv)
    summarize(rows)
    if arguments.image:
        draw(rows, arguments.image)


if __name__ == "__main__":
    main()
