"""`python -m flambeau.cli`."""

import sys

from flambeau.cli.main import main

sys.exit(main())
