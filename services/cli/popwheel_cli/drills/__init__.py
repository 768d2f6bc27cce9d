"""`popwheel admin drill ...`: failures on purpose, and what they cost."""
