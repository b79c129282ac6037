"""Random cases for test_fuzz_differential.py."""
