"""K·V in one kernel on CUDA devices, where NVIDIA Warp is installed (the extra `fused`)."""
