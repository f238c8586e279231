"""`grace demo`: people and films of MovieLens-100K under the targeting rules of real ads."""
