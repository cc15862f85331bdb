"""What daemon and job both speak. Every part of slurm-elastic needs it, so a Python that is too old is told here: this
file has to be read by any Python 3.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    have = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    sys.exit("slurm-elastic needs Python 3.10 or newer; this is " + have + " (" + sys.executable + ")")
