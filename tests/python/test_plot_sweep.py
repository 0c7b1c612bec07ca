"""The script that summarizes the rows of linear_attention_sweep."""

import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plot_sweep.py"
PASS = "{0}_kernels,{0}_us,{0}_floor_bytes,{0}_of_floor,{0}_of_prediction,{0}_cliff"
HEADER = "number,sequences,length,heads,K,V,gates,dtype,packed," + PASS.format("forward") + "," + PASS.format("forward_backward")
ROWS = """0,4,2048,16,128,128,gk,bfloat16,false,sm90_pass,200,1e8,2,1.01,false,sm90_intra_chunk,600,3e8,3,0.98,false
1,1,512,2,64,64,g,float32,true,sm90_pass,100,1e6,6,1.75,true,chunk_mma,300,3e6,8,1.1,false
"""


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


def test_summary(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text(f"{HEADER}\n{ROWS}")
    result = run(rows)
    assert result.returncode == 0, result.stderr
    words = [line.split() for line in result.stdout.splitlines()]
    assert ["sm90_pass", "2", "4.0", "6.0"] in words and ["chunk_mma", "1", "8.0", "8.0"] in words
    cliffs = [line.strip() for line in result.stdout.splitlines() if "cliff" in line]
    assert cliffs == ["cliff: B1_T512_H2_K64_V64 g float32 packed: 1.75 times its prediction"]


def test_image(tmp_path):
    rows, image = tmp_path / "rows.csv", tmp_path / "rows.png"
    rows.write_text(f"{HEADER}\n{ROWS}")
    result = run(rows, image)
    if importlib.util.find_spec("matplotlib") is None:
        assert result.stderr == "plot_sweep.py: an image needs matplotlib, which is not installed\n" and not image.exists()
    else:
        assert result.returncode == 0 and image.read_bytes().startswith(b"\x89PNG"), result.stderr


def test_errors(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    empty = tmp_path / "empty.csv"
    empty.write_text(HEADER + "\n")
    for path, words in ((tmp_path / "missing.csv", "missing.csv cannot be read"), (other, "other.csv cannot be read"), (empty, "has no rows")):
        result = run(path)
        assert result.returncode == 1 and words in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""
