"""K·V in one kernel on CUDA devices, if NVIDIA Warp is installed (the extra `fused`)."""
