"""What this machine has for models: memory, cores, GPUs; each figure says where it comes from."""
