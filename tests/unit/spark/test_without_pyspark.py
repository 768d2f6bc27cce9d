"""`popwheel-spark` where PySpark is not installed: it helps, and names the extra."""

import subprocess
import sys

PROGRAM = """
import sys

for name in ("matplotlib", "py4j", "pyarrow", "pyspark"):
    sys.modules[name] = None
from click.testing import CliRunner
from popwheel_spark.jobs.command import group, main

for words in ([], *([name] for name in group().commands)):
    result = CliRunner().invoke(group(), [*words, "--help"])
    assert result.exit_code == 0, (words, result.output, result.exception)
main()
"""


def test_each_help_works_and_a_job_names_the_extra() -> None:
    for words in (["archive", "--topics", "Orders", "--to", "there"], ["compaction", "--archive", "there"]):
        done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, done.stderr
        library, _, rest = done.stderr.removeprefix("popwheel-spark: ").partition(" ")
        wanted = {"pyarrow": "popwheel-spark", "pyspark": "popwheel-spark[pyspark]"}[library]
        assert rest == f'is missing: pip install "{wanted}"\n'
