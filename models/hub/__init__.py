"""Models on the Hugging Face hub: found, looked into, fetched. Requests go out where the user asked for one, and nowhere else."""
