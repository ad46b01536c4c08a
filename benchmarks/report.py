"""From measurements to a table and a picture: both are made from the JSON alone."""

import json
from pathlib import Path

# What the front page shows: the largest size of each of these works.
FRONT = ("path", "gradient", "subset", "linear", "datasets", "prediction")
MARKS = "<!-- figures: made by benchmarks/run.py --readme -->", "<!-- end of figures -->"

# What the package aims at, on two CPU cores in float64: times the floor at most, times ours that a
# peer takes at least.
GOALS: dict[tuple[str, str], tuple[float | None, dict[str, float]]] = {
    ("path", "n = 4000, L = 100"): (1.10, {"RLScore": 2, "himalaya KernelRidgeCV(cv=5)": 20}),
    ("targets", "n = 2000, t = 1000, L = 20"): (1.3, {"himalaya KernelRidgeCV(cv=5)": 5}),
    ("gradient", "n = 4000, d = 8"): (
        2.0,
        {"GPyTorch LeaveOneOutPseudoLikelihood with backward": 3.5},
    ),
    ("subset", "n = 40000, m = 1000, d = 8, L = 100"): (
        1.6,
        {"falkon, one λ": 1, "scikit-learn Nystroem + RidgeCV": 50},
    ),
    ("linear", "n = 200,000, d = 100, L = 100"): (1.5, {"scikit-learn RidgeCV": 20}),
    ("datasets", "1000 sets, n = 100, L = 50"): (1.5, {"scikit-learn, a loop over RidgeCV": 3}),
    ("matmul", "20,000 × 20,000 rows, d = 20, t = 10"): (1.3, {"scikit-learn rbf_kernel @ V": 5}),
    ("cold", "airfoil, n = 1200, L = 100"): (
        None,
        {"scikit-learn GridSearchCV(KernelRidge), 5 folds, 20 λ": 2},
    ),
}
# Where a goal is not reached everywhere, what is promised instead; None for what takes too long to
# check before a release. README.md says why.
PROMISED_INSTEAD: dict[str, float | None] = {
    "himalaya KernelRidgeCV(cv=5)": None,
    "scikit-learn Nystroem + RidgeCV": None,
    "GPyTorch LeaveOneOutPseudoLikelihood with backward": 2,
    "scikit-learn rbf_kernel @ V": 2.5,
    "scikit-learn, a loop over RidgeCV": 2.5,
}


def read(file) -> dict:
    return json.loads(Path(file).read_text(encoding="utf-8"))


def updated(kept: dict, new: dict) -> dict:
    """`kept` with the works that `new` measured again; both must come from one machine."""
    for what in ("machine", "versions", "dtype", "quick"):
        if kept[what] != new[what]:
            raise SystemExit(
                f"the kept report has another {what}, {kept[what]} and not {new[what]}: measure all works again"
            )
    fresh = {case["work"] for case in new["cases"]}
    cases = [{"date": kept["date"], **case} for case in kept["cases"] if case["work"] not in fresh]
    cases += [{"date": new["date"], **case} for case in new["cases"]]
    order = list(dict.fromkeys(case["work"] for case in kept["cases"] + new["cases"]))
    return {**new, "cases": sorted(cases, key=lambda case: order.index(case["work"]))}


def rows(report: dict) -> list[dict]:
    """One row per contestant, with its time over the floor's and over ours where there are such."""
    out = []
    for case in report["cases"]:
        floor, ours = floor_of(case), case["contestants"][0].get("median")
        for one in case["contestants"]:
            time = one.get("median")
            ratios = {
                "to_floor": time and floor and time / floor,
                "to_ours": time and ours and time / ours,
            }
            out.append(
                {"work": case["work"], "size": case["size"], "floor": floor, **one, **ratios}
            )
    return out


def floor_of(case: dict) -> float | None:
    """Seconds of all the floor's operations, None where one of them failed."""
    parts = [part.get("median") for part in case["floor"]]
    return None if None in parts else sum(parts)


