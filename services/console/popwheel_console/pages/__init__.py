"""The pages of the console: each module gathers what one page shows."""
