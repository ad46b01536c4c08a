"""What `test_processes.py` runs: one of several processes that fit rows together, `python
on_processes.py INDEX COUNT PORT FOLDER [TASK]`.

Tasks: `fit` (first with a row that is missing, in the last process), `die` and `hang` (the last
process, while rows are read a second time), `resume`."""

import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import pandas
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxrls as rls

PATIENCE = 10  # seconds without a heartbeat
BLOCKS = 8
rng = np.random.default_rng(0)
X = rng.normal(size=(330, 3)) * [1, 10, 100] + 5
Y = np.stack([np.sin(X[:, 0]), X[:, 1]], axis=1) + 0.1 * rng.normal(size=(330, 2))
WEIGHTS = rng.uniform(0.5, 2, 330)
ON_MESH = 320  # rows, as many for every device
LANDMARKS = np.arange(0, 330, 30)
LAMS = np.geomspace(1e-3, 10, 4)


class Blocks:
    """This process's part of all blocks; `event(reading, block)` is called before each."""

    def __init__(self, index, count, event=lambda reading, block: None, bad=False):
        blocks = [np.arange(330)[part] for part in np.array_split(np.arange(330), BLOCKS)]
        self.mine = [blocks[j] for j in np.array_split(np.arange(BLOCKS), count)[index]]
        self.event, self.bad, self.readings = event, bad, 0

    def __iter__(self):
        self.readings += 1
        for i, part in enumerate(self.mine):
            self.event(self.readings, i)
            yield np.where(self.bad & (i == 1), np.nan, X[part]), Y[part], WEIGHTS[part]


def numbers(fit, rows):
    """What every process has of a fit."""
    found = {"errors": fit.errors, "lam": fit.lam, "coef": fit.model.coef}
    return found | {"predicted": fit.predict(rows)}


def fitted(blocks, distributed, **options):
    rows = rls.rows.stream(blocks, distributed=distributed, **options)
    fit = rls.fit(rls.Gaussian(1.0), rows, lams=LAMS, landmarks=LANDMARKS, standardize=True)
    return numbers(fit, rows) | {"residuals": fit.loo_residuals}


def sharded(count):
    """What `fitted` finds, as far as it is numbers of all, on one mesh of all devices of all
    processes: each brings its own rows.
    """
    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
    own = np.array_split(np.arange(ON_MESH), count)[jax.process_index()]
    place = NamedSharding(mesh, PartitionSpec("rows"))
    rows = rls.rows.shard(
        *(jax.make_array_from_process_local_data(place, part[own]) for part in (X, Y, WEIGHTS))
    )
    fit = rls.fit(rls.Gaussian(60.0), rows, lams=LAMS, landmarks=LANDMARKS[:8])
    assert fit.loo_residuals.sharding.is_equivalent_to(place, 2)
    return fit


def refused(run) -> str:
    try:
        run()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def main(index: int, count: int, port: str, folder: Path, task: str) -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", 2)
    address, last = f"127.0.0.1:{port}", index == count - 1
    jax.distributed.initialize(
        address, count, index, coordinator_bind_address=address, heartbeat_timeout_seconds=PATIENCE
    )

    def event(reading, block):
        if last and task in ("die", "hang") and (reading, block) == (2, 1):
            (folder / "gone").touch()
            os.kill(os.getpid(), signal.SIGKILL if task == "die" else signal.SIGSTOP)

    checkpoint = None if task == "fit" else folder / "sums.npz"
    if task == "fit":
        other = [(X[:, : 2 + last], Y, WEIGHTS)]
        named = pandas.DataFrame(X, columns=["c", "b", "a"] if last else ["a", "b", "c"])
        given = {
            "refused": Blocks(index, count, bad=last),
            "unlike": other,
            "another order": [(named, Y, WEIGHTS)],
            "empty": [] if last else other,
        }
        for words, rows in given.items():
            told = refused(lambda rows=rows: rls.rows.stream(rows, distributed=True))
            print(f"{words}: {told}", flush=True)
        np.savez(folder / f"mesh{index}.npz", **numbers(sharded(count), X))
    found = fitted(Blocks(index, count, event), True, checkpoint=checkpoint, block_size=20)
    np.savez(folder / f"{task}{index}.npz", **found)


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        Path(sys.argv[4]),
        *(sys.argv[5:] or ["fit"]),
    )
