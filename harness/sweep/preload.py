"""Imported by the fork server, once: everything that a run needs, as runs want to find it.

Nothing of what imports make is garbage, yet the collector walks through all of it again and again meanwhile,
which takes a fifth of the time; and then once more in every run, where each walk also copies the pages that
it has in common with the server. So imports run without the collector, and what they made is set aside.
"""

import gc

gc.disable()
import harness.sweep.worker  # noqa: E402

gc.freeze()
gc.enable()

_ = harness.sweep.worker
