"""The daemon of Spark's Python workers for `make coverage`: saves what was counted in each task.

Spark keeps its workers for the next task and kills them at the end, when nothing can be saved.
"""


def main() -> None:
    from coverage import Coverage
    from pyspark import daemon

    finish_task = daemon.worker

    def worker(*arguments: object) -> int:
        code = finish_task(*arguments)
        measured = Coverage.current()
        if measured is not None:
            measured.save()
        return code

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
