"""How far the advisor's time model is from what was measured: published points, and its own tables.

    python benchmarks/time_model.py

The first table is the feature as others measured it; points that set a constant prove nothing. The second
leaves each size out of a table and interpolates it from the others.
"""

from rich.console import Console
from rich.table import Table

from oproj_pass.advisor.interpolate import leave_one_out
from oproj_pass.advisor.profile import load_profile, profile_names
from oproj_pass.advisor.published import deviations


def published():
    table = Table(title="Published points, ms a step", title_justify="left", box=None)
    for column in ("machine", "what", "published", "predicted", "off by", "sign", "use"):
        table.add_column(column)
    for found in deviations():
        point = found.point
        low, high = f"{point.low:+.2f}", f"{point.high:+.2f}"
        table.add_row(
            point.machine, point.what, low if low == high else f"{low} to {high}", f"{found.predicted:+.2f}",
            f"{found.error:.2f}", "right" if found.has_right_sign else "wrong",
            "sets a constant" if point.used else "held out",
        )  # fmt: skip
    return table


def tables():
    table = Table(title="Leaving one size out, error in percent", title_justify="left", box=None)
    for column in ("profile", "collective", "mean", "worst", "by ranks (mean)"):
        table.add_column(column)
    for name in profile_names():
        for collective, measured in load_profile(name).collectives.items():
            by_ranks = {n: leave_one_out(measured.nbytes, row) for n, row in measured.us.items()}
            errors = [error for found in by_ranks.values() for error in found]
            if errors:
                means = ", ".join(f"{n}: {100 * sum(e) / len(e):.1f}" for n, e in by_ranks.items())
                mean, worst = 100 * sum(errors) / len(errors), 100 * max(errors)
                table.add_row(name, collective, f"{mean:.1f}", f"{worst:.1f}", means)
    return table


if __name__ == "__main__":
    Console(width=120).print(published(), "", tables())
