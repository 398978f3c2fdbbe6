"""`python -m tvdnn`: the command line, from a bare checkout too."""

import sys

from .cli import main

sys.exit(main())
