"""What tests of several kinds share: real processes, and clients of them."""
