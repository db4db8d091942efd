"""The picture of the rooms, drawn from the imports between them: `python -m tests.docs.architecture` writes it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conftest import ROOT
from tests.test_architecture import MODULES, imported, room_of

PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH, ROOM, HEIGHT, STEP = 900, 200, 56, 96
HOLDS = {
    "operations": "what people and pipelines run",
    "infra": "AWS stacks",
    "lab": "one machine instead of AWS",
    "cdk8s_charts": "Kubernetes objects",
    "experiment": "the file, its cost, its forecast",
    "benchmark": "the measurement",
    "store": "weights and artifacts",
    "core": "what every room needs",
}
HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} %d" role="img" aria-label="Rooms and imports"><style>
text{{font:14px sans-serif;fill:#1f2328;text-anchor:middle}}.s{{font-size:12px}}rect{{fill:#f6f8fa;stroke:#57606a}}
polyline{{fill:none;stroke:#57606a;marker-end:url(#a)}}path{{fill:#57606a}}@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}
rect{{fill:#161b22;stroke:#8d96a0}}polyline{{stroke:#8d96a0}}path{{fill:#8d96a0}}}}</style><marker id="a" viewBox="0 0 8 8"
refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>"""


def picture() -> Iterator[str]:
    """Each room above those that it imports, and right below those that import it."""
    needs: dict[str, set[str]] = {room: set() for room in HOLDS}
    for name in MODULES:
        room, others = room_of(name), {room_of(other) for other in imported(name)}
        needs.get(room, set()).update(others & HOLDS.keys() - {room})
    floors = dict.fromkeys(HOLDS, 0)
    for _ in HOLDS:  # as often as a chain of rooms can be long
        floors = {room: max((floors[other] + 1 for other in needs[room]), default=0) for room in HOLDS}
    for room in sorted(HOLDS, key=floors.__getitem__, reverse=True):
        above = (floors[other] - 1 for other in HOLDS if room in needs[other])
        floors[room] = min(above, default=floors[room])
    at = {}
    for room, floor in floors.items():
        row = [other for other in HOLDS if floors[other] == floor]
        left = WIDTH * (2 * row.index(room) + 1) // (2 * len(row))
        at[room] = left, 10 + STEP * (max(floors.values()) - floor)
    yield HEAD % (20 + STEP * max(floors.values()) + HEIGHT)
    for room, others in needs.items():
        for other in sorted(others - {far for near in others for far in needs[near]}):
            (x, y), (below, top) = at[room], at[other]
            side = f"{x},{top + HEIGHT // 2} {below + ROOM // 2},{top + HEIGHT // 2}"
            yield f'<polyline points="{x},{y + HEIGHT} {side if top - y > STEP else f"{below},{top}"}"/>'
    for room, (x, y) in at.items():
        yield f'<rect x="{x - ROOM // 2}" y="{y}" width="{ROOM}" height="{HEIGHT}" rx="6"/>'
        yield f'<text x="{x}" y="{y + 24}">{room}</text><text class="s" x="{x}" y="{y + 43}">{HOLDS[room]}</text>'
    yield "</svg>\n"


if __name__ == "__main__":
    PICTURE.write_text("\n".join(picture()), encoding="utf-8")
