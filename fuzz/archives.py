"""Model files under attack: `python fuzz/archives.py --seconds 60 --seed 1`.

A file that was damaged must be refused with `ValueError` or `OSError`, or load the identical content. One that was forged, its checksums made
right again, may load something else, and must not raise anything else. Every single bit of every array's header of one file is flipped.
"""

import copy
import io
import json
import re
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import jax
import numpy as np
from harness import CORPUS, Failure, chance, damaged, drive, parse

import jaxrls as rls

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "fit-0.1.0.npz"
HEADER = 128  # bytes of an array's header
JUNK = [
    None,
    -1,
    0,
    1.5,
    1e999,
    "",
    "model",
    "a" * 999,
    True,
    [],
    [[1]],
    {},
    {"array": "header"},
    {"array": "no"},
    {"tuple": [1]},
    {"class": "Linear"},
]
DESCRS = [
    "'<f8'",
    "'>f4'",
    "'|O'",
    "'<U0'",
    "'|V8'",
    "'<c16'",
    "'<M8[ns]'",
    "'f8,f8'",
    "[('a', '<f8')]",
    "3",
    "None",
    "'" + "f" * 99 + "'",
    "f8",
]
SHAPES = [
    "()",
    "(0,)",
    "(-1,)",
    "(3, 4)",
    "(10**9,)",
    "(99999999999999,)",
    "(0, 99999999999999999999)",
    "(True,)",
    "[3]",
    "3",
    "(1.5,)",
    "(" * 40,
]


def content(path):
    """All that a file holds, in a form that can be compared to the bit."""
    obj, extra = rls.load(path, with_extra=True)
    leaves, structure = jax.tree.flatten(obj)
    arrays = [(type(leaf).__name__, np.asarray(leaf).dtype.str, np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in leaves]
    return arrays, structure, json.dumps(extra)


def outcome(path, data: bytes, original=None) -> str:
    """What loading these bytes comes to; a failure where it is neither an error of the two kinds nor, if asked for, the original."""
    path.write_bytes(data)
    try:
        found = content(path)
    except (ValueError, OSError) as error:
        if path.name not in str(error):
            raise Failure(f"the error does not name the file: {error}", {"model.npz": data}) from None
        return "refused"
    except Exception as error:
        raise Failure(f"{type(error).__name__}: {error}", {"model.npz": data}) from error
    if original is not None and found != original:
        raise Failure("loaded, with another content", {"model.npz": data})
    return "identical" if original is not None else "loaded"


def originals(folder: Path) -> list[bytes]:
    """Files of every kind that `save` writes."""
    rng = np.random.default_rng(0)
    model = rls.Model(0.5 * rls.Gaussian(np.ones(2)) + rls.Linear().on(1), rng.normal(size=(5, 2)), rng.normal(size=(5, 3)), np.zeros(3))
    path = folder / "original.npz"
    files = [FIXTURE.read_bytes()]
    for obj, extra in (
        (rls.Polynomial(3, 0.5), {}),
        (model, {"layout": {"inputs": ["a", "b"]}, "means": [0.1, 1e300], "classes": None}),
        (rls.Gaussian(np.arange(1.0, 4000.0)), {"unit": "größe"}),
    ):
        rls.save(path, obj, extra=extra)
        files.append(path.read_bytes())
    return files


def forged(rng, data: bytes) -> bytes:
    """The file with one member replaced and all checksums right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = "header.npy" if rng.random() < 0.6 else chance(rng, list(members))
    if name == "header.npy" and rng.random() < 0.9:
        tree = json.loads(members[name][HEADER:])
        for _ in range(int(rng.integers(1, 4))):
            replace_somewhere(rng, tree)
        file = io.BytesIO()
        np.lib.format.write_array(file, np.frombuffer(json.dumps(tree).encode(), np.uint8))
        members[name] = file.getvalue()
    elif rng.random() < 0.5:
        text = (
            f"{{'descr': {chance(rng, DESCRS)}, 'fortran_order': {chance(rng, ('True', 'False', '2'))}, 'shape': {chance(rng, SHAPES)}, }}"
        )
        text = damaged(rng, text.encode())[: HEADER - 11] if rng.random() < 0.3 else text.encode()
        members[name] = members[name][:10] + text.ljust(HEADER - 11) + b"\n" + members[name][HEADER:]
    else:
        members[name] = damaged(rng, members[name], members["header.npy"])
    file = io.BytesIO()
    with zipfile.ZipFile(
        file, "w", chance(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
    ) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return file.getvalue()


def replace_somewhere(rng, tree) -> None:
    """Put junk, or nothing, somewhere into JSON."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = chance(rng, keys)
        if isinstance(tree[key], dict | list) and tree[key] and rng.random() < 0.7:
            tree = tree[key]
        elif rng.random() < 0.2:
            del tree[key]
            return
        else:
            tree[key] = copy.deepcopy(chance(rng, JUNK))
            return


def repacked(data: bytes) -> bytes:
    """The same members, compressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    return file.getvalue()


def flips(data: bytes):
    """Every single bit of every array's header, changed."""
    for match in re.finditer(re.escape(b"\x93NUMPY"), data):
        for i in range(match.start(), match.start() + HEADER):
            for bit in range(8):
                yield data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]


def kept(path: Path, case: Path) -> str:
    """A case of the corpus: what is to come of it stands in its name."""
    found = outcome(path, case.read_bytes())
    if not case.name.startswith(found):
        raise Failure(f"{case.name}: {found}", {})
    return found


def main(argv=None) -> int:
    """Attack."""
    options = parse(__doc__, argv)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        files = originals(Path(folder))
        contents = []
        for data in files:
            path.write_bytes(data)
            contents.append(content(path))
        packed = [repacked(data) for data in files]
        fixed = [("corpus", partial(kept, path, case)) for case in sorted((CORPUS / "archives").glob("*.npz"))]
        fixed += [("repacked", partial(outcome, path, data, original)) for data, original in zip(packed, contents, strict=True)]
        if not options.quick:
            for i in (0, -1):  # many arrays, and one that is read in more than one piece, where NumPy may stop before the checksum
                fixed += [("every bit", partial(outcome, path, data, contents[i])) for data in flips(files[i])]

        def draw(rng):
            i = int(rng.integers(len(files)))
            if rng.random() < 0.4:
                return "forged", partial(outcome, path, forged(rng, files[i]))
            data, kind = (packed[i], "damaged, packed") if rng.random() < 0.3 else (files[i], "damaged")
            return kind, partial(outcome, path, damaged(rng, data, chance(rng, files)), contents[i])

        return drive("archives", options, fixed, draw)


if __name__ == "__main__":
    sys.exit(main())
