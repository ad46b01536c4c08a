"""The kind of device that a program is for: blocks are cut and products arranged for that one."""

import jax


def platform() -> str:
    """The platform of `jax.default_device` where that is set, for a device that may not even be
    here, else of the default backend.
    """
    device = jax.config.jax_default_device  # type: ignore[attr-defined] # part of what `jax.jit` keys its programs by
    if device is None:
        return jax.default_backend()
    name = device if isinstance(device, str) else device.platform
    return {"cuda": "gpu", "rocm": "gpu"}.get(name, name)
