"""Matplotlib, for programs that draw into files."""

import os
import sys


def pyplot():
    """matplotlib.pyplot, which needs no display. Where it is not installed, the program ends with a line that says so."""
    try:
        import matplotlib
    except ImportError:
        sys.exit(f"{os.path.basename(sys.argv[0])}: an image needs matplotlib, which is not installed")
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
