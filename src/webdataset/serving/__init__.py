"""Layer 9: programs that serve batches to trainers: ``shared_loader``, ``shared_server``, ``shared_batches``, ``unix_channel``."""
