"""The physics of one model part: its event trace, replayed through PyTorch's allocator."""
