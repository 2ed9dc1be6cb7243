"""Every statement of deploy/reference/sql.md, by Spark and by a stand-in for Athena: `python -m tests.sql [--seed N]`.

an archive as it is after some weeks ─▶ the page's tables and views ─▶ its questions ─▶ what plain Python sums
"""

import argparse
import pathlib
import random
import sys
import tempfile
from collections.abc import Callable

from tests.sql import athena, environment, spark
from tests.support import lake, sqlanswers, sqlpage
from tests.support.lake import Made

Engine = Callable[[Made, pathlib.Path, dict[str, str]], dict[str, sqlanswers.Rows]]
"""Sets itself up from the page, with a bill, and answers questions."""


def main() -> int:
    """0: all answers are right."""
    parser = argparse.ArgumentParser(prog="python -m tests.sql", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--engine", choices=["athena", "spark"], action="append")
    args = parser.parse_args()
    engines: dict[str, Engine] = {"athena": athena.answers, "spark": spark.answers}
    wanted = args.engine or list(engines)
    if "spark" in wanted and not environment.has_java():
        parser.error("Spark needs a Java runtime on PATH (Debian: openjdk-17-jre-headless)")
    sys.path.append(str(environment.install()))
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        made = lake.make(pathlib.Path(name, "archive"), args.seed)
        bill = pathlib.Path(name, "cur.parquet")
        sqlanswers.bill(made, bill)
        questions = {title: made.lake.here(query) for title, query in sqlpage.questions().items()}
        for engine in wanted:
            for title, rows in engines[engine](made, bill, questions).items():
                try:
                    sqlanswers.check(title, made, rows)
                except AssertionError as error:
                    failed += 1
                    print(f"{engine}: {title}: FAILED: {error}")
                else:
                    print(f"{engine}: {title}: ok, {len(rows)} rows")
    print(f"sql: engines={','.join(wanted)} questions={len(questions)} failed={failed} seed={args.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
