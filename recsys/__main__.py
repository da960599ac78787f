"""`python -m recsys` is the `recsys` command."""

from recsys.cli.main import main

if __name__ == "__main__":
    main()
