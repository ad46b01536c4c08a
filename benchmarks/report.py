"""From measurements to a table and a picture: both are made from the JSON alone."""

from common import head, line

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


def updated(kept: dict, new: dict) -> dict:
    """`kept` with the works that `new` measured again; both must come from one machine."""
    for what in ("machine", "versions", "dtype", "quick"):
        if kept[what] != new[what]:
            raise SystemExit(
                f"the kept report has another {what}, {kept[what]} and not {new[what]}: "
                "measure all works again"
            )
    fresh = {case["work"] for case in new["cases"]}
    cases = [{"date": kept["date"], **case} for case in kept["cases"] if case["work"] not in fresh]
    cases += [{"date": new["date"], **case} for case in new["cases"]]
    order = list(dict.fromkeys(case["work"] for case in kept["cases"] + new["cases"]))
    return {**new, "cases": sorted(cases, key=lambda case: order.index(case["work"]))}


def rows(*cases: dict) -> list[dict]:
    """One row per contestant, with its time over the floor's and over ours where there are such."""
    out = []
    for case in cases:
        floor, ours = floor_of(case), case["contestants"][0].get("median")
        for one in case["contestants"]:
            time = one.get("median")
            ratios = {
                "to_floor": time and floor and time / floor,
                "to_ours": time and ours and time / ours,
            }
            out.append({"work": case["work"], "size": case["size"], **one, **ratios})
    return out


def floor_of(case: dict) -> float | None:
    """Seconds of all the floor's operations, None where one of them failed."""
    parts = [part.get("median") for part in case["floor"]]
    return None if None in parts else sum(parts)


def measured_with(report: dict) -> str:
    return ", ".join(f"{name} {version}" for name, version in report["versions"].items())


def markdown(report: dict) -> str:
    """The whole report as tables, one per work."""
    machine = report["machine"]
    lines = [
        f"{machine['device']}, {machine['cores']} cores, {report['dtype']}, {report['date']}; "
        + measured_with(report)
    ]
    if late := report.get("not begun"):
        lines += [
            f"\nOut of time, and not measured: {'; '.join(late)} and what came after in the same "
            "works."
        ]
    lines += ["\n### Goals\n", goals(report)]
    by_work: dict = {}
    for case in report["cases"]:
        by_work.setdefault(case["work"], []).append(case)
    for work, cases in by_work.items():
        day = f" ({cases[0]['date']})" if "date" in cases[0] else ""
        lines += [f"\n### {work}{day}", f"\n{cases[0]['what']}"]
        lines += [f"\nJudged by: {cases[0]['accuracy']}.\n"]
        names = "size", "who", "seconds (fastest to slowest)", "first call"
        lines += [head(*names, "× the floor", "× ours", "judged")]
        lines += [shown(row) for row in rows(*cases)]
        for case in cases:
            floor = floor_of(case)
            parts = " + ".join(
                f"{part['name']} " + part.get("missing", f"{part.get('median', 0):.3g} s")
                for part in case["floor"]
            )
            if case["flops"] and floor:
                parts += f", {case['flops'] / floor / 1e9:.0f} GFLOP/s"
            lines.append(line(case["size"], "*floor*", parts, "", 1, "", ""))
    return "\n".join(lines)


def goals(report: dict) -> str:
    """What GOALS asks for beside what was reached, for the works that were measured."""
    lines = [head("work", "size", "against", "asked", "reached")]
    for row in rows(*report["cases"]):
        most, peers = GOALS.get((row["work"], row["size"]), (None, {}))
        if row["kind"] == "ours" and most is not None:
            cells = "the floor", f"at most {most:g} ×", f"{_ratio(row['to_floor'])} ×"
        elif row["name"] in peers:
            reached = row.get("missing") or f"{_ratio(row['to_ours'], 1)} ×"
            cells = row["name"], f"at least {peers[row['name']]:g} × as long", reached
        else:
            continue
        lines.append(line(row["work"], row["size"], *cells))
    return "\n".join(lines)


def _ratio(value, digits=2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def shown(row) -> str:
    """A contestant's line of the table of its work."""
    if "missing" in row:
        return line(row["size"], row["name"], row["missing"], *[""] * 4)
    spread = f"{row['low']:.3g} to {row['high']:.3g}" if row["rounds"] > 1 else "once"
    ratios = _ratio(row["to_floor"]), _ratio(row["to_ours"])
    judged = "" if row["judged"] is None else f"{row['judged']:.3g}"
    took = f"{row['median']:.3g} ({spread})", f"{row['first']:.3g}"
    return line(row["size"], row["name"], *took, *ratios, judged)


def summary(report: dict) -> str:
    """One line per case with what a reader asks first."""
    lines = [head("work", "size", "ours, s", "× the floor", "peers, × ours")]
    said = ""
    for case in report["cases"]:
        ours, *others = rows(case)
        peers = ", ".join(
            f"{row['name']} {row['to_ours']:.1f}"
            for row in others
            if row["kind"] == "peer" and row["to_ours"]
        )
        took = "–" if "missing" in ours else f"{ours['median']:.2g}"
        full = f"{case['what'].rstrip('.')} (`{case['work']}`)"
        what, said = "the same" if case["what"] == said else full, case["what"]
        ratio = _ratio(ours["to_floor"])
        lines.append(line(what, case["size"], took, ratio, peers or "–"))
    return "\n".join(lines)


def with_table(text: str, report: dict, only: tuple[str, ...] = ()) -> str:
    """`text` with what stands between the marks replaced by the summary of the cases in which a
    peer ran: of all, or the last case of each work of `only`.
    """
    for mark in MARKS:
        if text.count(mark) != 1:
            raise SystemExit(f"{text.count(mark)} times in the file, and not once: {mark}")
    before, rest = text.split(MARKS[0])
    cases = [
        case
        for case in report["cases"]
        if any(one["kind"] == "peer" and "missing" not in one for one in case["contestants"])
    ]
    if only:
        last = {case["work"]: case for case in cases}
        cases = [last[work] for work in only]
    told = f"Measured on {report['date']} with {measured_with(report)}."
    table = f"{MARKS[0]}\n{summary({'cases': cases})}\n\n{told}\n{MARKS[1]}"
    return before + table + rest.split(MARKS[1])[1]


def picture(report: dict, file) -> None:
    """Every contestant's time over the floor's, on one axis."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    drawn = [row for row in rows(*report["cases"]) if row["to_floor"]]
    labels = list(dict.fromkeys(f"{row['work']}: {row['size']}" for row in drawn))
    figure, ax = plt.subplots(figsize=(9, 1 + 0.3 * len(labels)), layout="constrained")
    kinds = {"peer": ("C1", "peers"), "variant": ("C9", "jaxrls, another way")}
    for kind, (color, label) in (kinds | {"ours": ("C0", "jaxrls")}).items():
        mine = [row for row in drawn if row["kind"] == kind]
        at = [labels.index(f"{row['work']}: {row['size']}") for row in mine]
        ax.plot([row["to_floor"] for row in mine], at, "o", color=color, label=label)
    ax.axvline(1, color="0.4", linewidth=1)
    ax.set(xscale="log", xlabel="time over that of the operations nobody can avoid")
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.legend()
    figure.savefig(file, dpi=90)
