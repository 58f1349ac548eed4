"""Another package's data source: the session of the tests has it as `pyspark_contested`, which Spark finds."""

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "contested"

    def schema(self) -> str:
        return "theirs int"
