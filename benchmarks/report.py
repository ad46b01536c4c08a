"""From measurements to a table and a picture: both are made from the JSON alone."""

import json
from pathlib import Path


def read(file) -> dict:
    return json.loads(Path(file).read_text(encoding="utf-8"))


def rows(report: dict) -> list[dict]:
    """One row per contestant, with its time over the floor's and over ours."""
    out = []
    for case in report["cases"]:
        floor = sum(part["median"] for part in case["floor"])
        ours = case["contestants"][0]["median"]
        for one in case["contestants"]:
            time = one.get("median")
            ratios = {"to_floor": None, "to_ours": None} if time is None else {"to_floor": time / floor, "to_ours": time / ours}
            out.append({"work": case["work"], "size": case["size"], "floor": floor, **one, **ratios})
    return out


def markdown(report: dict) -> str:
    """The whole report as tables, one per work."""
    machine = report["machine"]
    head = f"{machine['device']}, {machine['cores']} cores, {report['dtype']}, {report['date']}; " + ", ".join(
        f"{name} {version}" for name, version in report["versions"].items()
    )
    lines = [head, ""]
    for work in dict.fromkeys(case["work"] for case in report["cases"]):
        cases = [case for case in report["cases"] if case["work"] == work]
        lines += [f"### {work}", "", cases[0]["what"], "", f"Judged by: {cases[0]['accuracy']}.", ""]
        lines += ["| size | who | seconds (fastest to slowest) | first call | × the floor | × ours | judged |", "|" + "---|" * 7]
        lines += [_line(row) for row in rows({**report, "cases": cases})]
        for case in cases:
            floor = " + ".join(f"{part['name']} {part['median']:.3g} s" for part in case["floor"])
            reached = f", {case['flops'] / sum(p['median'] for p in case['floor']) / 1e9:.0f} GFLOP/s" if case["flops"] else ""
            lines.append(f"| {case['size']} | *floor* | {floor}{reached} | | 1 | | |")
        lines.append("")
    return "\n".join(lines)


def _line(row) -> str:
    if "missing" in row:
        return f"| {row['size']} | {row['name']} | {row['missing']} | | | | |"
    spread = f"{row['median']:.3g} ({row['low']:.3g} to {row['high']:.3g})" if row["rounds"] > 1 else f"{row['median']:.3g} (once)"
    judged = "" if row["judged"] is None else f"{row['judged']:.3g}"
    return f"| {row['size']} | {row['name']} | {spread} | {row['first']:.3g} | {row['to_floor']:.2f} | {row['to_ours']:.2f} | {judged} |"


def summary(report: dict) -> str:
    """One line per case with what a reader asks first, as on the front page."""
    lines = ["| work | size | ours, × the floor | the floor | peers, × ours |", "|" + "---|" * 5]
    for case in report["cases"]:
        mine = rows({**report, "cases": [case]})
        peers = [f"{row['name']} {row['to_ours']:.1f}" for row in mine if row["kind"] == "peer" and "missing" not in row]
        floor = " + ".join(part["name"] for part in case["floor"])
        lines.append(f"| {case['work']} | {case['size']} | {mine[0]['to_floor']:.2f} | {floor} | {', '.join(peers) or '–'} |")
    return "\n".join(lines)


def picture(report: dict, file) -> None:
    """Every contestant's time over the floor's, on one axis."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    drawn = [row for row in rows(report) if "missing" not in row]
    labels = list(dict.fromkeys(f"{row['work']}: {row['size']}" for row in drawn))
    colors = {"ours": "C0", "variant": "C9", "peer": "C1"}
    figure, ax = plt.subplots(figsize=(9, 1 + 0.3 * len(labels)), layout="constrained")
    for row in drawn:
        ax.plot(row["to_floor"], labels.index(f"{row['work']}: {row['size']}"), "o", color=colors[row["kind"]], alpha=0.8)
    for kind, color in colors.items():
        ax.plot([], [], "o", color=color, label={"ours": "jaxrls", "variant": "jaxrls, another way", "peer": "peers"}[kind])
    ax.axvline(1, color="0.4", linewidth=1)
    ax.set(xscale="log", xlabel="time over that of the operations nobody can avoid", yticks=range(len(labels)), yticklabels=labels)
    ax.invert_yaxis()
    ax.legend()
    figure.savefig(file, dpi=90)