def markdown(report: dict) -> str:
    """The whole report as tables, one per work."""
    machine = report["machine"]
    head = (
        f"{machine['device']}, {machine['cores']} cores, {report['dtype']}, {report['date']}; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    )
    lines = [head, ""]
    if report.get("not begun"):
        lines += [
            f"Out of time, and not measured: {'; '.join(report['not begun'])} and what came after in the same works.",
            "",
        ]
    lines += ["### Goals", "", goals(report), ""]
    for work in dict.fromkeys(case["work"] for case in report["cases"]):
        cases = [case for case in report["cases"] if case["work"] == work]
        day = f" ({cases[0]['date']})" if "date" in cases[0] else ""
        lines += [
            f"### {work}{day}",
            "",
            cases[0]["what"],
            "",
            f"Judged by: {cases[0]['accuracy']}.",
            "",
        ]
        lines += [
            "| size | who | seconds (fastest to slowest) | first call | × the floor | × ours | judged |",
            "|" + "---|" * 7,
        ]
        lines += [_line(row) for row in rows({**report, "cases": cases})]
        for case in cases:
            floor = floor_of(case)
            parts = " + ".join(
                f"{part['name']} {part['missing']}"
                if "missing" in part
                else f"{part['name']} {part['median']:.3g} s"
                for part in case["floor"]
            )
            reached = (
                f", {case['flops'] / floor / 1e9:.0f} GFLOP/s" if case["flops"] and floor else ""
            )
            lines.append(f"| {case['size']} | *floor* | {parts}{reached} | | 1 | | |")
        lines.append("")
    return "\n".join(lines)


def goals(report: dict) -> str:
    """What goals.py asks for beside what was reached, for the works that were measured."""
    lines = ["| work | size | against | asked | reached |", "|" + "---|" * 5]
    for row in rows(report):
        most, peers = GOALS.get((row["work"], row["size"]), (None, {}))
        if row["kind"] == "ours" and most is not None:
            lines.append(
                f"| {row['work']} | {row['size']} | the floor | at most {most:g} × | {_ratio(row['to_floor'])} × |"
            )
        elif row["name"] in peers:
            reached = row.get("missing") or f"{_ratio(row['to_ours'], 1)} ×"
            lines.append(
                f"| {row['work']} | {row['size']} | {row['name']} | at least {peers[row['name']]:g} × as long | {reached} |"
            )
    return "\n".join(lines)


def _ratio(value, digits=2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _line(row) -> str:
    if "missing" in row:
        return f"| {row['size']} | {row['name']} | {row['missing']} | | | | |"
    spread = (
        f"{row['median']:.3g} ({row['low']:.3g} to {row['high']:.3g})"
        if row["rounds"] > 1
        else f"{row['median']:.3g} (once)"
    )
    judged = "" if row["judged"] is None else f"{row['judged']:.3g}"
    return f"| {row['size']} | {row['name']} | {spread} | {row['first']:.3g} | {_ratio(row['to_floor'])} | {_ratio(row['to_ours'])} | {judged} |"


def print_case(report: dict) -> None:
    """The last case, a line for each contestant, as it is measured."""
    case = report["cases"][-1]
    for row in rows({**report, "cases": [case]}):
        if "missing" in row:
            said = row["missing"]
        else:
            judged = "" if row["judged"] is None else f", judged {row['judged']:.3g}"
            said = f"{row['median']:.3g} s, {_ratio(row['to_floor'])} × the floor{judged}"
        print(f"{case['work']}, {case['size']}: {row['name']}: {said}", flush=True)


def summary(report: dict) -> str:
    """One line per case with what a reader asks first."""
    lines = [
        "| work | size | ours, s | × the floor | the floor | peers, × ours |",
        "|" + "---|" * 6,
    ]
    said = ""
    for case in report["cases"]:
        mine = rows({**report, "cases": [case]})
        peers = [
            f"{row['name']} {row['to_ours']:.1f}"
            for row in mine
            if row["kind"] == "peer" and row["to_ours"]
        ]
        floor = " + ".join(part["name"] for part in case["floor"])
        seconds = mine[0].get("median")
        took = "–" if seconds is None else f"{seconds:.2g}"
        what = (
            "the same" if case["what"] == said else f"{case['what'].rstrip('.')} (`{case['work']}`)"
        )
        said = case["what"]
        lines.append(
            f"| {what} | {case['size']} | {took} | {_ratio(mine[0]['to_floor'])} | {floor} | {', '.join(peers) or '–'} |"
        )
    return "\n".join(lines)


def with_table(text: str, report: dict, only: tuple[str, ...] = ()) -> str:
    """`text` with what stands between the marks replaced by the summary of the cases in which a
    peer ran: of all, or the last case of each work of `only`.
    """
    for mark in MARKS:
        if text.count(mark) != 1:
            raise SystemExit(
                f"the file must have the mark {mark} once, and has it {text.count(mark)} times"
            )
    before, rest = text.split(MARKS[0])
    shown = [
        case
        for case in report["cases"]
        if any(one["kind"] == "peer" and "missing" not in one for one in case["contestants"])
    ]
    if only:
        last = {case["work"]: case for case in shown}
        shown = [last[work] for work in only]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    table = summary({**report, "cases": shown})
    return f"{before}{MARKS[0]}\n{table}\n\nMeasured on {report['date']} with {versions}.\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


def picture(report: dict, file) -> None:
    """Every contestant's time over the floor's, on one axis."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    drawn = [row for row in rows(report) if row["to_floor"]]
    labels = list(dict.fromkeys(f"{row['work']}: {row['size']}" for row in drawn))
    colors = {"ours": "C0", "variant": "C9", "peer": "C1"}
    figure, ax = plt.subplots(figsize=(9, 1 + 0.3 * len(labels)), layout="constrained")
    for row in drawn:
        ax.plot(
            row["to_floor"],
            labels.index(f"{row['work']}: {row['size']}"),
            "o",
            color=colors[row["kind"]],
            zorder=3 if row["kind"] == "ours" else 2,
        )
    for kind, color in colors.items():
        ax.plot(
            [],
            [],
            "o",
            color=color,
            label={"ours": "jaxrls", "variant": "jaxrls, another way", "peer": "peers"}[kind],
        )
    ax.axvline(1, color="0.4", linewidth=1)
    ax.set(
        xscale="log",
        xlabel="time over that of the operations nobody can avoid",
        yticks=range(len(labels)),
        yticklabels=labels,
    )
    ax.invert_yaxis()
    ax.legend()
    figure.savefig(file, dpi=90)
