"""The `nightshift` command: runs the command line and says errors as sentences.

Exit codes: 0 done, 1 the answer is no, 2 the user has to change something, 75 (EX_TEMPFAIL) trying again may work.
"""

from __future__ import annotations

import sys


def main() -> None:
    from nightshift.agent.cli.commands import app
    from nightshift.collectors.base import Permanent, Temporary

    try:
        app()
    except Permanent as error:
        _say(error)
        sys.exit(2)
    except Temporary as error:
        _say(error)
        sys.exit(75)


def _say(error: Exception) -> None:
    for line in str(error).splitlines() or [type(error).__name__]:
        print(f"nightshift: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
