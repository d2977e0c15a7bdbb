"""`python -m flambeau.base` prints the table of settings with the values in force.

May not know anything above `base`. Enter at the command line:

    FLAMBEAU_DEBUG=2 python -m flambeau.base
"""

from __future__ import annotations

from flambeau.base.settings import settings, table

if __name__ == "__main__":
    print(table(settings))
