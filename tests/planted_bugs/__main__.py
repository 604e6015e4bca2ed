"""`python -m tests.planted_bugs`: see the package."""

import sys

from tests.planted_bugs import main

raise SystemExit(main(sys.argv[1:]))
