"""A plugin of pytest's: the twenty tests with the most CPU seconds, in all the processes that they started.

`pytest -p tests.support.cpu_seconds ...`, also with xdist. Seconds by the clock would count what else the
machine does, and what a test waits for.
"""

import os
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

PROPERTY = "cpu_seconds"
_TICKS = os.sysconf("SC_CLK_TCK")


class CpuSeconds:
    """Notes in each report what was used since the one before."""

    def pytest_collection_finish(self):
        self.used = of_all_processes()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        before, self.used = self.used, of_all_processes()
        report.user_properties.append((PROPERTY, self.used - before))
        return report

    def pytest_terminal_summary(self, terminalreporter):
        used = Counter()
        for report in chain.from_iterable(terminalreporter.stats.values()):
            properties = dict(getattr(report, "user_properties", ()))
            if PROPERTY in properties:
                used[report.nodeid] += properties[PROPERTY]
        terminalreporter.section(f"CPU seconds: {sum(used.values()):.0f}")
        for nodeid, seconds in used.most_common(20):
            terminalreporter.line(f"{seconds:7.1f} {nodeid}")


def pytest_configure(config):
    config.pluginmanager.register(CpuSeconds())


def of_all_processes():
    """CPU seconds of this process and its descendants, with those that have ended and were waited for."""
    seconds, children = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        process = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(process)
        seconds[process] = sum(map(int, fields[11:15])) / _TICKS
    total, left = 0.0, [os.getpid()]
    while left:
        process = left.pop()
        total += seconds.get(process, 0)
        left += children.get(process, [])
    return total
