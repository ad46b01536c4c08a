"""Tables of data in a folder, the target last: the folder is named by --data or the environment
variable JAXRLS_DATA.
"""

from pathlib import Path

import numpy as np

import jaxrls as rls


def table(name, folder):
    """All rows with the target as the last column, or None where the file is not there; the airfoil
    data come with the package.
    """
    if name == "airfoil":
        X, y, _ = rls.airfoil()
        return np.column_stack([X, y]).astype(float)
    file = Path(folder or "") / f"{name}.csv.gz"
    if not folder or not file.exists():
        print(
            f"{name}: skipped, no {file.name} in {folder or 'a folder named by --data or JAXRLS_DATA'}",
            flush=True,
        )
        return None
    return np.loadtxt(file, delimiter=",")
