"""What this machine has for models: memory, cores, GPUs, and how fast they are; each figure says where it comes from."""
