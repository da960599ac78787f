"""The `recsys` command, also as `python -m recsys`."""

import sys

try:
    from recsys.cli.main import main
except KeyboardInterrupt:  # before the command answers for it
    print("Interrupted.", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    main()
