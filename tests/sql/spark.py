"""The page's statements by a real Spark, on local files."""

import importlib
import pathlib
from typing import Any

from tests.support import sqlpage
from tests.support.lake import Made
from tests.support.sqlanswers import Rows


def answers(made: Made, bill: pathlib.Path, questions: dict[str, str]) -> dict[str, Rows]:
    """Title → rows. Raises what Spark says of a statement that it does not take."""
    builder: Any = importlib.import_module("pyspark.sql").SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(bill.with_name("warehouse")),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.master("local[2]").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        for statement in sqlpage.statements("spark"):
            session.sql(made.lake.here(statement))
        session.read.parquet(str(bill)).createTempView("cur")
        for view in sqlpage.views():  # as the page says
            session.sql(view.replace("CREATE OR REPLACE VIEW", "CREATE TEMPORARY VIEW"))
        return {
            title: [tuple(row) for row in session.sql(query).collect()] for title, query in questions.items()
        }
    finally:
        session.stop()
