"""The fork server that runs start from: everything imported once, memory in huge pages."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"


@contextlib.contextmanager
def huge_pages() -> Iterator[None]:
    """Within it, processes started anew get memory in huge pages, where the kernel lends them on request.

    A step makes and frees large tensors by the thousand, and each comes back to pages that fault one by one;
    what is computed stays the same, bit for bit. Read by glibc 2.35 and newer, ignored by older ones
    (GNU C Library manual, "Memory Allocation Tunables"). GLIBC_TUNABLES of the user's own are left alone.
    """
    if TUNABLES in os.environ:
        yield
        return
    os.environ[TUNABLES] = HUGE_PAGES
    try:
        yield
    finally:
        os.environ.pop(TUNABLES, None)


def fork_server() -> ForkServerContext:
    """Processes of it start with everything imported; it is started once and serves to the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.sweep.preload"])
    with huge_pages():
        forkserver.ensure_running()
    return context
