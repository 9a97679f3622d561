"""python -m loadtest [USER ...] [options]: Locust with the users of this package.

Every option of Locust works; `-f FILE` runs another locustfile, which may import this one's users.
"""

import sys
from pathlib import Path

from locust.main import main

if __name__ == "__main__":
    if not {"-f", "--locustfile"} & {argument.split("=")[0] for argument in sys.argv[1:]}:
        sys.argv[1:1] = ["-f", str(Path(__file__).with_name("locustfile.py"))]
    main()
