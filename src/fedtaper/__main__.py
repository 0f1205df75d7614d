"""The command line, as ``python -m fedtaper``."""

import sys

from fedtaper_command import main

if __name__ == "__main__":
    sys.argv[0] = "fedtaper"
    main()
